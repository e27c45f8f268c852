"""Runs one quality check of one table: loads the declaration, checks, records the result and writes the pages."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from sluice.declarations.load_declarations import load_declarations
from sluice.launching.job_command import CheckQuality
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.quality_history import record_quality
from sluice.ledger.records.quality_check import QualityObservation
from sluice.maintenance.maintained_tables import find_declaration
from sluice.quality.quality_pages import QualityPages, write_pages
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import require_table
from sluice_spark.quality.table_check import QualityCheck


def check_table(
    command: CheckQuality, settings: Settings, ledger: Ledger, *, open_session: Callable[[], SparkSession]
) -> QualityObservation:
    """Check the newest snapshot of a table, record the result, and write the pages.

    Parameters
    ----------
    command: the table, and who launched the check.
    settings: the deployment.
    open_session: opens the Spark session; not called for a table without a snapshot.

    Raises
    ------
    UsageError: when the table is not declared, or declares no expectations.
    LakehouseError: when the table does not exist or the catalog does not answer.
    LedgerError: when the ledger cannot be reached.
    """
    declaration = find_declaration(load_declarations(settings.pipelines), command.table)
    pages, checked_at = QualityPages(root=settings.reports), database_time(ledger)
    check = QualityCheck(
        declaration=declaration,
        table=require_table(open_catalog(settings), command.table),
        catalog=settings.catalog.name,
        launched_by=command.launched_by,
        checked_at=checked_at,
        pages=pages.data_docs(command.table, checked_at),
        report=pages.page(command.table),
    ).make(open_session)
    record_quality(ledger, check)
    write_pages(ledger, pages, command.table)
    return check
