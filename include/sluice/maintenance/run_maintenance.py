"""Runs the maintenance of one table: locks, observes, plans, carries out the plan and records the run.

The same code runs with Spark and without it. What needs no Spark, as the pins and the record of a table with nothing
due, is done by whoever asks for the maintenance; an application is asked only for the rest.

Whether a run ends red: what one run alone cannot show, the runs before it do. A step that yielded to writers is tried
again by the next run, so once is not a problem and twice in a row is one. A step that a reader or a late writer blocks
is skipped rightly, and each run by itself is green; when every run of the last days was blocked, the table grows and
there is no sign of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.maintenance_declaration import RetentionDeclaration
from sluice.errors import LakehouseError, UnhealthyError
from sluice.ledger.batches import arrived_since
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import Actor, record_event
from sluice.ledger.locks import maintenance_lock
from sluice.ledger.maintenance_runs import (
    MaintenanceObservation,
    MaintenanceStep,
    StepObservation,
    StepOutcome,
    newest_maintenance,
    recent_maintenance,
    record_maintenance,
)
from sluice.maintenance.maintained_tables import find_declaration, plan_table_maintenance, with_basis
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.maintenance.maintenance_records import (
    maintenance_record,
    note_sentences,
    probe_layout,
    removal_event,
    step_event,
)
from sluice.maintenance.maintenance_steps import TableMaintainer
from sluice.maintenance.orphan_files import sentences_of
from sluice.maintenance.orphan_removal import OrphanRemoval
from sluice.maintenance.step_decision import StepDecision, StepReason, TableProcedures
from sluice.publication.expired_rejections import remove_expired
from sluice.publication.mark_moves import settle_merges_of_table
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import require_table

BLOCKED_FOR_LONG = timedelta(days=2)
"""How long a step may be blocked: a reader that runs once a day gets its turn, and a person a day to look."""

RUNS_JUDGED = 200
"""How many earlier runs are judged: four days of a table that is maintained every half hour."""

_BLOCKING = frozenset(
    {
        StepReason.READER_NOT_STARTED,
        StepReason.READERS_BEHIND,
        StepReason.READERS_NEED_SNAPSHOTS,
        StepReason.WRITER_LATE,
        StepReason.PARTITIONS_UNNAMED,
    }
)


def needs_earlier_runs(run: MaintenanceObservation) -> bool:
    """Whether the runs before it decide how a run ends: a step yielded to writers, or was blocked."""
    return any(done.outcome is StepOutcome.YIELDED or _is_blocked(done) for done in run.operations)


def problems_of_run(run: MaintenanceObservation, earlier: Sequence[MaintenanceObservation]) -> tuple[str, ...]:
    """What makes a run end red, a sentence for each step; none when it ends green.

    Parameters
    ----------
    earlier: the runs of the same table before it, newest first; `RUNS_JUDGED` of them are enough.
    """
    return tuple(_problems(run, earlier))


def _problems(run: MaintenanceObservation, earlier: Sequence[MaintenanceObservation]) -> Iterator[str]:
    for done in run.operations:
        sentence = f"{done.step} {done.outcome}, {done.reason}: {done.explanation}"
        if done.outcome in (StepOutcome.REFUSED, StepOutcome.FAILED):
            yield sentence
        elif done.outcome is StepOutcome.YIELDED:
            before = _step(earlier[0], done.step) if earlier else None
            if before is not None and before.outcome is StepOutcome.YIELDED:
                yield f"{sentence}; the run before yielded, too"
        elif _is_blocked(done):
            since = _blocked_since(run, earlier, done.step)
            if run.started_at - since >= BLOCKED_FOR_LONG:
                yield f"{sentence}; every run since {since:%Y-%m-%d %H:%M} UTC was blocked"


def _blocked_since(
    run: MaintenanceObservation, earlier: Sequence[MaintenanceObservation], step: MaintenanceStep
) -> datetime:
    """When the first run of the unbroken row of runs began in which the step was blocked."""
    since = run.started_at
    for before in earlier:
        seen = _step(before, step)
        if seen is None or not _is_blocked(seen):
            break
        since = before.started_at
    return since


def _is_blocked(seen: StepObservation) -> bool:
    return seen.outcome is StepOutcome.SKIPPED and seen.reason in _BLOCKING


def _step(run: MaintenanceObservation, step: MaintenanceStep) -> StepObservation | None:
    return next((seen for seen in run.operations if seen.step is step), None)


_log = logging.getLogger(__name__)


def _unnoticed() -> None:
    """Continue with the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMaintenance:
    """Maintains tables of a deployment, one at a time.

    launched_by: who launched the runs, for people who read them.
    before_step: is called before each step that is due; what it raises ends the run there.
    agreed: the retention of rows to which a person has agreed, who has seen the plan; unset for none.
    """

    settings: Settings
    ledger: Ledger
    declarations: Declarations
    catalog: Catalog
    launched_by: str
    before_step: Callable[[], object] = _unnoticed
    agreed: RetentionDeclaration | None = None

    def maintain(self, name: str, procedures: TableProcedures) -> MaintenanceObservation:
        """Observe a table, plan, carry out the due steps, observe it again, and record the run in the ledger.

        Parameters
        ----------
        name: `<namespace>.<table>`.
        procedures: of this table.

        Raises
        ------
        UsageError: when the table is not declared.
        LakehouseError: when the table does not exist or the catalog does not answer.
        DeliveryError: when the table was rolled back behind a stream's mark. Nothing is changed until that is resolved.
        LedgerError: when the table is under maintenance already, or the ledger cannot be reached.
        """
        with maintenance_lock(self.ledger, name):
            table, plan = self._plan(name)
            return self._carry_out(plan, table, procedures)

    def plan(self, name: str) -> MaintenancePlan:
        """What a run would do now. Nothing is changed.

        Raises
        ------
        UsageError, LakehouseError, LedgerError: as `maintain` raises them.
        """
        return self._planned(name, require_table(self.catalog, name))

    def maintain_unless_due(self, name: str) -> MaintenanceObservation | MaintenancePlan:
        """Move the pins of a table that needs nothing else, and record what was seen.

        Returns
        -------
        The run; or the plan, when more is to do. Then nothing was done or recorded.

        Raises
        ------
        UsageError, LakehouseError, DeliveryError, LedgerError: as `maintain` raises them.
        """
        with maintenance_lock(self.ledger, name):
            table, plan = self._plan(name, newest_maintenance(self.ledger, name))
            is_due = plan.needs_spark or plan.has_work_here
            return plan if is_due else self._carry_out(plan, table, None)

    def maintain_without_spark(self, name: str) -> MaintenanceObservation | None:
        """Do the same as `maintain`, as far as that needs no Spark.

        Files that are put together without Spark leave fewer manifests, so the table is then planned again.

        Returns
        -------
        The run; none when a step is left that needs Spark. Only the rewrite of files was done and recorded then. A step
        that failed ends the run, and so does one to which a person has agreed here and that yielded: Spark's part is
        planned without this agreement, and would be refused.

        Raises
        ------
        UsageError, LakehouseError, DeliveryError, LedgerError: as `maintain` raises them.
        """
        with maintenance_lock(self.ledger, name):
            table, plan = self._plan(name)
            if plan.needs_spark and plan.has_work_here:
                run = self._carry_out(plan.without_spark(), table, None)
                table, plan = self._plan(name)
                ends = (StepOutcome.FAILED,) if self.agreed is None else (StepOutcome.FAILED, StepOutcome.YIELDED)
                if not plan.has_work or any(done.outcome in ends for done in run.operations):
                    return run
            return None if plan.needs_spark else self._carry_out(plan, table, None)

    def _plan(self, name: str, earlier: MaintenanceObservation | None = None) -> tuple[Table, MaintenancePlan]:
        find_declaration(self.declarations, name)
        table = require_table(self.catalog, name)
        if settle_merges_of_table(self.catalog, table):  # expiry removes the only other trace of a merged batch
            table.refresh()
        if self._remove_expired(name):
            table.refresh()
        return table, self._planned(name, table, earlier)

    def _remove_expired(self, name: str) -> int:
        """Remove from a quarantine the rows that are kept no longer. Returns how many."""
        streams = (loaded.declaration for loaded in self.declarations.streams.values())
        stream = next((one for one in streams if one.quarantine and one.quarantine_table == name), None)
        if stream is None or (retention := stream.quarantine_retention) is None:
            return 0

        def save(rows: int) -> None:
            self.before_step()
            record_event(self.ledger, removal_event(name, rows=rows, retention=retention, launched_by=self.launched_by))

        now = database_time(self.ledger)
        return remove_expired(
            self.catalog,
            name,
            retention,
            stream=stream.stream,
            now=now,
            arrived=partial(arrived_since, self.ledger, stream.stream),
            before_commit=save,
        )

    def _planned(self, name: str, table: Table, earlier: MaintenanceObservation | None = None) -> MaintenancePlan:
        return plan_table_maintenance(
            self.ledger,
            self.declarations,
            self.settings,
            declaration=find_declaration(self.declarations, name),
            table=table,
            now=database_time(self.ledger),
            earlier=earlier,
            agreed=self.agreed,
        )

    def _carry_out(
        self, plan: MaintenancePlan, table: Table, procedures: TableProcedures | None
    ) -> MaintenanceObservation:
        identity = uuid4().hex

        def save(step: StepDecision) -> None:
            self.before_step()
            record_event(self.ledger, step_event(step, plan, launched_by=self.launched_by, identity=identity))

        for note in note_sentences(plan):
            _log.warning("%s", note)
        maintainer = TableMaintainer(
            name=plan.seen.table,
            table=table,
            procedures=procedures,
            before_step=save,
            identity=identity,
            remove_orphans=lambda: self._orphans_removed(plan.seen.table),
            between_calls=self.before_step,
        )
        declaration = find_declaration(self.declarations, plan.seen.table)
        probe = probe_layout(plan, table, self.declarations, declaration)
        operations = maintainer.carry_out(plan)
        after, now, unseen = plan.seen, plan.seen.observed_at, None
        if plan.has_work:
            now = database_time(self.ledger)
            try:
                after = maintainer.observe(small_file_bytes=after.small_file_bytes, now=now)
                operations = probe.with_figures(operations, table, seen=plan.seen, after=after)
            except LakehouseError as error:  # what was done is recorded, with the table as it was seen last
                unseen = error
        run = maintenance_record(plan, after, operations, launched_by=self.launched_by, ended_at=now)
        if unseen is None:
            run = replace(run, operations=with_basis(run, plan, declaration.maintenance))
        record_maintenance(self.ledger, run)
        if unseen is not None:
            raise unseen
        return run

    def _orphans_removed(self, name: str) -> Mapping[str, Any]:
        """Move what dead writers left behind to the trash, under the lock of this run; how much it was."""
        actor = Actor.component(self.launched_by)
        removal = OrphanRemoval(catalog=self.catalog, ledger=self.ledger, declarations=self.declarations, actor=actor)
        done = removal.remove_locked(name)
        return {"found": list(sentences_of(done.seen.judged)), **done.evidence}


def open_maintenance(
    settings: Settings, ledger: Ledger, declarations: Declarations, *, launched_by: str
) -> TableMaintenance:
    """The maintenance of a deployment's tables.

    Raises
    ------
    LakehouseError: when the catalog cannot be reached or refuses the credential.
    """
    return TableMaintenance(
        settings=settings,
        ledger=ledger,
        declarations=declarations,
        catalog=open_catalog(settings, keeps_manifests=True),
        launched_by=launched_by,
    )


def require_no_problems(ledger: Ledger, run: MaintenanceObservation) -> None:
    """Judge a recorded run, by itself and by the runs before it.

    Raises
    ------
    UnhealthyError: when it ends red, with a sentence for each step.
    """
    if problems := problems_after(ledger, run):
        raise UnhealthyError("; ".join(problems))


def problems_after(ledger: Ledger, run: MaintenanceObservation) -> tuple[str, ...]:
    """What makes a recorded run end red, judged with the runs before it; none when it ends green."""
    recorded = recent_maintenance(ledger, run.table, limit=RUNS_JUDGED + 1) if needs_earlier_runs(run) else ()
    return problems_of_run(run, [one for one in recorded if one.started_at < run.started_at])
