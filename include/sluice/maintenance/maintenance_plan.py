"""Decides every step of a table's maintenance, with its action and reason, in the order that is safe.

A dry run prints these decisions; the job carries them out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sluice.declarations.maintenance_declaration import (
    ExpiryDeclaration,
    MaintenanceDeclaration,
    ManifestRewriteDeclaration,
    OrphanRemovalDeclaration,
)
from sluice.declarations.scalar_types import duration_words
from sluice.ledger.maintenance_runs import MaintenanceStep, StepObservation
from sluice.maintenance import row_retention
from sluice.maintenance.compaction_plan import decide_compaction
from sluice.maintenance.pin_plan import PinPlan, ReaderCost
from sluice.maintenance.retention_plan import old_references, without
from sluice.maintenance.row_retention import NO_RETENTION, RowRetention, decide_row_retention, left_after
from sluice.maintenance.statistics_plan import decide_statistics
from sluice.maintenance.step_decision import (
    SECONDS_OF_A_FILE,
    SPARK_SECONDS,
    StepAction,
    StepDecision,
    StepReason,
    held,
    skipped,
)
from sluice.tables.table_observation import ReferenceKind, ReferenceObservation, TableObservation


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
    def has_work_here(self) -> bool:
        """Whether files are to be rewritten or searched for without Spark."""
        return any(one.step is not MaintenanceStep.PIN_SNAPSHOTS and not one.is_for_spark for one in self.due)

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
        return gain / max(self.cost_seconds, SECONDS_OF_A_FILE)

    def without_spark(self) -> MaintenancePlan:
        """The plan without the steps that need Spark."""
        return replace(self, steps=tuple(one for one in self.steps if not one.is_for_spark))


def plan_maintenance(
    *,
    policy: MaintenanceDeclaration,
    seen: TableObservation,
    pins: PinPlan,
    now: datetime,
    looked_at: datetime | None = None,
    named_tags: Collection[str] | None = (),
    retention: RowRetention = NO_RETENTION,
    computed: StepObservation | None = None,
) -> MaintenancePlan:
    """Decide every step for a table as it was observed at `now`.

    Parameters
    ----------
    named_tags: those that inputs name; unset while a stream may read any.
    looked_at: when the table was last searched for files that dead writers left behind; unset: never.
    retention: what decides about old rows, where the table declares that they go.
    computed: what came of the newest statistics; unset: there were none.
    """
    old_rows = decide_row_retention(policy.retention, retention, pins)
    steps = (
        old_rows,
        decide_compaction(policy.compaction, left_after(seen, old_rows, retention), now),
        _decide_manifest_rewrite(policy.manifest_rewrite, seen),
        _decide_pins(policy.expiry, pins),
        _decide_expiry(expiry_of(policy), seen, pins, now, named_tags=named_tags),
        _decide_orphan_removal(policy.orphan_removal, seen, looked_at, now),
        decide_statistics(policy.statistics, seen, now, tried=computed),
    )
    plan = MaintenancePlan(seen=seen, pins=pins, steps=steps, content_check_bytes=int(policy.content_check_bytes))
    window = policy.window
    if window is None or window.holds(now):
        return plan
    return _postponed(plan, StepReason.OUTSIDE_WINDOW, f"put off until its window, {window}")


def expiry_of(policy: MaintenanceDeclaration) -> ExpiryDeclaration | None:
    """The expiry of a table. Where old rows go, snapshots stay for a day at least: a person has it to see what went."""
    expiry, retention = policy.expiry, policy.retention
    if expiry is None or retention is None or not retention.is_whole:
        return expiry
    return expiry.model_copy(update={"older_than": max(expiry.older_than, row_retention.ARRIVAL_GRACE)})


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
        skipped(decision.step, reason, why)
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


def _decide_manifest_rewrite(policy: ManifestRewriteDeclaration | None, seen: TableObservation) -> StepDecision:
    step = MaintenanceStep.REWRITE_MANIFESTS
    if policy is None:
        return skipped(step, StepReason.NOT_DECLARED, "the table declares no manifest rewrite")
    counted = f"{seen.manifests} manifests; from {policy.min_manifests} on they are rewritten"
    if seen.manifests < policy.min_manifests:
        return skipped(step, StepReason.FEW_MANIFESTS, counted)
    return StepDecision(
        step=step,
        action=StepAction.RUN,
        reason=StepReason.MANY_MANIFESTS,
        explanation=counted,
        options={"min_manifests": policy.min_manifests},
        is_for_spark=True,
        gain=seen.manifests - 1,
        cost_seconds=SPARK_SECONDS,
    )


def _decide_pins(policy: ExpiryDeclaration | None, pins: PinPlan) -> StepDecision:
    step = MaintenanceStep.PIN_SNAPSHOTS
    if policy is None:
        return skipped(step, StepReason.NOT_DECLARED, "the table declares no expiry")
    if pins.is_current:
        return skipped(step, StepReason.PINS_CURRENT, f"{len(pins.pins)} pins are where they are to be")
    moved = f"{len(pins.to_set)} to set, {len(pins.to_remove)} to remove, {len(pins.pins)} in all"
    if pins.properties:
        moved += "; the table asks every expiry to keep what its readers need"
    return StepDecision(step=step, action=StepAction.RUN, reason=StepReason.PINS_MOVED, explanation=moved)


def _decide_expiry(
    policy: ExpiryDeclaration | None,
    seen: TableObservation,
    pins: PinPlan,
    now: datetime,
    *,
    named_tags: Collection[str] | None,
) -> StepDecision:
    step = MaintenanceStep.EXPIRE_SNAPSHOTS
    if policy is None:
        return skipped(step, StepReason.NOT_DECLARED, "the table declares no expiry")
    wanted = now - policy.older_than
    references = old_references(policy, seen, named=named_tags, now=now)
    seen = without(seen, references)
    old = expirable_snapshots(seen, cutoff=wanted, retain_last=policy.retain_last)
    if not old:
        return skipped(step, StepReason.NOTHING_EXPIRABLE, f"none of {len(seen.snapshots)} snapshots is old enough")
    if pins.holds:
        return held(step, pins.holds)
    cutoff = wanted if pins.keep_since is None else min(wanted, pins.keep_since)
    free = set(expirable_snapshots(seen, cutoff=cutoff, retain_last=policy.retain_last))
    free -= {pin.snapshot_id for pin in pins.pins}
    if not free:
        since = f"{pins.keep_since:%Y-%m-%d %H:%M:%S %Z}" if pins.keep_since else "now"
        return skipped(
            step, StepReason.READERS_NEED_SNAPSHOTS, f"{len(old)} snapshots are old, readers need all since {since}"
        )
    return StepDecision(
        step=step,
        action=StepAction.RUN,
        reason=StepReason.SNAPSHOTS_EXPIRABLE,
        explanation=(
            f"{len(free)} of {len(seen.snapshots)} snapshots are older than {cutoff:%Y-%m-%d %H:%M:%S %Z}"
            f"{_with_references(references)}"
        ),
        options={"older_than": cutoff, "retain_last": policy.retain_last},
        references=references,
        is_for_spark=True,
        gain=len(free),
        cost_seconds=SPARK_SECONDS,
    )


def _with_references(references: Sequence[ReferenceObservation]) -> str:
    named = ", ".join(f"{one.kind} {one.name}" for one in references)
    return f", without the {named}" if named else ""


def _decide_orphan_removal(
    policy: OrphanRemovalDeclaration | None, seen: TableObservation, looked_at: datetime | None, now: datetime
) -> StepDecision:
    """The folder of a table is listed once in a while alone: what is in it, only the step itself finds out."""
    step = MaintenanceStep.REMOVE_ORPHANS
    if policy is None:
        return skipped(step, StepReason.NOT_DECLARED, "the table declares no removal of orphans")
    if not seen.snapshots:
        return skipped(step, StepReason.NO_SNAPSHOT, "the table has no snapshot yet")
    grace, every = duration_words(policy.older_than), duration_words(policy.every)
    oldest = min(snapshot.committed_at for snapshot in seen.snapshots)
    if looked_at is None and now - oldest < policy.older_than:
        why = f"the history of the table begins less than {grace} ago, and only older files are removed"
        return skipped(step, StepReason.YOUNG_TABLE, why)
    if looked_at is not None and now - looked_at < policy.every:
        why = f"looked for on {looked_at:%Y-%m-%d %H:%M} UTC, again {every} after that"
        return skipped(step, StepReason.LOOKED_RECENTLY, why)
    last = "never" if looked_at is None else f"{looked_at:%Y-%m-%d %H:%M} UTC"
    return StepDecision(
        step=step,
        action=StepAction.RUN,
        reason=StepReason.ORPHANS_UNKNOWN,
        explanation=f"what dead writers left behind more than {grace} ago goes to the trash; last looked for: {last}",
        cost_seconds=seen.data_files * SECONDS_OF_A_FILE,
    )
