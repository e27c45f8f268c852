"""Checks the newest snapshot of a table against its declared expectations, and records the result.

Great Expectations evaluates them and builds the Data Docs. It is restricted: everything but the pages is in memory, no
usage statistics are sent, nothing is persisted in Spark, the session is the job's own, and rows that break an
expectation are counted and sampled, never collected.

Source: https://docs.greatexpectations.io/docs/core/introduction/
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.loaded_declarations import Declarations, masked_columns_of_table
from sluice.declarations.table_declaration import ExpectationDeclaration, TableDeclaration
from sluice.errors import UsageError
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.recorded_checks import ExpectationObservation, QualityObservation, QualityVerdict, record_quality
from sluice.maintenance.maintained_tables import find_declaration
from sluice.quality.check_results import (
    QualityPages,
    columns_of,
    escaped,
    protect_pages,
    quality_sentence,
    without_masked_values,
)
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import require_table
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


SAMPLES = 10
"""The number of unexpected values of an expectation on its page and in the ledger: enough to recognise a pattern."""

_SITE = "pages"

_COUNTS = frozenset(
    {"element_count", "missing_count", "missing_percent", "unexpected_count", "unexpected_percent"}
    | {"unexpected_percent_total", "unexpected_percent_nonmissing"}
)
"""What of a result is no value of a row."""

_evaluating = threading.Lock()
"""The library keeps the project of a check in the process, and looks suites and results up there: of two checks at the
same time one would find those of the other."""


def import_great_expectations() -> None:
    """Import the library, which takes seconds. A job imports it while the JVM starts.

    Raises
    ------
    ImportError: when it is not installed.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read at import
    logging.getLogger("great_expectations").setLevel(logging.WARNING)  # it logs hundreds of methods that it registers
    import great_expectations  # noqa: F401  # for its side effect: the next import is instant


def evaluate(
    rows: DataFrame,
    expectations: Sequence[ExpectationDeclaration],
    *,
    suite: str,
    run: str,
    pages: Path,
    masked: Collection[str] = (),
) -> tuple[ExpectationObservation, ...]:
    """Evaluate every expectation, and build the pages of the check. One check of a process waits for the other.

    Parameters
    ----------
    rows: the rows to check; they may be read several times.
    expectations: the declared expectations.
    suite: the name of the suite on the pages: the table's name.
    run: the name of this check on the pages.
    pages: the folder for the pages; its start page is `index.html`.
    masked: the columns, in lower case, of which no value is kept: neither in the results nor on the pages.

    Returns
    -------
    The results in the order of the expectations. An expectation that cannot be evaluated is a result, not an error.
    """
    import_great_expectations()
    with _evaluating:
        return _evaluate(rows, expectations, suite=suite, run=run, pages=pages, masked=masked)


def _evaluate(
    rows: DataFrame,
    expectations: Sequence[ExpectationDeclaration],
    *,
    suite: str,
    run: str,
    pages: Path,
    masked: Collection[str],
) -> tuple[ExpectationObservation, ...]:
    import great_expectations as gx
    from great_expectations.core.run_identifier import RunIdentifier
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    context = gx.get_context(mode="ephemeral", project_config=_project(pages))
    asset = context.data_sources.add_spark("lakehouse", persist=False).add_dataframe_asset(suite)
    checked = gx.ExpectationSuite(suite)
    for number, declared in enumerate(expectations):
        if expectations.index(declared) < number:
            continue  # it is declared twice, and a suite holds it once
        checked.add_expectation_configuration(
            # The number identifies the result: results have another order.
            ExpectationConfiguration(type=declared.type, kwargs=dict(declared.kwargs), meta={"number": number}),
            match_type="success",  # by default a second one of this type replaces the first one of the same column
        )
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(
            name=suite, data=asset.add_batch_definition_whole_dataframe(run), suite=context.suites.add(checked)
        )
    )
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(
            name=suite,
            validation_definitions=[definition],
            result_format={"result_format": "SUMMARY", "partial_unexpected_count": SAMPLES},
        )
    )
    outcome: Any = checkpoint.run(batch_parameters={"dataframe": rows}, run_id=RunIdentifier(run_name=run))
    found: list[Mapping[str, Any]] = [
        result for validation in outcome.run_results.values() for result in validation.to_json_dict()["results"]
    ]
    _build_data_docs(context, outcome, pages, masked)
    by_number = {result["expectation_config"]["meta"]["number"]: result for result in found}
    seen = (_observation(declared, by_number[expectations.index(declared)]) for declared in expectations)
    return tuple(without_masked_values(one, masked) for one in seen)


def _build_data_docs(context: Any, outcome: Any, pages: Path, masked: Collection[str]) -> None:
    """Build the pages from the results with every value of a row escaped: the pages show some values as they are. Of a
    masked column they get counts alone."""
    import great_expectations.render.view

    for key, validation in outcome.run_results.items():
        # As JSON: a result may hold values of other libraries, whose texts would not be seen.
        for result, plain in zip(validation.results, validation.to_json_dict()["results"], strict=True):
            found, raised = plain.get("result") or {}, plain.get("exception_info") or {}
            if set(columns_of(plain["expectation_config"]["kwargs"])) & set(masked):
                found, raised = {name: value for name, value in found.items() if name in _COUNTS}, {}
            result.result, result.exception_info = escaped(found), escaped(raised)
        context.validation_results_store.set(key, validation)
    context.build_data_docs(site_names=[_SITE])
    protect_pages(pages, templates=Path(great_expectations.render.view.__file__).parent / "templates")


def _project(pages: Path) -> Any:
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    site = {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(pages)},
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }
    return DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
        data_docs_sites={_SITE: site},
        analytics_enabled=False,
        progress_bars=ProgressBarsConfig(globally=False, metric_calculations=False),
    )


def _observation(declared: ExpectationDeclaration, result: Mapping[str, Any]) -> ExpectationObservation:
    problems = list(_problems(result.get("exception_info") or {}))
    found: Mapping[str, Any] = result.get("result") or {}
    observed = {name: found[name] for name in ("observed_value", "element_count") if name in found}
    if samples := found.get("partial_unexpected_list"):
        observed["samples"] = samples[:SAMPLES]
    return ExpectationObservation(
        expectation=declared.type,
        arguments=declared.kwargs,
        success=None if problems else bool(result["success"]),
        observed=observed,
        unexpected_rows=found.get("unexpected_count"),
        unexpected_percent=_finite(found.get("unexpected_percent")),
        problem="; ".join(dict.fromkeys(problems)),
    )


def _finite(percent: float | None) -> float | None:
    """The percentage of an empty table is NaN, which JSON cannot represent."""
    return percent if percent is not None and math.isfinite(percent) else None


def _problems(info: Mapping[str, Any]) -> Iterator[str]:
    """The exceptions of an expectation: one for the expectation, or one for each of its metrics."""
    for raised in [info] if "raised_exception" in info else info.values():
        if raised.get("raised_exception", True):
            yield str(raised.get("exception_message") or "it could not be evaluated").strip()
