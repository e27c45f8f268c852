"""Runs the maintenance of one table with Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import SparkSession

from sluice.declarations.loaded_declarations import Declarations
from sluice.ledger.connection import Ledger
from sluice.ledger.maintenance_runs import MaintenanceObservation
from sluice.maintenance.run_maintenance import open_maintenance
from sluice.settings import Settings
from sluice_spark.maintenance.spark_procedures import SparkProcedures


def _unnoticed() -> None:
    """Continue with the step."""


def maintain_table(
    name: str,
    settings: Settings,
    ledger: Ledger,
    *,
    declarations: Declarations,
    launched_by: str,
    open_session: Callable[[], SparkSession],
    before_step: Callable[[], object] = _unnoticed,
) -> MaintenanceObservation:
    """Observe a table, plan, carry out the due steps, observe it again, and record the run in the ledger.

    Parameters
    ----------
    name: `<namespace>.<table>`.
    launched_by: who launched the run, for people who read it.
    open_session: called whenever Spark is needed; the first call opens the session.
    before_step: is called before each step; what it raises ends the run there.

    Raises
    ------
    UsageError, LakehouseError, DeliveryError, LedgerError: as `TableMaintenance.maintain` raises them.
    """
    maintenance = open_maintenance(settings, ledger, declarations, launched_by=launched_by)
    procedures = SparkProcedures(catalog=settings.catalog.name, table=name, open_session=open_session)
    return replace(maintenance, before_step=before_step).maintain(name, procedures)
