"""Whether a table can be refreshed now, from observations alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sluice.backfill.backfill_plan import TargetReader
from sluice.backfill.intervals import Interval
from sluice.backfill.read_bounds import ShortenedLookup
from sluice.declarations.scalar_types import is_name
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import UnpublishableError
from sluice.ledger.batches import BatchObservation, PublicationKey
from sluice.ledger.held_batches import HeldBatch, HeldDecision
from sluice.ledger.refreshes import RefreshObservation, RefreshState
from sluice.operations import RefusalReason, Stake
from sluice.publication.chain import MarkPosition
from sluice.publication.staged_batch import StagedOutput
from sluice.refresh.refresh_plan import InputToRead, RefreshTargetObservation, plan_refresh
from sluice.refresh.swap_shadow import refuse_older_ledger
from sluice.sources.topic_starts import removed_records
from sluice.sources.unread_input import PartitionBounds
from sluice.stored_keys import is_shadow_name, shadow_name
from sluice.tables.table_observation import RemovedRows

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DECLARED: dict[str, Any] = {
    "stream": "silver_flights",
    "description": "typed flights",
    "owner": "flights",
    "mode": "continuous",
    "trigger": {"processing_time": "2 seconds"},
    "inputs": {"rows": {"stream": {"iceberg": {"table": "bronze.flights"}}}},
    "transformation": {"sql": "silver_flights.sql"},
    "outputs": {"main": {"iceberg": {"table": "silver.flights"}}},
}


def declaration(**changes: Any) -> StreamDeclaration:
    """The declaration of a stream that can be refreshed, with changes."""
    return StreamDeclaration.model_validate(DECLARED | changes)


WITH_QUARANTINE = declaration(quarantine=True, transformation={"python": "flights.py:silver"})
UNHANDLED = declaration(outputs={"main": {"console": {}}})
SEEN = RefreshTargetObservation(
    declaration=declaration(),
    digest="d",
    keeps=timedelta(days=7),
    target="silver.flights",
    generation=1,
    has_published=True,
    rows=1_200,
    merges_on_read=False,
    delete_files=0,
    inputs=(InputToRead(input="rows", what="every row of bronze.flights", rows=1_300, data_bytes=5_000),),
    readers=(),
    other_writers=(),
    newest=None,
)
REJECTED = BatchObservation(
    key=PublicationKey(stream="silver_flights", generation=1, batch=7),
    run_id="r",
    started_at=NOW,
    duration_ms=0,
    input_rows=12,
    published_rows={},
    is_rejected=True,
)
HELD = HeldBatch(
    key=replace(REJECTED.key, batch=8), reason="price_is_positive by 1 of 1 rows of main", rows={"main": 1}
)
OPEN = RefreshObservation(
    number=7,
    identity="1a2b3c4d",
    stream="silver_flights",
    state=RefreshState.BUILDING,
    digest="d",
    leaves=1,
    opens=None,
    keeps=timedelta(days=7),
    keeps_until=None,
    rows=None,
    snapshot_id=None,
    asked_by="me",
    began_at=NOW,
    ended_at=None,
)


def test_a_plan_without_refusals_says_what_it_reads_and_what_it_means_to_readers() -> None:
    readers = (
        TargetReader(stream="gold", input="flights", on_overwrite="skip"),
        TargetReader(stream="lookup", input="flights", on_overwrite=None),
    )
    plan = plan_refresh(replace(SEEN, readers=readers))

    assert not plan.is_refused
    assert list(plan.sentences()) == [
        "Read input rows: every row of bronze.flights; now these are 1,300 rows in 5,000 bytes of files.",
        "Replace all rows of silver.flights, which holds 1,200 rows now, in one commit; until then they stay as they "
        "are.",
        "Publish nothing where fewer rows would come than go, unless `--allow-fewer` is given.",
        "Each input is read exactly as far as silver_flights has read it; what comes later is appended by "
        "silver_flights.",
        "silver_flights continues meanwhile; for the commit it is stopped, and then continues in a new generation.",
        "Keep the earlier content for 7 days: `sluice stream refresh silver_flights --take-back`.",
        "Reader gold (input flights) leaves the overwrite out: its own tables keep what they hold until they are "
        "refreshed or backfilled.",
        "Reader lookup (input flights) looks rows up in it: what it wrote before keeps the former ones.",
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"generation": None}, RefusalReason.NOTHING_PUBLISHED),
        ({"has_published": False}, RefusalReason.NOTHING_PUBLISHED),
        ({"inputs": (InputToRead(input="rows", what="w", problem="it is gone"),)}, RefusalReason.SOURCE_INCOMPLETE),
        ({"other_writers": ("other",)}, RefusalReason.OTHER_WRITERS),
        ({"readers": (TargetReader(stream="r", input="i", on_overwrite="fail"),)}, RefusalReason.READER_STOPS),
        ({"delete_files": 2}, RefusalReason.DELETE_FILES),
        ({"merges_on_read": True}, RefusalReason.DELETE_FILES),
        ({"held": HELD}, RefusalReason.BATCH_HELD),
        ({"held": replace(HELD, decision=HeldDecision.RELEASED), "newest": OPEN}, RefusalReason.BATCH_HELD),
        ({"newest": replace(OPEN, digest="another")}, RefusalReason.OTHER_REFRESH),
        ({"newest": replace(OPEN, state=RefreshState.TAKING_BACK)}, RefusalReason.OTHER_REFRESH),
    ],
)
def test_what_stands_against_a_refresh(change: dict[str, Any], reason: RefusalReason) -> None:
    plan = plan_refresh(replace(SEEN, **change))

    assert [refusal.reason for refusal in plan.refusals] == [reason]
    assert any(sentence.startswith(f"refused ({reason}): ") for sentence in plan.sentences())


def test_the_plan_names_what_comes_back_and_what_may_be_missing_afterwards() -> None:
    day = Interval(start=NOW, end=NOW + timedelta(days=1))
    seen = replace(SEEN, rejections=(REJECTED,), backfilled=(day,), changed_inputs=("rows",))

    sentences = list(plan_refresh(seen).sentences())

    assert (
        "What a person rejected is read again, and its rows become visible unless the transformation leaves them out: "
        "1:7 with 12 rows." in sentences
    )
    assert (
        f"Backfills brought rows into silver.flights that silver_flights may drop as late: {day.spoken}. Search for "
        "gaps afterwards (`sluice stream gaps silver_flights`), and backfill those intervals again." in sentences
    )
    assert any(one.startswith("rows is another input than silver_flights has read so far") for one in sentences)


def test_of_a_stream_that_has_published_nothing_nothing_else_is_said() -> None:
    gone = InputToRead(input="rows", what="w", problem="it is gone")
    plan = plan_refresh(replace(SEEN, generation=None, has_published=False, inputs=(gone,), other_writers=("other",)))

    assert [refusal.reason for refusal in plan.refusals] == [RefusalReason.NOTHING_PUBLISHED]


def test_the_quarantine_of_a_stream_is_replaced_with_its_table() -> None:
    plan = plan_refresh(replace(SEEN, declaration=WITH_QUARANTINE))

    assert not plan.is_refused
    assert (
        "Replace all records of quarantine.silver_flights by those that the new content rejects, right after that. "
        "What a person has discarded stays discarded." in plan.sentences()
    )


def test_a_reader_that_stops_is_named_once() -> None:
    plan = plan_refresh(replace(SEEN, readers=(TargetReader(stream="r", input="i", on_overwrite="fail"),)))

    assert [sentence for sentence in plan.sentences() if "r (input i)" in sentence] == [plan.refusals[0].line]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            {
                "outputs": {"a": {"iceberg": {"table": "a.a"}}, "b": {"iceberg": {"table": "b.b"}}},
                "transformation": {"python": "t.py:f"},
            },
            "has not exactly one output",
        ),
        ({"outputs": {"main": {"console": {}}}}, "has not exactly one output, an Iceberg table"),
        ({"outputs": {"main": {"iceberg": {"table": "a.a", "delivery": "direct"}}}}, "delivers directly"),
        ({"outputs": {"main": {"iceberg": {"table": "a.a", "mode": "complete"}}}}, "has mode `complete`"),
        (
            {"inputs": {"rows": {"stream": {"rate": {"rows_per_second": 1}}}}},
            "reads rate (input rows)",
        ),
        (
            {
                "inputs": {
                    "rows": {"stream": {"iceberg": {"table": "bronze.flights"}}},
                    "known": {"static": {"iceberg": {"table": "silver.flights"}}},
                }
            },
            "reads silver.flights, which it writes",
        ),
    ],
)
def test_what_no_refresh_handles_yet_is_refused_with_a_sentence(change: dict[str, Any], what: str) -> None:
    plan = plan_refresh(replace(SEEN, declaration=declaration(**change)))

    assert [refusal.reason for refusal in plan.refusals] == [RefusalReason.NOT_YET]
    assert f"silver_flights cannot be refreshed yet: it {what}" in plan.refusals[0].sentence


def test_nothing_is_said_about_tables_that_were_not_looked_at() -> None:
    unseen = replace(SEEN, declaration=UNHANDLED, target="", has_published=False, rows=None, inputs=())
    plan = plan_refresh(unseen)

    assert [refusal.reason for refusal in plan.refusals] == [RefusalReason.NOT_YET]
    assert plan.steps == ()


def test_what_no_refresh_handles_any_more_still_says_how_to_give_an_open_one_up() -> None:
    plan = plan_refresh(replace(SEEN, declaration=UNHANDLED, digest="other", newest=OPEN))

    assert [refusal.reason for refusal in plan.refusals] == [RefusalReason.NOT_YET, RefusalReason.OTHER_REFRESH]


def test_an_open_refresh_of_the_same_declaration_goes_on() -> None:
    going_on = plan_refresh(replace(SEEN, newest=OPEN))
    assert next(going_on.sentences()) == "Continue refresh 7 of silver_flights; it is building."
    assert going_on.seen.continues == OPEN
    ended = replace(OPEN, state=RefreshState.SWAPPED, ended_at=NOW)
    assert plan_refresh(replace(SEEN, newest=ended)).seen.continues is None


def test_a_refresh_whose_content_is_visible_is_completed_whatever_stands_against_another_one() -> None:
    swapped = replace(OPEN, state=RefreshState.SWAPPED)
    plan = plan_refresh(replace(SEEN, newest=swapped, other_writers=("other",)))

    assert (plan.is_refused, plan.at_stake) == (False, Stake.NOTHING)
    assert list(plan.sentences()) == [
        "Complete refresh 7: its content is visible, and what it was built in is dropped."
    ]


def test_the_old_content_is_kept_until_a_time() -> None:
    swapped = replace(OPEN, state=RefreshState.SWAPPED, keeps_until=NOW)

    assert swapped.can_be_taken_back(NOW - timedelta(seconds=1))
    assert not swapped.can_be_taken_back(NOW)
    assert not replace(swapped, state=RefreshState.TAKEN_BACK).can_be_taken_back(NOW - timedelta(days=1))


@pytest.mark.parametrize("stream", ["s", "a" * 63, f"{'a' * 46}_{'b' * 16}"])
def test_no_stream_may_be_declared_under_the_name_of_a_shadow(stream: str) -> None:
    name = shadow_name(12, "1a2b3c4d", stream)

    assert (len(name) <= 63, name.endswith("_"), is_shadow_name(name)) == (True, False, True)
    assert is_name(name), "it names a staging table"
    with pytest.raises(ValueError, match="names of this form belong to refreshes"):
        declaration(stream=name)
    assert not is_shadow_name("refresh_of_flights")


def test_a_topic_without_its_first_records_is_named_with_the_oldest_that_is_left() -> None:
    bounds = {"flights": {0: PartitionBounds(first=10, end=20), 1: PartitionBounds(first=0, end=5)}}

    assert list(removed_records(bounds)) == [
        "the oldest record of flights/0 has offset 10; those before it were removed"
    ]


@pytest.mark.parametrize(("state", "opens"), [(RefreshState.BUILDING, None), (RefreshState.SWAPPING, 4)])
def test_a_ledger_that_is_older_than_the_table_swaps_nothing(state: RefreshState, opens: int | None) -> None:
    """It would open a generation that the table has already, and take what is there for the result."""
    output = StagedOutput(stream="silver_flights", output="main", target="silver.flights")
    refresh = replace(OPEN, leaves=3, state=state, opens=opens)

    with pytest.raises(UnpublishableError, match="shows generation 5 of silver_flights, and the ledger knows 3"):
        refuse_older_ledger(mark_in(5), output, refresh)

    refuse_older_ledger(mark_in(3), output, refresh)
    if opens is not None:
        refuse_older_ledger(mark_in(opens), output, refresh)  # the commit of this refresh has landed


def mark_in(generation: int) -> MarkPosition:
    """The mark of a generation."""
    return MarkPosition(generation=generation, batch=7, token=1, end_offsets_digest="d")


def test_a_lookup_that_finds_less_is_named() -> None:
    removed = RemovedRows(column="at", before=NOW)
    lookup = ShortenedLookup(input="carriers", table="silver.carriers", removed=removed)
    (said,) = (one for one in plan_refresh(replace(SEEN, lookups=(lookup,))).sentences() if "Look rows up" in one)
    assert "of silver.carriers (input carriers), rows whose at is before" in said
