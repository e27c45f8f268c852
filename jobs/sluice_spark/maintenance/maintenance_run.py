"""Runs the maintenance of one table: locks, observes, plans, carries out the plan and records the run."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyspark.sql import SparkSession

from sluice.declarations.load_declarations import load_declarations
from sluice.launching.job_command import MaintainTable
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import record_event
from sluice.ledger.locks import maintenance_lock
from sluice.ledger.maintenance_runs import MaintenanceObservation, record_maintenance
from sluice.maintenance.maintained_tables import find_declaration, plan_table_maintenance
from sluice.maintenance.maintenance_plan import StepDecision
from sluice.maintenance.maintenance_records import maintenance_record, note_sentences, step_event
from sluice.publication.mark_moves import settle_merges_of_table
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import require_table
from sluice_spark.maintenance.maintenance_steps import TableMaintainer

_log = logging.getLogger(__name__)


def maintain_table(
    command: MaintainTable, settings: Settings, ledger: Ledger, *, open_session: Callable[[], SparkSession]
) -> MaintenanceObservation:
    """Observe a table, plan, carry out the due steps, observe it again, and record the run in the ledger.

    Parameters
    ----------
    command: the table, and who launched the run.
    settings: the deployment.
    open_session: called whenever Spark is needed; the first call opens the session.

    Raises
    ------
    UsageError: when the table is not declared.
    LakehouseError: when the table does not exist or the catalog does not answer.
    DeliveryError: when the table was rolled back behind a stream's mark. Nothing is changed until that is resolved.
    LedgerError: when the table is under maintenance already, or the ledger cannot be reached.
    """
    declarations = load_declarations(settings.pipelines)
    declaration = find_declaration(declarations, command.table)
    with maintenance_lock(ledger, command.table):
        catalog = open_catalog(settings)
        require_table(catalog, command.table)
        settle_merges_of_table(catalog, command.table)  # expiry removes the only other trace of a merged batch
        table = require_table(catalog, command.table)
        plan = plan_table_maintenance(
            ledger, declarations, settings, declaration=declaration, table=table, now=database_time(ledger)
        )

        def save(step: StepDecision) -> None:
            record_event(ledger, step_event(step, plan, launched_by=command.launched_by))

        for note in note_sentences(plan):
            _log.warning("%s", note)
        maintainer = TableMaintainer(
            catalog=settings.catalog.name,
            name=command.table,
            table=table,
            open_session=open_session,
            before_step=save,
        )
        operations = maintainer.carry_out(plan)
        after = maintainer.observe(small_file_bytes=plan.seen.small_file_bytes, now=database_time(ledger))
        run = maintenance_record(plan, after, operations, launched_by=command.launched_by, ended_at=after.observed_at)
        record_maintenance(ledger, run)
    return run
