"""What is done for a table, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ByteSize

from sluice.declarations.maintenance_declaration import (
    CompactionDeclaration,
    ExpiryDeclaration,
    MaintenanceDeclaration,
    MaintenanceWindow,
    ManifestRewriteDeclaration,
    OrphanRemovalDeclaration,
    RetentionDeclaration,
    StatisticsDeclaration,
)
from sluice.ledger.maintenance_runs import MaintenanceStep
from sluice.maintenance.compaction_plan import small_file_bytes
from sluice.maintenance.maintenance_plan import (
    expirable_snapshots,
    plan_maintenance,
    put_off,
)
from sluice.maintenance.pin_plan import Hold, HoldReason, Pin, PinKind, PinPlan
from sluice.maintenance.row_retention import OldFiles, RowRetention
from sluice.maintenance.step_decision import StepAction, StepDecision, StepReason
from sluice.tables.table_observation import (
    PartitionObservation,
    ReferenceKind,
    ReferenceObservation,
    SnapshotObservation,
    TableObservation,
)

MIB = 1024**2
NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
RETENTION = RetentionDeclaration(column="at", older_than=timedelta(days=90))
POLICY = MaintenanceDeclaration(
    compaction=CompactionDeclaration(target_file_bytes=ByteSize(64 * MIB), min_input_files=5),
    manifest_rewrite=ManifestRewriteDeclaration(min_manifests=20),
    expiry=ExpiryDeclaration(older_than=timedelta(minutes=10), retain_last=2),
    orphan_removal=OrphanRemovalDeclaration(),
)
EVERYTHING = POLICY.model_copy(update={"statistics": StatisticsDeclaration(), "retention": RETENTION})
OLD_ROWS = RowRetention(old=OldFiles(column="at", before=NOON, files=1), agreed=RETENTION)
NO_PINS = PinPlan(pins=(), to_set=(), to_remove=(), holds=(), keep_since=None)


def partition(small_files: int, *, small_bytes: int = MIB, large_files: int = 0, name: str = "day=1") -> Any:
    """A partition with so many small files."""
    return PartitionObservation(
        partition=name,
        data_files=small_files + large_files,
        data_bytes=small_bytes + large_files * 64 * MIB,
        small_files=small_files,
        small_bytes=small_bytes,
    )


def table(
    *partitions: PartitionObservation,
    ages: Sequence[int] = (30, 20, 1),
    manifests: int = 3,
    references: Sequence[ReferenceObservation] = (),
) -> TableObservation:
    """A table whose snapshots, numbered from 1, are so many minutes old, each the parent of the next."""
    snapshots = tuple(
        SnapshotObservation(
            snapshot_id=number,
            parent_id=number - 1 or None,
            committed_at=NOON - timedelta(minutes=age),
            operation="append",
        )
        for number, age in enumerate(ages, start=1)
    )
    main = [ReferenceObservation(name="main", kind=ReferenceKind.BRANCH, snapshot_id=len(ages))] if ages else []
    return TableObservation(
        table="bronze.rows",
        observed_at=NOON,
        metadata_location="s3://lakehouse/bronze/rows/metadata/v1.metadata.json",
        snapshot_id=len(ages) or None,
        committed_at=snapshots[-1].committed_at if snapshots else None,
        rows=100,
        small_file_bytes=48 * MIB,
        partitions=tuple(partitions),
        delete_files=0,
        manifests=manifests,
        snapshots=snapshots,
        references=(*main, *references),
    )


def decide(
    step: MaintenanceStep,
    seen: TableObservation,
    *,
    policy: MaintenanceDeclaration = POLICY,
    pins: PinPlan = NO_PINS,
) -> StepDecision:
    """The decision of one step at noon."""
    planned = plan_maintenance(policy=policy, seen=seen, pins=pins, now=NOON)
    return next(decision for decision in planned.steps if decision.step is step)


def test_the_steps_come_in_the_safe_order() -> None:
    planned = plan_maintenance(policy=POLICY, seen=table(), pins=NO_PINS, now=NOON)

    assert [decision.step for decision in planned.steps] == list(MaintenanceStep)


@pytest.mark.parametrize(
    ("partitions", "action", "reason"),
    [
        ([partition(5)], StepAction.RUN, StepReason.SMALL_FILES),
        ([partition(4)], StepAction.SKIP, StepReason.FEW_SMALL_FILES),
        ([partition(4), partition(4, name="day=2")], StepAction.SKIP, StepReason.FEW_SMALL_FILES),
        ([partition(3, small_bytes=70 * MIB)], StepAction.RUN, StepReason.SMALL_FILES),
        ([partition(2, small_bytes=70 * MIB)], StepAction.SKIP, StepReason.FEW_SMALL_FILES),
        ([partition(0, small_bytes=0, large_files=9)], StepAction.SKIP, StepReason.FEW_SMALL_FILES),
        ([], StepAction.SKIP, StepReason.FEW_SMALL_FILES),
    ],
    ids=[
        "enough",
        "too few",
        "too few in each partition",
        "three that make two",
        "two that would stay two",
        "all full-grown",
        "no file",
    ],
)
def test_compaction(partitions: list[PartitionObservation], action: StepAction, reason: StepReason) -> None:
    decision = decide(MaintenanceStep.REWRITE_DATA_FILES, table(*partitions))

    assert (decision.action, decision.reason) == (action, reason)


def test_a_compaction_is_bounded() -> None:
    decision = decide(MaintenanceStep.REWRITE_DATA_FILES, table(partition(5)))

    assert decision.options == {
        "target-file-size-bytes": str(64 * MIB),
        "min-file-size-bytes": str(48 * MIB),
        "min-input-files": "5",
        "max-file-group-size-bytes": str(512 * MIB),
        "max-files-to-rewrite": "5000",
        "delete-ratio-threshold": "0.3",
    }
    assert decision.explanation == "5 small files (1048576 bytes) in 1 of 1 partitions"


def test_what_counts_as_small_is_what_the_compaction_rewrites() -> None:
    assert small_file_bytes(POLICY) == 48 * MIB


@pytest.mark.parametrize(("manifests", "action"), [(19, StepAction.SKIP), (20, StepAction.RUN)], ids=["few", "enough"])
def test_manifest_rewrite(manifests: int, action: StepAction) -> None:
    assert decide(MaintenanceStep.REWRITE_MANIFESTS, table(manifests=manifests)).action is action


def test_a_table_without_a_policy_is_left_alone() -> None:
    nothing = MaintenanceDeclaration(compaction=None, manifest_rewrite=None, expiry=None)

    planned = plan_maintenance(policy=nothing, seen=table(partition(50), manifests=500), pins=NO_PINS, now=NOON)

    assert {decision.reason for decision in planned.steps} == {StepReason.NOT_DECLARED}
    assert not planned.needs_spark


def test_a_table_without_a_snapshot_is_left_alone() -> None:
    planned = plan_maintenance(policy=POLICY, seen=table(ages=()), pins=NO_PINS, now=NOON)

    assert {decision.action for decision in planned.steps} == {StepAction.SKIP}


def pins(**changes: Any) -> PinPlan:
    """A plan of pins with some of its parts set."""
    return PinPlan(**{"pins": (), "to_set": (), "to_remove": (), "holds": (), "keep_since": None, **changes})


def hold(reason: HoldReason) -> Hold:
    """Somebody who holds expiry back."""
    return Hold(stream="silver", input="rows", reason=reason, explanation=f"because {reason}")


PIN_2 = Pin(kind=PinKind.POSITION, stream="silver", endpoint="rows", snapshot_id=2)


@pytest.mark.parametrize(
    ("ages", "planned_pins", "action", "reason"),
    [
        ((60, 50, 40, 1), NO_PINS, StepAction.RUN, StepReason.SNAPSHOTS_EXPIRABLE),
        ((9, 8, 7, 1), NO_PINS, StepAction.SKIP, StepReason.NOTHING_EXPIRABLE),
        ((60, 50), NO_PINS, StepAction.SKIP, StepReason.NOTHING_EXPIRABLE),
        (
            (60, 50, 40, 1),
            pins(keep_since=NOON - timedelta(minutes=50)),
            StepAction.RUN,
            StepReason.SNAPSHOTS_EXPIRABLE,
        ),
        (
            (60, 50, 40, 1),
            pins(keep_since=NOON - timedelta(minutes=60)),
            StepAction.SKIP,
            StepReason.READERS_NEED_SNAPSHOTS,
        ),
        (
            (60, 50, 40, 1),
            pins(holds=(hold(HoldReason.READER_NOT_STARTED),)),
            StepAction.SKIP,
            StepReason.READER_NOT_STARTED,
        ),
        (
            (60, 50, 40, 1),
            pins(holds=(hold(HoldReason.READER_NOT_STARTED), hold(HoldReason.READER_UNKNOWN))),
            StepAction.REFUSE,
            StepReason.READER_UNKNOWN,
        ),
        (
            (60, 50, 40, 1),
            pins(holds=(hold(HoldReason.READER_SNAPSHOT_GONE),)),
            StepAction.REFUSE,
            StepReason.READER_SNAPSHOT_GONE,
        ),
        (
            (9, 8, 7, 1),
            pins(holds=(hold(HoldReason.READER_UNKNOWN),)),
            StepAction.SKIP,
            StepReason.NOTHING_EXPIRABLE,
        ),
        ((60, 50, 40), pins(pins=(PIN_2,)), StepAction.RUN, StepReason.SNAPSHOTS_EXPIRABLE),
    ],
    ids=[
        "old ones go",
        "all are young",
        "the newest stay whatever their age",
        "readers need some",
        "readers need all",
        "a reader has not started",
        "a reader is unknown",
        "a reader has lost its place",
        "unknown, and nothing to lose",
        "a pin keeps one of two",
    ],
)
def test_expiry(ages: Sequence[int], planned_pins: PinPlan, action: StepAction, reason: StepReason) -> None:
    decision = decide(MaintenanceStep.EXPIRE_SNAPSHOTS, table(ages=ages), pins=planned_pins)

    assert (decision.action, decision.reason) == (action, reason)


def test_expiry_never_reaches_what_a_reader_needs() -> None:
    needed = NOON - timedelta(minutes=50)

    decision = decide(MaintenanceStep.EXPIRE_SNAPSHOTS, table(ages=(60, 50, 40, 1)), pins=pins(keep_since=needed))

    assert decision.options == {"older_than": needed, "retain_last": 2}


@pytest.mark.parametrize(
    ("planned_pins", "action"),
    [
        (NO_PINS, StepAction.SKIP),
        (pins(pins=(PIN_2,), to_set=(PIN_2,)), StepAction.RUN),
        (pins(to_remove=("sluice_pin__gone__rows__position",)), StepAction.RUN),
    ],
    ids=["in place", "to set", "to remove"],
)
def test_pins(planned_pins: PinPlan, action: StepAction) -> None:
    assert decide(MaintenanceStep.PIN_SNAPSHOTS, table(), pins=planned_pins).action is action


def test_spark_is_needed_only_for_what_only_spark_can_do() -> None:
    moved = pins(pins=(PIN_2,), to_set=(PIN_2,))

    def needs_spark(seen: TableObservation, planned_pins: PinPlan = NO_PINS) -> bool:
        return plan_maintenance(policy=POLICY, seen=seen, pins=planned_pins, now=NOON).needs_spark

    assert not needs_spark(table(ages=(1,)), moved)
    assert needs_spark(table(ages=(60, 50, 40, 1)))
    assert needs_spark(table(ages=(1,), manifests=20))


@pytest.mark.parametrize(
    ("seen", "because"),
    [
        (table(partition(5)), ""),
        (table(partition(5, small_bytes=64 * MIB)), ""),
        (table(partition(5, small_bytes=64 * MIB + 1)), "the size of a partition"),
        (table(*(partition(5, small_bytes=60 * MIB, name=f"day={day}") for day in range(9))), "their size"),
        (table(replace(partition(5_001), filter="{}")), "their number"),
        (replace(table(partition(5)), rewrite_limits=("bloom filters", "x")), "bloom filters and x"),
    ],
    ids=["small", "the largest", "too large", "too much in all", "too many", "what PyArrow cannot keep"],
)
def test_small_files_are_put_together_without_spark_where_that_keeps_everything(
    seen: TableObservation, because: str
) -> None:
    decision = decide(MaintenanceStep.REWRITE_DATA_FILES, seen)

    assert (decision.action, decision.is_for_spark) == (StepAction.RUN, bool(because))
    assert decision.explanation.partition(", by Spark because of ")[2] == because
    assert decision.partitions == tuple(one.partition for one in seen.partitions)


SORTED = CompactionDeclaration(target_file_bytes=ByteSize(64 * MIB), min_input_files=5, strategy="sort")


@pytest.mark.parametrize(
    ("seen", "because"),
    [
        (table(partition(5, small_bytes=48 * MIB)), ""),
        (table(partition(5, small_bytes=48 * MIB + 1)), "the order of rows over several files"),
        (replace(table(partition(5)), rewrite_limits=("bloom filters",)), "bloom filters"),
    ],
    ids=["one file", "several files", "what PyArrow cannot keep"],
)
def test_rows_are_sorted_by_spark_where_pyarrow_writes_several_files(seen: TableObservation, because: str) -> None:
    policy = POLICY.model_copy(update={"compaction": SORTED})
    (_, decision, *_) = plan_maintenance(policy=policy, seen=seen, pins=NO_PINS, now=NOON).steps

    assert (decision.action, decision.is_for_spark) == (StepAction.RUN, bool(because))
    assert decision.is_sorted is bool(because)
    assert decision.explanation.partition(", by Spark because of ")[2] == because


def window(start: str, end: str, **more: Any) -> MaintenanceWindow:
    """A window of a declaration."""
    return MaintenanceWindow.model_validate({"start": start, "end": end, **more})


@pytest.mark.parametrize(
    ("declared", "is_open"),
    [
        (window("12:00", "12:01"), True),
        (window("11:00", "12:00"), False),
        (window("22:00", "12:01"), True),
        (window("22:00", "12:00"), False),
        (window("13:00", "14:00", time_zone="Europe/Berlin"), True),
        (window("12:00", "13:00", days=["friday"]), True),
        (window("12:00", "13:00", days=["saturday"]), False),
        (window("22:00", "13:00", days=["thursday"]), True),
        (window("22:00", "13:00", days=["friday"]), False),
    ],
    ids=["begins", "ends", "over night", "ended", "zone", "its day", "another day", "since yesterday", "not yet"],
)
def test_outside_its_window_a_table_is_left_alone_but_for_its_pins(declared: MaintenanceWindow, is_open: bool) -> None:
    policy = EVERYTHING.model_copy(update={"window": declared})
    moved = pins(pins=(PIN_2,), to_set=(PIN_2,))
    seen, long_ago = table(partition(9), ages=(9000, 8000, 1), manifests=30), NOON - timedelta(days=7)
    plan = plan_maintenance(policy=policy, seen=seen, pins=moved, now=NOON, looked_at=long_ago, retention=OLD_ROWS)

    due = {decision.step for decision in plan.due}
    assert due == (set(MaintenanceStep) if is_open else {MaintenanceStep.PIN_SNAPSHOTS})
    if not is_open:
        assert plan.steps[1].reason is StepReason.OUTSIDE_WINDOW
        assert plan.steps[1].explanation == f"put off until its window, {declared}"


def test_expirable_snapshots_follow_icebergs_rules() -> None:
    tag = ReferenceObservation(name="release", kind=ReferenceKind.TAG, snapshot_id=2)
    seen = table(ages=(60, 50, 40, 30, 1), references=(tag,))

    assert expirable_snapshots(seen, cutoff=NOON - timedelta(minutes=35), retain_last=1) == (1, 3)
    assert expirable_snapshots(seen, cutoff=NOON, retain_last=4) == (1,)


def test_a_late_writer_puts_off_what_takes_commits_and_machine_from_it_and_no_pin() -> None:
    moved = PinPlan(
        pins=(),
        to_set=(),
        to_remove=("old",),
        holds=(),
        keep_since=None,
    )
    seen = table(partition(9), ages=(9000, 8000, 7000, 1), manifests=30)
    planned = plan_maintenance(
        policy=EVERYTHING, seen=seen, pins=moved, now=NOON, looked_at=NOON - timedelta(days=7), retention=OLD_ROWS
    )
    due = {decision.step for decision in planned.steps if decision.action is StepAction.RUN}
    assert due == set(MaintenanceStep)
    assert put_off(planned, late_writers=()) is planned
    late = {decision.step: decision for decision in put_off(planned, late_writers=("bronze_rows",)).steps}
    for step, decision in late.items():
        if step is MaintenanceStep.PIN_SNAPSHOTS:
            assert decision.action is StepAction.RUN
        else:
            assert (decision.action, decision.reason) == (StepAction.SKIP, StepReason.WRITER_LATE)
            assert decision.explanation == "put off, because bronze_rows write it and are late"
