"""Which rejected rows can be replayed, on values alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.fixtures.streams import continuous_stream

from sluice.backfill.replayable_rows import (
    OpenRow,
    Selection,
    may_have_published,
    refusals_of,
    replayable,
    shown_position,
    stored_value,
)
from sluice.declarations.input_declaration import InputDeclaration
from sluice.ledger.backfill_attempts import BackfillAttemptKey, BackfillAttemptObservation, BackfillState
from sluice.operations import RefusalReason
from sluice.publication.resolved_rejections import place_of

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
COLUMNS = [{"name": "id", "type": "long"}]
PLACE = '{"topic":"t","partition":0,"offset":7}'


def nothing(row: OpenRow) -> bool:
    """No backfill has read anything."""
    return False


def known(key: str) -> bool:
    """Of every replay it is known what it has published."""
    return not key


def reading(**value: Any) -> InputDeclaration:
    """An input that reads a topic."""
    declared = {"format": "json", "columns": COLUMNS} | value
    source = {"kafka": {"connection": "k", "topics": ["t"], "value": declared}}
    return InputDeclaration.model_validate({"stream": source})


def rejected(
    position: str | None = PLACE, payload: str | None = "{}", *, kind: str | None = "lacking", batch: int = 5
) -> OpenRow:
    """A row of generation 2."""
    place = place_of({"position": position, "payload": payload})
    return OpenRow(
        generation=2, batch=batch, kind=kind, position=position, payload=payload, refused_at=NOON, place=place
    )


@pytest.mark.parametrize(
    ("row", "generations", "why"),
    [
        (rejected(), {2}, None),
        (rejected(), {3}, "a later generation reads its record again, or has not begun"),
        (rejected(None), {2}, "its position does not say where its record stood"),
        (rejected("[1]"), {2}, "its position does not say where its record stood"),
        (rejected('{"id":7}'), {2}, "its position is not a topic, a partition and an offset"),
        (rejected(PLACE.replace("7", '"7"')), {2}, "its position is not a topic, a partition and an offset"),
    ],
)
def test_a_row_is_replayed_when_its_record_has_a_place(row: OpenRow, generations: set[int], why: str | None) -> None:
    found = replayable(
        [row], reading(), generations=generations, is_present=lambda _: True, may_be_published=nothing, is_unknown=known
    )
    assert dict(found.left) == ({why: 1} if why else {})
    assert list(found.rows) == ([] if why else [PLACE])


@pytest.mark.parametrize(
    ("row", "value", "stored"),
    [
        (rejected(payload='{"id": "ü"}'), {}, '{"id": "ü"}'.encode()),
        (rejected(payload="0x7B7D"), {}, b"0x7B7D"),
        (rejected(payload="0xFF7D", kind="not_text"), {}, b"\xff}"),
        (rejected(payload='{"id": 1}', kind=None), {}, None),
        (rejected(payload='{"id": 1}'), {"registry": "r"}, None),
        (rejected(payload=None), {}, None),
    ],
)
def test_a_value_is_taken_from_the_quarantine_only_as_it_came(
    row: OpenRow, value: dict[str, Any], stored: bytes | None
) -> None:
    assert stored_value(row, reading(**value)) == stored


def test_a_row_that_a_replay_may_have_published_without_a_trace_is_left() -> None:
    place = PLACE.replace("7", "8")
    rows = [replace(rejected(), resolved_by="old"), replace(rejected(place), resolved_by="new")]

    found = replayable(
        rows,
        reading(),
        generations={2},
        is_present=lambda _: True,
        may_be_published=nothing,
        is_unknown=lambda key: key == "old",
    )

    assert list(found.rows) == [place]
    why = "a replay whose snapshots are expired may have published its record: backfill its interval"
    assert found.left == {why: 1}


def test_a_position_at_which_records_of_two_topics_were_rejected_is_left() -> None:
    alone = rejected(PLACE.replace("7", "8"), batch=3)
    rows = [rejected(batch=3), rejected(), alone]

    found = replayable(
        rows,
        reading(),
        generations={2},
        is_present=lambda row: row.batch >= 4,
        may_be_published=nothing,
        is_unknown=known,
    )

    assert list(found.rows) == [alone.place]
    assert list(found.left.values()) == [2]


@pytest.mark.parametrize(
    ("masked", "position", "shown"),
    [
        (["id"], '{"id":7}', "hidden, because columns are masked"),
        (["id"], PLACE, PLACE),
        (["id"], None, None),
        ([], '{"id":7}', '{"id":7}'),
    ],
)
def test_a_terminal_shows_no_position_that_may_hold_a_masked_value(
    masked: list[str], position: str | None, shown: str | None
) -> None:
    declaration = continuous_stream(masked_columns=masked, quarantine=True).declaration
    assert shown_position(rejected(position), declaration) == shown


def test_rows_are_chosen_by_kind_position_batch_and_time() -> None:
    rows = [rejected(), rejected(kind=None), rejected('{"id":7}')]
    assert Selection().of(rows) == rows
    assert Selection(kinds=frozenset({"lacking"}), positions=frozenset({PLACE})).of(rows) == rows[:1]
    assert Selection(batches=frozenset({"2:5"})).of(rows) == rows
    assert Selection(batches=frozenset({"5", "2:4"})).of(rows) == []
    assert Selection(until=datetime(2026, 1, 31, tzinfo=UTC)).of(rows) == []


def attempt(
    state: BackfillState,
    *,
    ended_hour: int | None = 13,
    planned: bool = True,
    generation: int | None = 2,
    batch: int | None = 5,
) -> BackfillAttemptObservation:
    """An attempt to backfill an hour, which has begun at noon, and has read as far as a batch had."""
    key = BackfillAttemptKey(stream="s", interval_start=NOON, interval_end=NOON, attempt=1)
    return BackfillAttemptObservation(
        key=key,
        state=state,
        launched_by="a test",
        started_at=NOON,
        ended_at=None if ended_hour is None else NOON.replace(hour=ended_hour),
        end_offsets={} if planned else None,
        generation=generation if planned else None,
        batch=batch if planned else None,
    )


LATER = PLACE.replace("7", "8")


@pytest.mark.parametrize(
    ("later", "of_earlier_version"),
    [
        (replace(rejected(LATER, batch=6), refused_at=NOON.replace(hour=11)), False),
        (replace(rejected(LATER, batch=6), refused_at=NOON.replace(hour=14)), False),
        (replace(rejected(LATER, batch=0), refused_at=NOON.replace(hour=14)), True),
    ],
    ids=["by a host whose clock is late", "later", "known by the time alone"],
)
@pytest.mark.parametrize(
    "state",
    [BackfillState.PUBLISHED, BackfillState.FAILED, BackfillState.LOST, BackfillState.CHANGED_MEANWHILE],
)
def test_what_a_backfill_may_have_published_without_marking_it_is_left(
    state: BackfillState, later: OpenRow, *, of_earlier_version: bool
) -> None:
    number = None if of_earlier_version else 5
    of_plan = [attempt(state, ended_hour=hour, generation=number and 2, batch=number) for hour in (13, 12)]
    is_read = may_have_published([attempt(BackfillState.UNCHANGED, ended_hour=15, batch=9), *of_plan])

    found = replayable(
        [rejected(), later],
        reading(),
        generations={2},
        is_present=lambda _: True,
        may_be_published=is_read,
        is_unknown=known,
    )

    assert list(found.rows) == [later.place]
    ((why, count),) = found.left.items()
    assert "backfill its interval again" in why
    assert count == 1


def test_a_record_that_was_rejected_by_a_host_whose_clock_is_ahead_is_known_to_be_read() -> None:
    ahead = replace(rejected(), refused_at=NOON.replace(hour=14))
    assert may_have_published([attempt(BackfillState.PUBLISHED)])(ahead)


def test_a_backfill_that_published_nothing_blocks_nothing() -> None:
    none = [attempt(BackfillState.UNCHANGED), attempt(BackfillState.FAILED, planned=False)]
    assert not may_have_published(none)(rejected())


TWO_TABLES = {name: {"iceberg": {"table": f"bronze.{name}"}} for name in ("rows", "copies")}
FILES = {
    "records": {"stream": {"files": {"connection": "landing", "path": "in", "format": "json", "columns": COLUMNS}}}
}


@pytest.mark.parametrize(
    ("declared", "backfill", "refresh", "reasons"),
    [
        ({}, False, False, []),
        ({}, True, False, [RefusalReason.NOT_AT_REST]),
        ({}, False, True, [RefusalReason.OTHER_REFRESH]),
        ({"outputs": TWO_TABLES}, False, False, [RefusalReason.NOT_YET]),
        ({"inputs": FILES}, False, False, [RefusalReason.NOT_YET]),
    ],
)
def test_a_replay_that_could_publish_a_record_twice_is_refused(
    declared: dict[str, Any], reasons: list[RefusalReason], *, backfill: bool, refresh: bool
) -> None:
    refusals = refusals_of(continuous_stream(**declared), has_open_backfill=backfill, has_open_refresh=refresh)
    assert [one.reason for one in refusals] == reasons
