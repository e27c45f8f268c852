"""Iceberg's procedures on one table, called by Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluice.errors import LakehouseError
from sluice.maintenance.file_rewrite import CommitConflictError
from sluice_spark.maintenance.table_content import changed_content
from sluice_spark.session.columns import quoted, quoted_table

_CONFLICTS = frozenset(
    {
        "org.apache.iceberg.exceptions.CommitFailedException",
        "org.apache.iceberg.exceptions.ValidationException",
    }
)
"""Iceberg's exceptions after a concurrent commit: the table has a new snapshot, or files of the rewrite are gone."""


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

    def rewrite_data_files(self, options: Mapping[str, str]) -> Mapping[str, Any]:
        """Write small files together into larger ones."""
        named = {f"name_{number}": name for number, name in enumerate(options)}
        valued = {f"value_{number}": value for number, value in enumerate(options.values())}
        pairs = ", ".join(f"{{name_{number}}}, {{value_{number}}}" for number in range(len(named)))
        return self._call("rewrite_data_files", f", options => map({pairs})", {**named, **valued})

    def rewrite_manifests(self) -> Mapping[str, Any]:
        """Write the manifests together into fewer ones."""
        return self._call("rewrite_manifests", "", {})

    def expire_snapshots(self, *, older_than: datetime, retain_last: int) -> Mapping[str, Any]:
        """Remove the snapshots that are older than a time, except so many of the newest ones of each branch."""
        bounds = ", older_than => TIMESTAMP {older_than}, retain_last => {retain_last}"
        values = {"older_than": older_than.isoformat(), "retain_last": retain_last}
        return self._call("expire_snapshots", bounds, values)

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
                if _is_conflict(error):
                    raise CommitConflictError(_first_line(str(error.java_exception))) from error
                raise
        return row.asDict() if row is not None else {}

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


def _is_conflict(error: Py4JJavaError) -> bool:
    """Whether a commit conflict is among the causes; the procedures wrap it."""
    cause = error.java_exception
    while cause is not None:
        if cause.getClass().getName() in _CONFLICTS:
            return True
        cause = cause.getCause()
    return False


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
