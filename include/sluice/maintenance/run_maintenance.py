"""Runs the maintenance of one table: locks, observes, plans, carries out the plan and records the run.

The same code runs with Spark and without it. What needs no Spark, as the pins and the record of a table with nothing
due, is done by whoever asks for the maintenance; an application is asked only for the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import UnhealthyError
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import record_event
from sluice.ledger.locks import maintenance_lock
from sluice.ledger.maintenance_runs import MaintenanceObservation, recent_maintenance, record_maintenance
from sluice.maintenance.maintained_tables import find_declaration, plan_table_maintenance
from sluice.maintenance.maintenance_plan import MaintenancePlan, StepDecision
from sluice.maintenance.maintenance_records import maintenance_record, note_sentences, step_event
from sluice.maintenance.maintenance_steps import TableMaintainer
from sluice.maintenance.run_verdict import RUNS_JUDGED, needs_earlier_runs, problems_of_run
from sluice.maintenance.table_procedures import TableProcedures
from sluice.publication.mark_moves import settle_merges_of_table
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import require_table

_log = logging.getLogger(__name__)


def _unnoticed() -> None:
    """Continue with the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMaintenance:
    """Maintains tables of a deployment, one at a time.

    launched_by: who launched the runs, for people who read them.
    before_step: is called before each step that is due; what it raises ends the run there.
    """

    settings: Settings
    ledger: Ledger
    declarations: Declarations
    catalog: Catalog
    launched_by: str
    before_step: Callable[[], object] = _unnoticed

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

    def maintain_without_spark(self, name: str) -> MaintenanceObservation | None:
        """Do the same as `maintain`, if no step that is due needs Spark.

        Returns
        -------
        The run; none when a step needs Spark. Then nothing was done or recorded.

        Raises
        ------
        UsageError, LakehouseError, DeliveryError, LedgerError: as `maintain` raises them.
        """
        with maintenance_lock(self.ledger, name):
            table, plan = self._plan(name)
            return None if plan.needs_spark else self._carry_out(plan, table, None)

    def _plan(self, name: str) -> tuple[Table, MaintenancePlan]:
        declaration = find_declaration(self.declarations, name)
        table = require_table(self.catalog, name)
        if settle_merges_of_table(self.catalog, table):  # expiry removes the only other trace of a merged batch
            table.refresh()
        plan = plan_table_maintenance(
            self.ledger,
            self.declarations,
            self.settings,
            declaration=declaration,
            table=table,
            now=database_time(self.ledger),
        )
        return table, plan

    def _carry_out(
        self, plan: MaintenancePlan, table: Table, procedures: TableProcedures | None
    ) -> MaintenanceObservation:
        def save(step: StepDecision) -> None:
            self.before_step()
            record_event(self.ledger, step_event(step, plan, launched_by=self.launched_by))

        for note in note_sentences(plan):
            _log.warning("%s", note)
        maintainer = TableMaintainer(name=plan.seen.table, table=table, procedures=procedures, before_step=save)
        operations = maintainer.carry_out(plan)
        after = plan.seen
        if plan.has_work:
            after = maintainer.observe(small_file_bytes=after.small_file_bytes, now=database_time(self.ledger))
        run = maintenance_record(plan, after, operations, launched_by=self.launched_by, ended_at=after.observed_at)
        record_maintenance(self.ledger, run)
        return run


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
        catalog=open_catalog(settings),
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
