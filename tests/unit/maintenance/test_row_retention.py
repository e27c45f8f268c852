"""Which old rows of a table go, and what they wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.maintenance.test_maintenance_plan import NO_PINS, NOON, POLICY, partition, table

from sluice.declarations.maintenance_declaration import RetentionDeclaration
from sluice.ledger.maintenance_runs import MaintenanceStep
from sluice.maintenance.maintenance_plan import plan_maintenance
from sluice.maintenance.pin_plan import Hold, HoldReason, Knowledge, PinPlan, ReaderObservation
from sluice.maintenance.row_retention import (
    OldFiles,
    RowRetention,
    decide_row_retention,
    read_up_to,
    removal_notes,
    stands_at,
)
from sluice.maintenance.step_decision import StepAction, StepDecision, StepReason
from sluice.sources.iceberg_positions import StreamOffset, TableStep
from sluice.tables.table_observation import ReferenceKind, ReferenceObservation, RemovedRows

KEPT = RetentionDeclaration(column="at", older_than=timedelta(days=90))
OLD = OldFiles(column="at", before=NOON - timedelta(days=90), files=2, rows=5000, data_bytes=1234)
NUMBERS = {11: 1, 12: 2, 13: 3, 14: 4, 15: 5}


def decided(*, policy: RetentionDeclaration | None = KEPT, pins: PinPlan = NO_PINS, **seen: Any) -> StepDecision:
    """The decision about a table with old rows."""
    return decide_row_retention(policy, RowRetention(**{"old": OLD, "agreed": KEPT, **seen}), pins)


def held(reason: HoldReason) -> PinPlan:
    """Pins with a reader that holds expiry."""
    hold = Hold(stream="silver", input="rows", reason=reason, explanation="a reader")
    return replace(NO_PINS, holds=(hold,))


def test_files_with_old_rows_alone_go() -> None:
    decision = decided(old=replace(OLD, mixed=1, unread=3))
    assert (decision.action, decision.reason, decision.gain) == (StepAction.RUN, StepReason.OLD_ROWS, 2)
    assert decision.explanation == (
        "2 files with 5,000 rows (1,234 bytes) hold only rows whose at is before 2026-08-22 12:00:00 UTC; 1 file with "
        "older rows beside others stay until all are old; 3 files more wait for streams that have not read them"
    )
    assert not decision.is_for_spark
    assert decision.options["before"] == OLD.before


@pytest.mark.parametrize(
    ("seen", "pins", "action", "reason"),
    [
        ({"old": None}, NO_PINS, StepAction.SKIP, StepReason.NOT_DECLARED),
        ({"old": replace(OLD, files=0)}, NO_PINS, StepAction.SKIP, StepReason.NO_OLD_ROWS),
        ({"old": replace(OLD, files=0, unread=1)}, NO_PINS, StepAction.SKIP, StepReason.READERS_BEHIND),
        ({"stopping": ("silver would stop",)}, NO_PINS, StepAction.REFUSE, StepReason.READER_STOPS),
        ({"waits_for": "refresh 3 of silver reads"}, NO_PINS, StepAction.SKIP, StepReason.READERS_BEHIND),
        ({"format_version": 3}, NO_PINS, StepAction.REFUSE, StepReason.FORMAT_VERSION),
        ({}, held(HoldReason.READER_NOT_STARTED), StepAction.SKIP, StepReason.READER_NOT_STARTED),
        ({}, held(HoldReason.READER_UNKNOWN), StepAction.REFUSE, StepReason.READER_UNKNOWN),
        ({"old": replace(OLD, files=0)}, held(HoldReason.READER_UNKNOWN), StepAction.SKIP, StepReason.NO_OLD_ROWS),
    ],
)
def test_what_keeps_them(seen: Mapping[str, Any], pins: PinPlan, action: StepAction, reason: StepReason) -> None:
    decision = decided(pins=pins, **seen)
    assert (decision.action, decision.reason) == (action, reason)


def test_without_a_whole_declaration_no_row_goes() -> None:
    assert decided(policy=None).reason is StepReason.NOT_DECLARED
    assert decided(policy=RetentionDeclaration(column="at")).reason is StepReason.NOT_DECLARED
    aged = decided(policy=RetentionDeclaration(older_than=timedelta(days=90)), old=None)
    assert (aged.reason, "but no column by which" in aged.explanation) == (StepReason.NOT_DECLARED, True)


DAYS = timedelta(days=1)
BEFORE = RemovedRows(column="at", before=OLD.before - DAYS, agreed=90 * DAYS)


@pytest.mark.parametrize(
    ("earlier", "rows", "said"),
    [
        (None, 10_000, "no person has agreed yet"),
        (replace(BEFORE, agreed=None), 10_000, "no person has agreed yet"),
        (replace(BEFORE, agreed=91 * DAYS), 10_000, "agreed to 91 days, and 90 days are declared"),
        (BEFORE, 5_500, "more than 90% of the 5,500 rows"),
        (BEFORE, 10_000, None),
        (replace(BEFORE, agreed=9 * DAYS), 10_000, None),
    ],
    ids=["first", "by an earlier version", "a shorter time", "nearly all", "usual", "a longer time"],
)
def test_what_no_person_has_agreed_to_waits(earlier: RemovedRows | None, rows: int, said: str | None) -> None:
    """A typing mistake, and a clock that is far ahead, look like any other policy and time."""
    decision = decided(agreed=None, earlier=earlier, rows=rows)
    if said is None:
        assert decision.action is StepAction.RUN
        assert decision.options["agreed"] == (earlier.agreed if earlier else None)
    else:
        assert (decision.action, decision.reason) == (StepAction.REFUSE, StepReason.NOT_AGREED)
        assert said in decision.explanation
        assert "`sluice table maintain`" in decision.explanation
    here = decided(earlier=earlier, rows=rows)
    assert (here.action, here.options["agreed"]) == (StepAction.RUN, KEPT.older_than)
    other = RetentionDeclaration(column="at", older_than=9 * DAYS)
    assert decided(agreed=other, earlier=earlier, rows=rows).action is decision.action, "another policy was shown"


def test_a_partition_that_goes_is_not_compacted_before() -> None:
    seen = table(partition(9, name="at_day=2026-01-01"), partition(2, name="at_day=2026-11-20"))
    policy = POLICY.model_copy(update={"retention": KEPT})
    old = replace(OLD, files=9, partitions=Counter({"at_day=2026-01-01": 9}))

    def compaction(old: OldFiles) -> StepAction:
        plan = plan_maintenance(
            policy=policy, seen=seen, pins=NO_PINS, now=NOON, retention=RowRetention(old=old, agreed=KEPT)
        )
        assert plan.steps[0].step is MaintenanceStep.REMOVE_OLD_ROWS
        return next(one.action for one in plan.steps if one.step is MaintenanceStep.REWRITE_DATA_FILES)

    assert compaction(old) is StepAction.SKIP
    assert compaction(replace(old, partitions=Counter({"at_day=2026-01-01": 8}))) is StepAction.RUN
    assert compaction(replace(old, files=0)) is StepAction.RUN, "nothing goes now"


def test_snapshots_stay_for_a_day_where_old_rows_go() -> None:
    """Whoever sees that a wrong unit has made young rows old finds them in a snapshot."""

    def expires(retention: RetentionDeclaration | None, *ages: int) -> int:
        """How many snapshots go, of an expiry after ten minutes. ages: of all of them, in minutes."""
        policy = POLICY.model_copy(update={"retention": retention})
        plan = plan_maintenance(policy=policy, seen=table(ages=ages), pins=NO_PINS, now=NOON)
        return next(one.gain for one in plan.steps if one.step is MaintenanceStep.EXPIRE_SNAPSHOTS)

    young, old = (1430, 1420, 3, 2), (1450, 1445, 3, 2)
    assert (expires(KEPT, *young), expires(KEPT, *old)) == (0, 2)
    assert (expires(None, *young), expires(RetentionDeclaration(column="at"), *young)) == (2, 2)


HISTORY = (
    TableStep(snapshot_id=15, operation="append", appended_files=1),
    TableStep(snapshot_id=14, operation="replace"),
    TableStep(snapshot_id=13, operation="append", appended_files=2, total_files=4),
    TableStep(snapshot_id=12, operation="append", appended_files=1),
    TableStep(snapshot_id=11, operation="append", appended_files=1),
)


def reader(snapshot_id: int, position: int | None = None, *, scans: bool = False) -> ReaderObservation:
    """A reader at a snapshot, of which it has read so many files; unset: that is not known."""
    offset = None
    if position is not None:
        offset = StreamOffset(snapshot_id=snapshot_id, position=position, scan_all_files=scans)
    return ReaderObservation(
        stream="silver", input="rows", knowledge=Knowledge.KNOWN, position=snapshot_id, offset=offset
    )


@pytest.mark.parametrize(
    ("readers", "kept", "bound"),
    [
        ((), (), None),
        ((reader(13, 2),), (), 4),
        ((reader(13, 1),), (), 2),
        ((reader(13),), (), 2),
        ((reader(15, 1),), (), 5),
        ((reader(13, 4, scans=True),), (), 4),
        ((reader(13, 3, scans=True),), (), -1),
        ((reader(15, 1), reader(12, 1)), (), 2),
        ((reader(15, 1),), (13,), 2),
        ((reader(99, 1),), (), -1),
        ((), (12,), 1),
    ],
    ids=[
        "no reader",
        "all of its snapshot, and the compaction behind",
        "a part of it",
        "an unknown part",
        "the newest",
        "the whole table",
        "not yet the whole table",
        "the slowest counts",
        "a tag of another one",
        "a snapshot that is gone",
        "a tag alone",
    ],
)
def test_what_every_reader_has_read(
    readers: Sequence[ReaderObservation], kept: Sequence[int], bound: int | None
) -> None:
    assert read_up_to(readers, history=HISTORY, numbers=NUMBERS, kept=kept) == bound


def test_where_others_stand_by_their_tags() -> None:
    tags = (
        "sluice_pin__left__rows__position",
        "sluice_pin__left__rows__named",
        "sluice_pin__known__rows__position",
        "v1",
    )
    references = [ReferenceObservation(name=name, kind=ReferenceKind.TAG, snapshot_id=7) for name in tags]
    assert [(stream, one.name) for stream, one in stands_at(references, ("left",))] == [("left", tags[0])]
    assert list(stands_at(references, ("left", "known"), besides={("left", "rows"), ("known", "other")})) == [
        ("known", references[2])
    ]


def test_a_person_cannot_agree_to_another_column() -> None:
    """The table would say no more what has gone by the first one, and a backfill would take less for all."""
    decision = decided(earlier=replace(BEFORE, column="arrived_at"))
    assert (decision.action, decision.reason) == (StepAction.REFUSE, StepReason.NOT_AGREED)
    assert decision.explanation.endswith("declare the retention by arrived_at, or turn it off")


def test_rows_of_later_commits_count_for_nearly_all() -> None:
    """A commit removes so many files at most: the first lots of all of them would be few."""
    decision = decided(agreed=None, earlier=BEFORE, old=replace(OLD, more=7, more_rows=90_000), rows=100_000)
    assert decision.reason is StepReason.NOT_AGREED


def test_files_without_bounds_and_those_of_later_commits_are_named() -> None:
    decision = decided(old=replace(OLD, unbounded=2, more=3, more_rows=4))
    assert (
        "3 files more with 4 rows go in further commits; 2 files have no bounds of at and stay" in decision.explanation
    )
    assert (decision.options["old_files"], decision.options["old_rows"]) == (5, 5_004), "a person agrees to all"
    none = decided(old=replace(OLD, files=0, unbounded=1))
    assert "1 file have no bounds of at" in none.explanation


def test_of_a_table_of_format_version_1_nothing_counts_as_read() -> None:
    """All its files have the sequence number 0."""
    assert read_up_to((reader(13, 2),), history=HISTORY, numbers=dict.fromkeys(NUMBERS, 0)) == -1


@pytest.mark.parametrize("agreed", [KEPT, None])
def test_a_stream_that_looks_the_table_up_is_named_where_rows_go(agreed: RetentionDeclaration | None) -> None:
    """It never reads the table as a stream, so nothing waits for it."""
    said = "enriched looks the table up, and finds no match any more for old rows"
    assert list(removal_notes([decided(agreed=agreed)], ["enriched"])) == [said]
    assert list(removal_notes([decided(old=replace(OLD, files=0))], ["enriched"])) == []


def test_a_table_without_the_column_is_to_be_changed_first() -> None:
    """It was renamed in the declaration alone."""
    decision = decided(old=replace(OLD, files=0, has_column=False))
    assert decision.reason is StepReason.NO_OLD_ROWS
    assert decision.explanation.startswith("the table has no date or time at yet: `sluice table create`")
