"""Runs the maintenance of one table with Spark: Iceberg's procedures, and the proof that a rewrite kept the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import LakehouseError
from sluice.ledger.connection import Ledger
from sluice.ledger.maintenance_runs import MaintenanceObservation
from sluice.maintenance.file_rewrite import CommitConflictError
from sluice.maintenance.run_maintenance import open_maintenance
from sluice.maintenance.step_decision import StoreRefusesError
from sluice.settings import Settings
from sluice.tables.table_observation import StatisticsKind
from sluice_spark.session.columns import fingerprint_of, quoted, quoted_table, sums_of_rows
from sluice_spark.session.jvm import jvm_of

_LOST = "org.apache.iceberg.exceptions.CommitFailedException"
_INVALID = "org.apache.iceberg.exceptions.ValidationException"
_OF_S3 = "software.amazon.awssdk.services.s3.model.S3Exception"
_BEGINNINGS = (
    "Missing required files to delete",
    "Cannot commit, ",
    "Cannot determine history between starting snapshot",
    "Found conflicting ",
    "Found new conflicting ",
    "Found concurrently added DV",
    "Deleted manifest ",
    "Cannot remove dangling deletes: current snapshot changed",
    "Snapshot ancestry validation failed",
)
"""How Iceberg's messages about a concurrent commit begin: the table has a new snapshot, or files of the rewrite are
gone. It refuses a table whose metadata is damaged by the same exception.

Source: org.apache.iceberg.MergingSnapshotProducer, ManifestFilterManager, BaseRewriteManifests, SnapshotProducer and
actions.RemoveDanglingDeleteFilesAction.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkProcedures:
    """The adapter of `TableProcedures` for Spark.

    catalog: the name of the catalog in Spark.
    table: `<namespace>.<table>`.
    open_session: called whenever Spark is needed; the first call opens the session.
    """

    catalog: str
    table: str
    open_session: Callable[[], SparkSession]

    def rewrite_data_files(
        self, options: Mapping[str, str], *, where: str, is_sorted: bool, z_order: Sequence[str]
    ) -> Mapping[str, Any]:
        """Write small files together into larger ones. Iceberg's bin-pack leaves rows in the order that they had.

        The procedure of SQL takes a filter as a text that Spark's optimizer rewrites; the action takes Iceberg's own.
        """
        with self._action() as (jvm, actions, table):
            action = actions.rewriteDataFiles(table)
            for name, value in options.items():
                action = action.option(name, value)
            if z_order:
                action = action.zOrder(_texts(self.open_session(), z_order))
            else:
                action = action.sort() if is_sorted else action.binPack()
            if where:
                action = action.filter(
                    jvm.org.apache.iceberg.expressions.ExpressionParser.fromJson(where, table.schema())
                )
            result = action.execute()
            return {
                "rewritten_data_files_count": result.rewrittenDataFilesCount(),
                "added_data_files_count": result.addedDataFilesCount(),
                "rewritten_bytes_count": result.rewrittenBytesCount(),
                "failed_data_files_count": result.failedDataFilesCount(),
                "removed_delete_files_count": result.removedDeleteFilesCount(),
            }

    def remove_dangling_deletes(self) -> int:
        """Remove the delete files that hide nothing any more, and return their number."""
        with self._action() as (jvm, actions, table):
            removed = actions.removeDanglingDeleteFiles(table).execute().removedDeleteFiles()
            return int(jvm.org.apache.iceberg.relocated.com.google.common.collect.Iterables.size(removed))

    def rewrite_manifests(self) -> Mapping[str, Any]:
        """Write the manifests together into fewer ones."""
        return self._call("rewrite_manifests", "", {})

    def expire_snapshots(self, *, older_than: datetime, retain_last: int) -> Mapping[str, Any]:
        """Remove the snapshots that are older than a time, except so many of the newest ones of each branch."""
        bounds = ", older_than => TIMESTAMP {older_than}, retain_last => {retain_last}"
        values = {"older_than": older_than.isoformat(), "retain_last": retain_last}
        return self._call("expire_snapshots", bounds, values)

    def compute_statistics(self, kind: StatisticsKind, *, columns: Sequence[str] | None) -> str:
        """Compute statistics of the newest snapshot, and return the path of their file; empty where it has no rows."""
        if kind is StatisticsKind.PARTITIONS:
            found = self._call("compute_partition_stats", "", {})
        else:
            names = ", ".join(f"{{column_{place}}}" for place in range(len(columns or ())))
            values = {f"column_{place}": name for place, name in enumerate(columns or ())}
            found = self._call("compute_table_stats", f", columns => array({names})" if values else "", values)
        return next((str(path) for path in found.values() if path is not None), "")

    def changed_content(self, rewrites: Sequence[tuple[int, int]], *, is_hashed: bool) -> str:
        """Describe the first difference between the rows of a rewrite and of its parent; empty when there is none."""
        with _lakehouse_errors():
            return changed_content(self.open_session(), self._qualified, rewrites, is_hashed=is_hashed)

    def _call(self, procedure: str, arguments: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Call one of Iceberg's procedures.

        Spark formats the values as literals, because Delta's parser, in sessions that have it, binds no parameters.
        """
        statement = f"CALL {quoted(self.catalog)}.`system`.{quoted(procedure)}(table => {{table}}{arguments})"
        with _lakehouse_errors():
            try:
                row = self.open_session().sql(statement, table=self._qualified, **values).first()
            except Py4JJavaError as error:
                _raise_conflict(error)
                _raise_refusal(error)
                raise
        return row.asDict() if row is not None else {}

    @contextmanager
    def _action(self) -> Iterator[tuple[Any, Any, Any]]:
        """Iceberg's actions on the table as it is now: the JVM, the actions, and the table."""
        with _lakehouse_errors():
            session = self.open_session()
            jvm, java_session = jvm_of(session), session._jsparkSession
            table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(java_session, self._qualified)
            try:
                yield jvm, jvm.org.apache.iceberg.spark.actions.SparkActions.get(java_session), table
            except Py4JJavaError as error:
                _raise_conflict(error)
                raise

    @property
    def _qualified(self) -> str:
        return quoted_table(self.catalog, self.table)


@contextmanager
def _lakehouse_errors() -> Iterator[None]:
    """Turn the errors of Spark and Iceberg into `LakehouseError`."""
    try:
        yield
    except Py4JJavaError as error:
        raise LakehouseError(_first_line(str(error.java_exception))) from error
    except PySparkException as error:
        raise LakehouseError(_first_line(str(error) or type(error).__name__)) from error


def _raise_conflict(error: Py4JJavaError) -> None:
    """Raise the commit conflict among the causes, if there is one. The error around it proposes options of Iceberg."""
    cause = error.java_exception
    while cause is not None:
        name, message = cause.getClass().getName(), cause.getMessage() or ""
        if is_conflict(name, message):
            raise CommitConflictError(_first_line(message)) from error
        cause = cause.getCause()


_REFUSED = frozenset({403, 405, 501})
"""What S3 answers to an object that it takes from no one, or not from this identity."""


def _raise_refusal(error: Py4JJavaError) -> None:
    """Raise the refusal of an object store among the causes, if there is one."""
    cause = error.java_exception
    while cause is not None:
        if cause.getClass().getName() == _OF_S3 and cause.statusCode() in _REFUSED:
            said = _first_line(cause.getMessage() or "").partition(", Request ID")[0]
            raise StoreRefusesError(f"the object store answers {cause.statusCode()}, {said})") from error
        cause = cause.getCause()


def is_conflict(name: str, message: str) -> bool:
    """Whether an exception of Iceberg, by the name of its class, says that another writer committed first."""
    return name == _LOST or (name == _INVALID and message.startswith(_BEGINNINGS))


def _texts(session: SparkSession, values: Sequence[str]) -> Any:
    """Texts as an array of the JVM, as its methods of any number of arguments take them."""
    gateway: Any = session.sparkContext._gateway
    array = gateway.new_array(gateway.jvm.java.lang.String, len(values))
    for place, value in enumerate(values):
        array[place] = value
    return array


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of a snapshot: the number of its rows, and the sums of their hashes if requested."""

    rows: int
    sums: tuple[int, int] | None


def contents_of(
    session: SparkSession, qualified: str, snapshot_ids: Sequence[int], *, is_hashed: bool
) -> Mapping[int, Content]:
    """Count the rows of snapshots, and sum up their hashes if requested, in one query.

    Parameters
    ----------
    qualified: the quoted name of the table.
    snapshot_ids: the snapshots.
    is_hashed: whether the rows are hashed.
    """
    found = reduce(
        DataFrame.unionAll,
        [_content(session, qualified, snapshot_id, is_hashed=is_hashed) for snapshot_id in snapshot_ids],
    ).collect()
    return {
        row["snapshot_id"]: Content(rows=row["rows"], sums=fingerprint_of(row).sums if is_hashed else None)
        for row in found
    }


def _content(session: SparkSession, qualified: str, snapshot_id: int, *, is_hashed: bool) -> DataFrame:
    rows = session.read.option("versionAsOf", str(snapshot_id)).table(qualified)
    counted = sums_of_rows(rows) if is_hashed else [fn.count(fn.lit(1)).alias("rows")]
    return rows.agg(fn.lit(snapshot_id).alias("snapshot_id"), *counted)


def changed_content(
    session: SparkSession, qualified: str, rewrites: Sequence[tuple[int, int]], *, is_hashed: bool
) -> str:
    """Describe the first difference between a rewrite and its parent; empty when there is none."""
    for parent, rewrite in rewrites:
        found = contents_of(session, qualified, (parent, rewrite), is_hashed=is_hashed)
        if found[parent] != found[rewrite]:
            return f"snapshot {rewrite} contains {found[rewrite]}, its parent {parent} contains {found[parent]}"
    return ""


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
