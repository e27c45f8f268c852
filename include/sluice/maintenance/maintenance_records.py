"""The record of a maintenance run for the ledger, its steps as events, and its description in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from sluice.declarations.stream_declaration import QuarantineRetention
from sluice.ledger.events import WRITE, Actor, Event, EventAction, EventSubject
from sluice.ledger.maintenance_runs import (
    KeptSnapshot,
    MaintenanceObservation,
    MaintenanceStep,
    StepObservation,
    StepOutcome,
    TableFigures,
)
from sluice.maintenance.layout_probe import figure_sentences
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.maintenance.pin_plan import ReaderCost
from sluice.maintenance.row_retention import OLD_ROWS
from sluice.maintenance.step_decision import StepAction, StepDecision
from sluice.messages.message_parts import in_words
from sluice.operations import OperationPlan, OperationVerb, Stake, steps_of
from sluice.tables.table_observation import TableObservation

_PLANNED = {StepAction.RUN: "would run", StepAction.SKIP: "skipped", StepAction.REFUSE: "refused"}


def maintenance_record(
    plan: MaintenancePlan,
    after: TableObservation,
    operations: Sequence[StepObservation],
    *,
    launched_by: str,
    ended_at: datetime,
) -> MaintenanceObservation:
    """The record of a run, from its plan, the observation after it and the outcome of its steps."""
    before = plan.seen
    return MaintenanceObservation(
        table=before.table,
        started_at=before.observed_at,
        ended_at=ended_at,
        launched_by=launched_by,
        before=_figures(before),
        after=_figures(after),
        operations=tuple(operations),
        file_sizes=after.file_sizes,
        oldest_snapshot_at=min((snapshot.committed_at for snapshot in after.snapshots), default=None),
        kept=tuple(_kept(plan)),
    )


def _figures(seen: TableObservation) -> TableFigures:
    return TableFigures(
        snapshot=seen.snapshot_id,
        rows=seen.rows,
        files=seen.data_files,
        bytes=seen.data_bytes,
        delete_files=seen.delete_files,
        manifests=seen.manifests,
        snapshots=len(seen.snapshots),
        small_files=seen.small_files,
    )


def _kept(plan: MaintenancePlan) -> Iterator[KeptSnapshot]:
    """What each pin keeps, and what that costs."""
    committed = {snapshot.snapshot_id: snapshot.committed_at for snapshot in plan.seen.snapshots}
    costs: dict[tuple[str, str], ReaderCost] = {(cost.stream, cost.endpoint): cost for cost in plan.costs}
    for pin in plan.pins.pins:
        cost = costs.get((pin.stream, pin.endpoint))
        yield KeptSnapshot(
            stream=pin.stream,
            endpoint=pin.endpoint,
            kind=str(pin.kind),
            snapshot_id=pin.snapshot_id,
            committed_at=committed.get(pin.snapshot_id),
            held_snapshots=0 if cost is None else cost.snapshots,
            held_bytes=0 if cost is None else cost.replaced_bytes,
        )


def step_event(step: StepDecision, plan: MaintenancePlan, *, launched_by: str, identity: str) -> Event:
    """A step that is due, as it is saved before it is carried out. identity: under which it writes files."""
    pins = {"sets": [pin.tag for pin in plan.pins.to_set], "removes": list(plan.pins.to_remove)}
    return Event(
        subject=EventSubject.TABLE,
        name=plan.seen.table,
        actor=Actor.component(launched_by),
        action=EventAction(step.step),
        reason=str(step.reason),
        explanation=step.explanation,
        evidence={
            "snapshot": plan.seen.snapshot_id,
            "rows": plan.seen.rows,
            "files": plan.seen.data_files,
            "manifests": plan.seen.manifests,
            "snapshots": len(plan.seen.snapshots),
            WRITE: identity,
            **step.options,
            **(pins if step.step is MaintenanceStep.PIN_SNAPSHOTS else {}),
        },
    )


def removal_event(table: str, *, rows: int, retention: QuarantineRetention, launched_by: str) -> Event:
    """The removal of rejected rows that are kept no longer, as it is saved before it is carried out."""
    return Event(
        subject=EventSubject.TABLE,
        name=table,
        actor=Actor.component(launched_by),
        action=EventAction.MAINTAIN_TABLE,
        reason="quarantine_retention",
        explanation=f"{rows:,} rejected rows are kept no longer.",
        evidence={"rows": rows, **{name: in_words(kept) for name, kept in retention if kept is not None}},
    )


def table_sentences(seen: TableObservation) -> Iterator[str]:
    """Sentences about the snapshots, files and references of a table."""
    when = f", committed {seen.committed_at:%Y-%m-%d %H:%M:%S} UTC" if seen.committed_at else ""
    yield f"{seen.table}: snapshot {seen.snapshot_id or 'none yet'}{when}"
    yield (
        f"{seen.table}: {seen.rows} rows in {seen.data_files} files ({seen.data_bytes} bytes) of "
        f"{len(seen.partitions)} partitions, {seen.small_files} files smaller than {seen.small_file_bytes} bytes"
    )
    yield (
        f"{seen.table}: {seen.delete_files} delete files, {seen.manifests} manifests, {len(seen.snapshots)} snapshots"
    )
    for reference in seen.references:
        yield f"{seen.table}: {reference.kind} {reference.name} at snapshot {reference.snapshot_id}"


def plan_sentences(plan: MaintenancePlan) -> Iterator[str]:
    """A line for each step of a plan: what a run would do, and why."""
    for decision in plan.steps:
        yield f"{plan.seen.table}: {decision.step} {_PLANNED[decision.action]}: {decision.explanation}"
    yield from note_sentences(plan)


def maintenance_operation(plan: MaintenancePlan) -> OperationPlan[MaintenancePlan]:
    """The maintenance of a table as what a person does: no row of its newest snapshot is at stake but the old ones that
    the table declares to go."""
    table = plan.seen.table
    removal = next((one for one in plan.due if one.step is MaintenanceStep.REMOVE_OLD_ROWS), None)
    sentences = (sentence.removeprefix(f"{table}: ") for sentence in plan_sentences(plan))
    return OperationPlan(
        verb=OperationVerb.MAINTAIN,
        subject=table,
        seen=plan,
        at_stake=Stake.NOTHING if removal is None else Stake.ROWS,
        rows=None if removal is None else removal.options[OLD_ROWS],
        steps=steps_of(*(_spoken(sentence) for sentence in sentences)),
        evidence={"snapshot_id": plan.seen.snapshot_id, "decisions": plan.steps, "notes": plan.notes},
    )


def _spoken(sentence: str) -> str:
    """A sentence of a plan with its step in words: `Rewrite data files would run`. A note may begin with a name, which
    stays as it is written."""
    step = next((step for step in MaintenanceStep if sentence.startswith(step)), None)
    return sentence if step is None else sentence.replace(step, step.replace("_", " ").capitalize(), 1)


def note_sentences(plan: MaintenancePlan) -> Iterator[str]:
    """A line for each thing that a person should know of the readers of a table."""
    yield from (f"{plan.seen.table}: {note}" for note in plan.notes)


def run_sentences(run: MaintenanceObservation) -> Iterator[str]:
    """A line for each step of a run, and one for the table before and after it."""
    for operation in run.operations:
        took = f" ({operation.duration_ms / 1000:.1f} s)" if operation.outcome is not StepOutcome.SKIPPED else ""
        yield f"{run.table}: {operation.step} {operation.outcome}: {operation.explanation}{took}"
        yield from (f"{run.table}: {sentence}" for sentence in figure_sentences(operation))
    figures = (
        ("files", run.before.files, run.after.files),
        ("bytes", run.before.bytes, run.after.bytes),
        ("manifests", run.before.manifests, run.after.manifests),
        ("snapshots", run.before.snapshots, run.after.snapshots),
        ("rows", run.before.rows, run.after.rows),
    )
    yield f"{run.table}: " + ", ".join(f"{name} {before} → {after}" for name, before, after in figures)
