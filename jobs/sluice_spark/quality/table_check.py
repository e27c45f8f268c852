"""Checks the newest snapshot of a table against its declared expectations, and records the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from sluice.declarations.loaded_declarations import Declarations, masked_columns_of_table
from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import UsageError
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.quality_checks import ExpectationObservation, QualityObservation, QualityVerdict, record_quality
from sluice.maintenance.maintained_tables import find_declaration
from sluice.quality.check_results import QualityPages, quality_sentence
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import require_table
from sluice_spark.quality.expectation_results import evaluate, import_great_expectations
from sluice_spark.session.columns import quoted_table

if TYPE_CHECKING:
    from pyiceberg.table import Table


def check_table(
    name: str,
    settings: Settings,
    ledger: Ledger,
    *,
    declarations: Declarations,
    launched_by: str,
    open_session: Callable[[], SparkSession],
) -> QualityObservation:
    """Check the newest snapshot of a table, record the result, and keep its Data Docs.

    Parameters
    ----------
    name: `<namespace>.<table>`.
    settings: the deployment.
    launched_by: who launched the check, for people who read it.
    open_session: opens the Spark session; not called for a table without a snapshot.

    Raises
    ------
    UsageError: when the table is not declared, or declares no expectations.
    LakehouseError: when the table does not exist or the catalog does not answer.
    """
    declaration = find_declaration(declarations, name)
    pages, checked_at = QualityPages(root=settings.reports), database_time(ledger)
    check = QualityCheck(
        declaration=declaration,
        table=require_table(open_catalog(settings), name),
        catalog=settings.catalog.name,
        launched_by=launched_by,
        checked_at=checked_at,
        pages=pages.data_docs(name, checked_at),
        masked=masked_columns_of_table(declarations, name),
    ).make(open_session)
    record_quality(ledger, check, sentence=quality_sentence(check))
    pages.drop_old(name)
    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityCheck:
    """One check of one table.

    catalog: the name of the catalog in Spark.
    table: the table, just loaded by pyiceberg.
    pages: the folder for the pages of this check.
    masked: the columns of which no value is kept.
    """

    declaration: TableDeclaration
    table: Table
    catalog: str
    launched_by: str
    checked_at: datetime
    pages: Path
    masked: frozenset[str] = frozenset()

    def make(self, open_session: Callable[[], SparkSession]) -> QualityObservation:
        """Check the newest snapshot. Snapshots that are committed during the check are ignored.

        Parameters
        ----------
        open_session: opens the Spark session; not called for a table without a snapshot.

        Raises
        ------
        UsageError: when the table declares no expectations.
        """
        declared = self.declaration.quality
        if declared is None:
            raise UsageError(
                f"Table {self.declaration.table} declares no expectations, so there is nothing to check.",
                next_step="Add `quality: {expectations: […]}` to its declaration.",
            )
        snapshot = self.table.current_snapshot()
        if snapshot is None:
            return self._observation(QualityVerdict.NOTHING_TO_CHECK, ())
        with ThreadPoolExecutor(max_workers=1) as beside:
            imported = beside.submit(import_great_expectations)  # seconds of Python, beside seconds of JVM
            session = open_session()
            imported.result()
        name = quoted_table(self.catalog, self.declaration.table)
        rows = session.read.option("versionAsOf", str(snapshot.snapshot_id)).table(name)
        details = evaluate(
            rows,
            declared.expectations,
            suite=self.declaration.table,
            run=f"{self.declaration.table} at snapshot {snapshot.snapshot_id}",
            pages=self.pages,
            masked=self.masked,
        )
        return self._observation(
            verdict_of(details),
            details,
            snapshot_id=snapshot.snapshot_id,
            committed_at=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
            rows=rows.count(),
        )

    def _observation(
        self,
        verdict: QualityVerdict,
        details: Sequence[ExpectationObservation],
        *,
        snapshot_id: int | None = None,
        committed_at: datetime | None = None,
        rows: int = 0,
    ) -> QualityObservation:
        return QualityObservation(
            table=self.declaration.table,
            checked_at=self.checked_at,
            launched_by=self.launched_by,
            verdict=verdict,
            snapshot_id=snapshot_id,
            snapshot_committed_at=committed_at,
            rows=rows,
            expectations=len(details),
            failed_expectations=tuple(found.expectation for found in details if not found.success),
            report=None if snapshot_id is None else str(self.pages / "index.html"),
            details=tuple(details),
        )


def verdict_of(details: Sequence[ExpectationObservation]) -> QualityVerdict:
    """The verdict of all expectations: FAILED if one failed, even if others could not be evaluated."""
    if any(found.success is False for found in details):
        return QualityVerdict.FAILED
    if any(found.success is None for found in details):
        return QualityVerdict.UNDECIDED
    return QualityVerdict.PASSED
