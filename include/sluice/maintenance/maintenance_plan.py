"""Decides every step of a table's maintenance, with its action and reason, in the order that is safe.

A dry run prints these decisions; the job carries them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from math import ceil
from typing import Any

from sluice.declarations.maintenance_declaration import (
    CompactionDeclaration,
    ExpiryDeclaration,
    MaintenanceDeclaration,
    ManifestRewriteDeclaration,
)
from sluice.ledger.maintenance_runs import MaintenanceStep
from sluice.maintenance.pin_plan import HoldReason, PinPlan
from sluice.maintenance.reader_costs import ReaderCost
from sluice.tables.table_observation import PartitionObservation, ReferenceKind, TableObservation

SMALL_FILE_SHARE = 0.75
"""A file below this share of the target size is small: Iceberg's own default for `min-file-size-bytes`."""

LARGEST_RUN_FILES = 5_000
"""How many files one run rewrites at most: its plan is held in the driver's memory. The next run does the rest."""

COMMIT_BYTES = 1024**3
"""How much one commit of a compaction replaces, roughly: a conflict then costs minutes of work and not hours."""

MOST_COMMITS = 10
"""How many commits one compaction makes at most; every one adds a snapshot."""

GROUP_FILES = 8
"""How many files of the target size one rewrite job writes at most."""

MOST_BYTES_OF_A_PARTITION = 64 * 1024**2
"""Up to so many bytes of small files a partition is compacted by PyArrow: it makes one file of them in memory, where
their rows take five to ten times as many bytes."""

MOST_BYTES_WITHOUT_SPARK = 512 * 1024**2
"""How much one run compacts by PyArrow at most: a minute or two of one core."""

_SECONDS_OF_A_FILE, _SECONDS_OF_A_MEBIBYTE = 0.01, 0.1
_SPARK_SECONDS, _SPARK_SECONDS_OF_A_MEBIBYTE = 15.0, 0.05
"""What a rewrite costs, roughly, for the order among tables alone; measured by `benchmarks.binpack_time`. Spark's first
seconds are those of a step in an application that may have to start."""


class StepAction(StrEnum):
    """What to do with a step. REFUSE: it is due, but it could harm a reader."""

    RUN = "run"
    SKIP = "skip"
    REFUSE = "refuse"


class StepReason(StrEnum):
    """Why a step is run, skipped or refused."""

    NOT_DECLARED = "not_declared"
    NO_SNAPSHOT = "no_snapshot"
    SMALL_FILES = "small_files"
    FEW_SMALL_FILES = "few_small_files"
    MANY_MANIFESTS = "many_manifests"
    FEW_MANIFESTS = "few_manifests"
    PINS_MOVED = "pins_moved"
    PINS_CURRENT = "pins_current"
    SNAPSHOTS_EXPIRABLE = "snapshots_expirable"
    NOTHING_EXPIRABLE = "nothing_expirable"
    READERS_NEED_SNAPSHOTS = "readers_need_snapshots"
    READER_NOT_STARTED = "reader_not_started"
    READER_UNKNOWN = "reader_unknown"
    READER_SNAPSHOT_GONE = "reader_snapshot_gone"
    READER_OFF_MAIN = "reader_off_main"
    WRITER_LATE = "writer_late"
    OUTSIDE_WINDOW = "outside_window"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecision:
    """What to do with one step, and why.

    options: the arguments of Spark's procedure, by their names.
    is_for_spark: whether Spark carries it out.
    is_sorted: whether a compaction by Spark sorts all rows by the order of the table.
    partitions: those that a compaction by PyArrow rewrites, as paths.
    gain: how many files, manifests or snapshots there are fewer of afterwards, as far as it can be foreseen.
    cost_seconds, cost_bytes: the processor time that it takes, roughly, and what it reads.
    """

    step: MaintenanceStep
    action: StepAction
    reason: StepReason
    explanation: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_for_spark: bool = False
    is_sorted: bool = False
    partitions: tuple[str, ...] = ()
    gain: int = 0
    cost_seconds: float = 0.0
    cost_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePlan:
    """The observation of one table, and the decisions about its steps.

    content_check_bytes: how much may be read to compare the rows before and after rewrites.
    costs: what each reader holds back.
    notes: sentences about the readers.
    readers: how many inputs of streams read the table.
    """

    seen: TableObservation
    pins: PinPlan
    steps: tuple[StepDecision, ...]
    content_check_bytes: int
    costs: tuple[ReaderCost, ...] = ()
    notes: tuple[str, ...] = ()
    readers: int = 0

    @property
    def due(self) -> tuple[StepDecision, ...]:
        """The steps that are to be done."""
        return tuple(decision for decision in self.steps if decision.action is StepAction.RUN)

    @property
    def has_work(self) -> bool:
        """Whether a step is to be done."""
        return bool(self.due)

    @property
    def needs_spark(self) -> bool:
        """Whether a step needs Spark, so that an application is asked only then."""
        return any(decision.is_for_spark for decision in self.due)

    @property
    def is_compacted_here(self) -> bool:
        """Whether files are to be rewritten without Spark."""
        return any(one.step is MaintenanceStep.REWRITE_DATA_FILES and not one.is_for_spark for one in self.due)

    @property
    def cost_seconds(self) -> float:
        """The processor time that the due steps take, roughly."""
        return sum(decision.cost_seconds for decision in self.due)

    @property
    def cost_bytes(self) -> int:
        """What the due steps read."""
        return sum(decision.cost_bytes for decision in self.due)

    @property
    def worth(self) -> float:
        """What the due steps gain for their cost, more where more streams read the table: ranks the tables."""
        gain = sum(decision.gain for decision in self.due) * (1 + self.readers)
        return gain / max(self.cost_seconds, _SECONDS_OF_A_FILE)

    def without_spark(self) -> MaintenancePlan:
        """The plan without the steps that need Spark."""
        return replace(self, steps=tuple(one for one in self.steps if not one.is_for_spark))


def small_file_bytes(policy: MaintenanceDeclaration) -> int:
    """The size below which a data file is small; without a compaction policy, by the default one."""
    compaction = policy.compaction or CompactionDeclaration()
    return int(compaction.target_file_bytes * SMALL_FILE_SHARE)


def plan_maintenance(
    *, policy: MaintenanceDeclaration, seen: TableObservation, pins: PinPlan, now: datetime
) -> MaintenancePlan:
    """Decide every step for a table as it was observed at `now`."""
    steps = (
        _decide_compaction(policy.compaction, seen),
        _decide_manifest_rewrite(policy.manifest_rewrite, seen),
        _decide_pins(policy.expiry, pins),
        _decide_expiry(policy.expiry, seen, pins, now),
    )
    plan = MaintenancePlan(seen=seen, pins=pins, steps=steps, content_check_bytes=int(policy.content_check_bytes))
    window = policy.window
    if window is None or window.holds(now):
        return plan
    return _postponed(plan, StepReason.OUTSIDE_WINDOW, f"put off until its window, {window}")


def put_off(plan: MaintenancePlan, *, late_writers: tuple[str, ...]) -> MaintenancePlan:
    """Postpone the steps that would compete with late writers.

    Parameters
    ----------
    late_writers: the streams that write the table, are late, and declare that its maintenance waits for them.
    """
    if not late_writers:
        return plan
    why = f"put off, because {' and '.join(late_writers)} write it and are late"
    return _postponed(plan, StepReason.WRITER_LATE, why)


def _postponed(plan: MaintenancePlan, reason: StepReason, why: str) -> MaintenancePlan:
    """The plan without its due steps. Pins are moved nevertheless: readers need them."""
    steps = tuple(
        _skip(decision.step, reason, why)
        if decision.action is StepAction.RUN and decision.step is not MaintenanceStep.PIN_SNAPSHOTS
        else decision
        for decision in plan.steps
    )
    return replace(plan, steps=steps)


def expirable_snapshots(seen: TableObservation, *, cutoff: datetime, retain_last: int) -> tuple[int, ...]:
    """The snapshots that `expire_snapshots` would remove, by Iceberg's rules.

    Each branch keeps its newest `retain_last` snapshots and all following ones that are not older than `cutoff`; a tag
    keeps its snapshot; a snapshot that no branch reaches is kept until it is older than `cutoff`.
    Source: org.apache.iceberg.RemoveSnapshots.
    """
    by_id = {snapshot.snapshot_id: snapshot for snapshot in seen.snapshots}
    kept: set[int] = {reference.snapshot_id for reference in seen.references}
    reached: set[int] = set(kept)
    for reference in seen.references:
        current = by_id.get(reference.snapshot_id) if reference.kind is ReferenceKind.BRANCH else None
        count, keeping = 0, True
        while current is not None:
            keeping = keeping and (count < retain_last or current.committed_at >= cutoff)
            reached.add(current.snapshot_id)
            if keeping:
                kept.add(current.snapshot_id)
                count += 1
            current = by_id.get(current.parent_id) if current.parent_id is not None else None
    return tuple(
        snapshot.snapshot_id
        for snapshot in seen.snapshots
        if snapshot.snapshot_id not in kept and (snapshot.snapshot_id in reached or snapshot.committed_at < cutoff)
    )


def _decide_compaction(policy: CompactionDeclaration | None, seen: TableObservation) -> StepDecision:
    step = MaintenanceStep.REWRITE_DATA_FILES
    if policy is None:
        return _skip(step, StepReason.NOT_DECLARED, "the table declares no compaction")
    if seen.snapshot_id is None:
        return _skip(step, StepReason.NO_SNAPSHOT, "the table has no snapshot yet")
    due = [partition for partition in seen.partitions if _is_due(partition, policy)]
    if not due:
        return _skip(
            step,
            StepReason.FEW_SMALL_FILES,
            f"{seen.small_files} of {seen.data_files} files are small, and no partition has {policy.min_input_files}",
        )
    files = sum(partition.small_files for partition in due)
    rewritten_bytes = sum(partition.small_bytes for partition in due)
    why_spark = _why_spark(policy, seen, due)
    by = f", by Spark because of {why_spark}" if why_spark else ""
    mebibytes = rewritten_bytes / 1024**2
    return StepDecision(
        step=step,
        action=StepAction.RUN,
        reason=StepReason.SMALL_FILES,
        explanation=(
            f"{files} small files ({rewritten_bytes} bytes) in {len(due)} of {len(seen.partitions)} partitions{by}"
        ),
        options=_compaction_options(policy, rewritten_bytes),
        is_for_spark=bool(why_spark),
        is_sorted=bool(why_spark) and policy.strategy == "sort",
        partitions=tuple(partition.partition for partition in due),
        gain=sum(_saved_files(partition, policy) for partition in due),
        cost_seconds=(
            _SPARK_SECONDS + mebibytes * _SPARK_SECONDS_OF_A_MEBIBYTE
            if why_spark
            else files * _SECONDS_OF_A_FILE + mebibytes * _SECONDS_OF_A_MEBIBYTE
        ),
        cost_bytes=rewritten_bytes,
    )


def _is_due(partition: PartitionObservation, policy: CompactionDeclaration) -> bool:
    """Iceberg rewrites a group of enough small files, or of several that make more than one full file. Without a file
    fewer afterwards the same files would be rewritten by every run."""
    many = partition.small_files >= policy.min_input_files
    several = partition.small_files > 1 and partition.small_bytes > policy.target_file_bytes
    return (many or several) and _saved_files(partition, policy) > 0


def _saved_files(partition: PartitionObservation, policy: CompactionDeclaration) -> int:
    return partition.small_files - max(1, ceil(partition.small_bytes / policy.target_file_bytes))


def _why_spark(policy: CompactionDeclaration, seen: TableObservation, due: Sequence[PartitionObservation]) -> str:
    """What needs Spark for a compaction; empty when PyArrow does it, which sorts the rows of each file by itself."""
    if seen.rewrite_limits:
        return " and ".join(seen.rewrite_limits)
    if any(partition.small_bytes > MOST_BYTES_OF_A_PARTITION for partition in due):
        return "the size of a partition"
    if policy.strategy == "sort" and any(partition.small_bytes > seen.small_file_bytes for partition in due):
        return "the order of rows over several files"
    if sum(partition.small_bytes for partition in due) > MOST_BYTES_WITHOUT_SPARK:
        return "their size"
    if sum(partition.small_files for partition in due) > LARGEST_RUN_FILES:
        return "their number"
    return ""


def _compaction_options(policy: CompactionDeclaration, rewritten_bytes: int) -> Mapping[str, str]:
    """Source: https://iceberg.apache.org/docs/latest/spark-procedures/#rewrite_data_files"""
    commits = min(MOST_COMMITS, ceil(rewritten_bytes / COMMIT_BYTES))
    options: dict[str, object] = {
        "target-file-size-bytes": policy.target_file_bytes,
        "min-file-size-bytes": int(policy.target_file_bytes * SMALL_FILE_SHARE),
        "min-input-files": policy.min_input_files,
        "max-file-group-size-bytes": GROUP_FILES * policy.target_file_bytes,
        "max-files-to-rewrite": LARGEST_RUN_FILES,
    }
    if commits > 1:
        options |= {"partial-progress.enabled": "true", "partial-progress.max-commits": commits}
    return {name: str(value) for name, value in options.items()}


def _decide_manifest_rewrite(policy: ManifestRewriteDeclaration | None, seen: TableObservation) -> StepDecision:
    step = MaintenanceStep.REWRITE_MANIFESTS
    if policy is None:
        return _skip(step, StepReason.NOT_DECLARED, "the table declares no manifest rewrite")
    counted = f"{seen.manifests} manifests; from {policy.min_manifests} on they are rewritten"
    if seen.manifests < policy.min_manifests:
        return _skip(step, StepReason.FEW_MANIFESTS, counted)
    return StepDecision(
        step=step,
        action=StepAction.RUN,
        reason=StepReason.MANY_MANIFESTS,
        explanation=counted,
        options={"min_manifests": policy.min_manifests},
        is_for_spark=True,
        gain=seen.manifests - 1,
        cost_seconds=_SPARK_SECONDS,
    )


def _decide_pins(policy: ExpiryDeclaration | None, pins: PinPlan) -> StepDecision:
    step = MaintenanceStep.PIN_SNAPSHOTS
    if policy is None:
        return _skip(step, StepReason.NOT_DECLARED, "the table declares no expiry")
    if pins.is_current:
        return _skip(step, StepReason.PINS_CURRENT, f"{len(pins.pins)} pins are where they are to be")
    moved = f"{len(pins.to_set)} to set, {len(pins.to_remove)} to remove, {len(pins.pins)} in all"
    if pins.properties:
        moved += "; the table asks every expiry to keep what its readers need"
    return StepDecision(step=step, action=StepAction.RUN, reason=StepReason.PINS_MOVED, explanation=moved)


def _decide_expiry(
    policy: ExpiryDeclaration | None, seen: TableObservation, pins: PinPlan, now: datetime
) -> StepDecision:
    step = MaintenanceStep.EXPIRE_SNAPSHOTS
    if policy is None:
        return _skip(step, StepReason.NOT_DECLARED, "the table declares no expiry")
    wanted = now - policy.older_than
    old = expirable_snapshots(seen, cutoff=wanted, retain_last=policy.retain_last)
    if not old:
        return _skip(step, StepReason.NOTHING_EXPIRABLE, f"none of {len(seen.snapshots)} snapshots is old enough")
    if pins.holds:
        return _held(step, pins)
    cutoff = wanted if pins.keep_since is None else min(wanted, pins.keep_since)
    free = set(expirable_snapshots(seen, cutoff=cutoff, retain_last=policy.retain_last))
    free -= {pin.snapshot_id for pin in pins.pins}
    if not free:
        since = f"{pins.keep_since:%Y-%m-%d %H:%M:%S %Z}" if pins.keep_since else "now"
        return _skip(
            step, StepReason.READERS_NEED_SNAPSHOTS, f"{len(old)} snapshots are old, readers need all since {since}"
        )
    return StepDecision(
        step=step,
        action=StepAction.RUN,
        reason=StepReason.SNAPSHOTS_EXPIRABLE,
        explanation=f"{len(free)} of {len(seen.snapshots)} snapshots are older than {cutoff:%Y-%m-%d %H:%M:%S %Z}",
        options={"older_than": cutoff, "retain_last": policy.retain_last},
        is_for_spark=True,
        gain=len(free),
        cost_seconds=_SPARK_SECONDS,
    )


def _held(step: MaintenanceStep, pins: PinPlan) -> StepDecision:
    """Expiry is skipped while a reader has not started, and refused when the position of a reader is unknown."""
    worst = next((hold for hold in pins.holds if hold.reason is not HoldReason.READER_NOT_STARTED), pins.holds[0])
    waits = worst.reason is HoldReason.READER_NOT_STARTED
    return StepDecision(
        step=step,
        action=StepAction.SKIP if waits else StepAction.REFUSE,
        reason=StepReason(worst.reason),
        explanation=worst.explanation,
    )


def _skip(step: MaintenanceStep, reason: StepReason, explanation: str) -> StepDecision:
    return StepDecision(step=step, action=StepAction.SKIP, reason=reason, explanation=explanation)
