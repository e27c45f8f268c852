"""The record of a maintenance run for the ledger, its steps as events, and its description in sentences.

What a compaction changes for readers is part of it: the time to plan a scan, and what known conditions read of the
table. Both are figures in the record of the step, for a person, and decide nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.stream_declaration import QuarantineRetention
from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import SluiceError
from sluice.layout.pruning import FilesRead, TableFilter, each_data_file, known_filters, measure_filters
from sluice.ledger.events import WRITE, Actor, Event, EventAction, EventSubject
from sluice.ledger.maintenance_runs import (
    KeptSnapshot,
    MaintenanceObservation,
    MaintenanceStep,
    StepObservation,
    StepOutcome,
    TableFigures,
)
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.maintenance.pin_plan import ReaderCost
from sluice.maintenance.row_retention import OLD_ROWS
from sluice.maintenance.step_decision import StepAction, StepDecision
from sluice.messages import in_words
from sluice.operations import OperationPlan, OperationVerb, Stake, steps_of
from sluice.tables.table_observation import TableObservation

PLANNING_MS, FILTERS = "planning_ms", "filters"
"""The keys in the result of a compaction: how many milliseconds the plan of a scan of everything took, and what each
condition reads, both before and after."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutProbe:
    """Known conditions on a table that is about to be compacted. before: what each reads of it now."""

    filters: tuple[TableFilter, ...] = ()
    before: tuple[FilesRead, ...] = ()

    def with_figures(
        self, operations: Sequence[StepObservation], table: Table, *, seen: TableObservation, after: TableObservation
    ) -> tuple[StepObservation, ...]:
        """The steps of a run, of which a compaction that was carried out has the figures before and after it.

        Parameters
        ----------
        table: as it is after the run. seen, after: the observations before and after the run.
        """
        if not any(_is_compaction(one) for one in operations):
            return tuple(operations)
        figures: dict[str, Any] = {PLANNING_MS: {"before": seen.planning_ms, "after": after.planning_ms}}
        if found := _read(table, self.filters):
            figures[FILTERS] = [
                {"where": one.text, "origin": one.origin, "before": _numbers(before), "after": _numbers(now)}
                for one, before, now in zip(self.filters, self.before, found, strict=True)
            ]
        return tuple(
            replace(one, result={**one.result, **figures}) if _is_compaction(one) else one for one in operations
        )


def probe_layout(
    plan: MaintenancePlan, table: Table, declarations: Declarations, declaration: TableDeclaration
) -> LayoutProbe:
    """Measure the known conditions on a table, if a compaction is due."""
    if not any(one.step is MaintenanceStep.REWRITE_DATA_FILES for one in plan.due):
        return LayoutProbe()
    try:
        filters = known_filters(declarations, declaration, table.schema(), each_data_file(table))
        return LayoutProbe(filters=filters, before=measure_filters(table, filters))
    except SluiceError as error:  # a figure is no reason to leave a table alone
        _log.warning("%s: what conditions read is not measured: %s", declaration.table, error)
        return LayoutProbe()


def figure_sentences(done: StepObservation) -> Iterator[str]:
    """The figures of a compaction, a sentence each; none of another step."""
    planning: Mapping[str, Any] = done.result.get(PLANNING_MS, {})
    if None not in (planning.get("before"), planning.get("after")):
        yield f"planning a scan of everything took {planning['before']} ms before, {planning['after']} ms after"
    for one in done.result.get(FILTERS, ()):
        before, after = one["before"], one["after"]
        yield (
            f"{one['where']} reads {before['files']} files ({before['bytes']} bytes) before, {after['files']} files "
            f"({after['bytes']} bytes) after"
        )


def _read(table: Table, filters: Sequence[TableFilter]) -> tuple[FilesRead, ...]:
    """What each condition reads now; nothing where that cannot be found out."""
    try:
        return measure_filters(table, filters)
    except SluiceError as error:
        _log.warning("what conditions read is not measured: %s", error)
        return ()


def _is_compaction(done: StepObservation) -> bool:
    return done.step is MaintenanceStep.REWRITE_DATA_FILES and done.outcome is StepOutcome.DONE


def _numbers(read: FilesRead) -> Mapping[str, int]:
    return {"files": round(read.files), "bytes": round(read.bytes)}


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
