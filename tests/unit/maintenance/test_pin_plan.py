"""Which snapshots stay for readers and writers, and where the tags go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from sluice.maintenance.pin_plan import (
    HoldReason,
    Knowledge,
    Pin,
    PinKind,
    PinPlan,
    ReaderObservation,
    WriterObservation,
    as_of_label,
    is_tag_of,
    plan_own_pins,
    plan_pins,
)
from sluice.sources.iceberg_positions import BEGINNING
from sluice.tables.table_observation import ReferenceKind, ReferenceObservation, SnapshotObservation, TableObservation

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
POSITION_TAG = "sluice_pin__silver__rows__position"
DELIVERY_TAG = "sluice_pin__bronze__rows__delivery"


def table(
    *,
    snapshots: Sequence[int] = (1, 2, 3, 4, 5),
    tags: dict[str, int] | None = None,
    head: int | None = None,
    times: dict[int, datetime] | None = None,
) -> TableObservation:
    """A table whose snapshot n was committed n minutes after noon, each the parent of the next."""
    seen = [
        SnapshotObservation(
            snapshot_id=number,
            parent_id=number - 1 if number > 1 else None,
            committed_at=(times or {}).get(number, NOON + number * MINUTE),
            operation="append",
        )
        for number in snapshots
    ]
    newest = head if head is not None else (max(snapshots) if snapshots else None)
    references = [
        ReferenceObservation(name=name, kind=ReferenceKind.TAG, snapshot_id=kept) for name, kept in (tags or {}).items()
    ]
    if newest is not None:
        references.append(ReferenceObservation(name="main", kind=ReferenceKind.BRANCH, snapshot_id=newest))
    return TableObservation(
        table="bronze.rows",
        observed_at=NOON + timedelta(hours=1),
        metadata_location="s3://lakehouse/bronze/rows/metadata/v1.metadata.json",
        snapshot_id=newest,
        committed_at=NOON if newest is not None else None,
        rows=0,
        small_file_bytes=1,
        partitions=(),
        delete_files=0,
        manifests=0,
        snapshots=tuple(seen),
        references=tuple(references),
    )


def reader(position: int | None = 3, *, knowledge: Knowledge = Knowledge.KNOWN, problem: str = "") -> ReaderObservation:
    """The reader `silver`, input `rows`."""
    return ReaderObservation(stream="silver", input="rows", knowledge=knowledge, position=position, problem=problem)


def plan(seen: TableObservation, *readers: ReaderObservation, unreadable: Sequence[str] = ()) -> PinPlan:
    """The pins of a table."""
    return plan_pins(seen=seen, readers=readers, kept_streams=unreadable)


def test_a_reader_keeps_its_position_and_everything_after_it() -> None:
    planned = plan(table(), reader(3))

    assert planned.to_set == (Pin(kind=PinKind.POSITION, stream="silver", endpoint="rows", snapshot_id=3),)
    assert planned.to_set[0].tag == POSITION_TAG
    assert planned.keep_since == NOON + 3 * MINUTE
    assert planned.holds == ()


def test_the_slowest_of_several_readers_decides() -> None:
    slow = ReaderObservation(stream="gold", input="rows", knowledge=Knowledge.KNOWN, position=2)

    planned = plan(table(), reader(4), slow)

    assert planned.keep_since == NOON + 2 * MINUTE
    assert [pin.tag for pin in planned.to_set] == [POSITION_TAG, "sluice_pin__gold__rows__position"]


def test_clocks_that_disagree_do_not_cost_a_reader_its_snapshots() -> None:
    """Snapshot 4 was committed by a machine whose clock is behind: a cutoff at 3's own time would remove it."""
    planned = plan(table(times={4: NOON + 1 * MINUTE}), reader(3))

    assert planned.keep_since == NOON + 1 * MINUTE


def test_without_readers_nothing_is_kept() -> None:
    planned = plan(table())

    assert (planned.keep_since, planned.pins, planned.holds, planned.is_current) == (None, (), (), True)


@pytest.mark.parametrize(
    ("tags", "is_set", "removed"),
    [
        ({}, True, ()),
        ({POSITION_TAG: 3}, False, ()),
        ({POSITION_TAG: 2}, True, ()),
        ({POSITION_TAG: 3, "sluice_pin__gone__rows__position": 1}, False, ("sluice_pin__gone__rows__position",)),
        ({POSITION_TAG: 3, "release": 1, "sluice_pin_somebody_elses": 1}, False, ()),
    ],
    ids=["missing", "in place", "moved on", "owner gone", "others' tags are left alone"],
)
def test_tags_are_set_moved_and_removed(tags: dict[str, int], is_set: bool, removed: tuple[str, ...]) -> None:
    planned = plan(table(tags=tags), reader(3))

    assert bool(planned.to_set) is is_set
    assert planned.to_remove == removed


@pytest.mark.parametrize(
    ("seen", "who", "reason", "told"),
    [
        (table(), reader(None, knowledge=Knowledge.NOT_STARTED), HoldReason.READER_NOT_STARTED, "read nothing yet"),
        (table(), reader(BEGINNING), HoldReason.READER_NOT_STARTED, "read nothing yet"),
        (
            table(),
            reader(None, knowledge=Knowledge.UNKNOWN, problem="the disk is away"),
            HoldReason.READER_UNKNOWN,
            "the disk is away",
        ),
        (table(snapshots=(4, 5)), reader(3), HoldReason.READER_SNAPSHOT_GONE, "snapshot 3, which was expired"),
        (table(head=2), reader(3), HoldReason.READER_OFF_MAIN, "snapshot 3, which is not an ancestor of main"),
    ],
    ids=["not started", "at the beginning", "unknown", "position expired", "rolled back"],
)
def test_an_unknown_position_holds_expiry(
    seen: TableObservation, who: ReaderObservation, reason: HoldReason, told: str
) -> None:
    planned = plan(seen, who)

    assert [hold.reason for hold in planned.holds] == [reason]
    assert told in planned.holds[0].explanation


def test_the_tag_of_a_reader_at_an_unknown_position_stays() -> None:
    planned = plan(table(tags={POSITION_TAG: 2}), reader(None, knowledge=Knowledge.UNKNOWN))

    assert planned.to_remove == ()


def test_the_tags_of_a_stream_whose_declaration_is_broken_are_obeyed() -> None:
    planned = plan(table(tags={POSITION_TAG: 2}), unreadable=["silver"])

    assert planned.to_remove == ()
    assert planned.keep_since == NOON + 2 * MINUTE


def test_a_tag_of_the_delivery_that_looked_into_history_goes() -> None:
    assert plan(table(tags={DELIVERY_TAG: 2})).to_remove == (DELIVERY_TAG,)


def test_the_tags_of_a_stream_that_still_runs_are_obeyed_although_it_is_not_declared_any_more() -> None:
    planned = plan(table(tags={POSITION_TAG: 2, "sluice_pin__gone__rows__position": 1}), unreadable=["silver"])

    assert planned.to_remove == ("sluice_pin__gone__rows__position",)
    assert planned.keep_since == NOON + 2 * MINUTE


def test_the_newest_snapshot_of_a_direct_stream_and_all_after_it_stay() -> None:
    writer = WriterObservation(stream="bronze", output="rows", position=2)

    planned = plan_pins(seen=table(), readers=(), writers=(writer,))

    assert [pin.tag for pin in planned.to_set] == ["sluice_pin__bronze__rows__written"]
    assert planned.keep_since == NOON + 2 * MINUTE


@pytest.mark.parametrize(
    ("who", "tags", "pinned"),
    [
        (reader(None, knowledge=Knowledge.NOT_STARTED), {}, [3]),
        (reader(BEGINNING), {}, [3]),
        (reader(4), {}, [4]),
        (reader(4), {POSITION_TAG: 3}, [4]),
        (reader(4), {POSITION_TAG: 4}, []),
        (reader(2), {POSITION_TAG: 2}, []),
        (reader(None, knowledge=Knowledge.UNKNOWN), {POSITION_TAG: 3}, []),
    ],
    ids=["not started", "began empty", "new", "moved on", "in place", "cut off", "unknown"],
)
def test_a_stream_pins_where_it_is_itself(who: ReaderObservation, tags: dict[str, int], pinned: list[int]) -> None:
    pins = plan_own_pins(main_line=(5, 4, 3), tags=tags, readers=(who,), writers=())

    assert [pin.snapshot_id for pin in pins] == pinned


def test_there_is_nothing_to_pin_in_a_table_without_a_snapshot() -> None:
    assert plan_own_pins(main_line=(), tags={}, readers=(reader(BEGINNING),), writers=()) == ()


def test_a_static_input_keeps_the_snapshot_that_it_names_and_none_after_it() -> None:
    named = (
        Pin(kind=PinKind.NAMED, stream="gold", endpoint="past", snapshot_id=2),
        Pin(kind=PinKind.AS_OF, stream="gold", endpoint="then", snapshot_id=3, label=as_of_label(NOON)),
    )

    planned = plan_pins(seen=table(), readers=(), named=named)

    assert [pin.tag for pin in planned.to_set] == [
        "sluice_pin__gold__past__named",
        f"sluice_pin__gold__then__as_of{as_of_label(NOON)}",
    ]
    assert planned.keep_since is None
    assert is_tag_of(planned.to_set[1].tag, NOON)
    assert not is_tag_of(planned.to_set[1].tag, NOON + MINUTE)


def test_the_tag_of_an_input_that_cannot_be_read_now_stays_and_holds_no_later_snapshot() -> None:
    tag = "sluice_pin__gold__past__named"

    kept, dropped = plan(table(tags={tag: 2}), unreadable=("gold",)), plan(table(tags={tag: 2}))

    assert (kept.to_remove, kept.keep_since) == ((), None)
    assert dropped.to_remove == (tag,)
