"""The rows that a target holds in an interval, compared with computed ones, and staged with the rows beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import DateType, IntegralType

from sluice.backfill.interval_gaps import Fingerprint
from sluice.backfill.intervals import Interval
from sluice.errors import DeliveryError
from sluice.publication.interval_files import TouchedFiles, value_bounds
from sluice.publication.publish_batches import live_files
from sluice.publication.staging_layout import create_staging_copy
from sluice.publication.write_folders import Writer
from sluice.tables.declared_tables import require_table
from sluice_spark.backfill.batch_outputs import within
from sluice_spark.session.columns import quoted, quoted_table
from sluice_spark.session.jvm import first_line
from sluice_spark.session.row_content import fingerprint_of, sums_of_rows

_FILE = "_file"
"""Iceberg's metadata column with the path of a row's file."""


def fingerprints(rows: DataFrame, column: str, intervals: Sequence[Interval]) -> dict[Interval, Fingerprint]:
    """The fingerprint of the rows of each interval, in one pass. Each row lies in one of them by its `column`."""
    numbered = [fn.when(within(rows, column, interval), number) for number, interval in enumerate(intervals)]
    found = rows.groupBy(fn.coalesce(*numbered).alias("interval")).agg(*sums_of_rows(rows)).collect()
    of_interval = {intervals[one["interval"]]: fingerprint_of(one) for one in found}
    return {interval: of_interval.get(interval, Fingerprint.of_no_rows()) for interval in intervals}


@contextmanager
def computing(interval: Interval, stream: str) -> Iterator[None]:
    """Name the interval in what Spark reports when its rows cannot be computed.

    Raises
    ------
    DeliveryError: with Spark's reason.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise DeliveryError(
            f"The interval {interval.spoken} of {stream} cannot be computed: {first_line(error)}."
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRows:
    """What a target holds, at the snapshot on which a backfill was planned.

    head: that snapshot; none for an empty table.
    names: by the name of a column now, its name at that snapshot; without those that were added since.
    """

    spark: SparkSession
    catalog: str
    target: str
    head: int | None
    column: str
    names: Mapping[str, str]

    @classmethod
    def at(cls, spark: SparkSession, catalog: str, table: Table, *, head: int | None, column: str) -> HeldRows:
        """The rows of a loaded table. head: a snapshot of it. column: that of its intervals."""
        snapshot = table.snapshot_by_id(head) if head is not None else None
        schema_id = snapshot.schema_id if snapshot is not None else None
        then = table.schema() if schema_id is None else table.schemas()[schema_id]
        before = {field.field_id: field.name for field in then.fields}
        names = {one.name: before[one.field_id] for one in table.schema().fields if one.field_id in before}
        target = ".".join(table.name())
        return cls(spark=spark, catalog=catalog, target=target, head=head, column=column, names=names)

    def everything(self) -> DataFrame:
        """All of them."""
        return self._named(self._rows())

    def of_interval(self, interval: Interval) -> DataFrame:
        """The rows of an interval."""
        rows = self._rows()
        return self._named(rows.where(within(rows, self._time, interval)))

    def outside(self, interval: Interval, *, near: Interval | None = None) -> DataFrame:
        """The rows of all other intervals. near: that contains them; unset for all."""
        rows = self._rows()
        others = rows.where(~within(rows, self._time, interval))
        return self._named(others if near is None else others.where(within(others, self._time, near)))

    def without_time(self) -> DataFrame:
        """The rows that lie in no interval."""
        return self._named(self._rows().where(fn.col(quoted(self._time)).isNull()))

    def beside(self, interval: Interval, touched: TouchedFiles, table: Table) -> DataFrame:
        """The rows of other intervals in the files that hold rows of this one.

        Parameters
        ----------
        touched: the files of the interval in `table`, the target at the same snapshot.
        """
        rows = self._rows()
        paths = [file.file_path for file in touched.partial]
        if not paths:
            return self._named(rows.limit(0))
        # Iceberg would try to push `_file IN (…)` down and log a warning, because that column is none of the table's.
        is_touched = fn.array_contains(fn.array(*(fn.lit(path) for path in paths)), fn.col(_FILE))
        is_within = fn.coalesce(within(rows, self._time, interval), fn.lit(False))
        beside = rows.where(is_touched & ~is_within).select(*rows.columns)
        bounds = value_bounds(table, self.column, touched.partial)
        # By the bounds of those files Iceberg leaves most of the other files out.
        return self._named(beside if bounds is None else beside.where(is_between(rows, self._time, bounds)))

    @property
    def _time(self) -> str:
        return self.names.get(self.column, self.column)

    def _rows(self) -> DataFrame:
        reader = self.spark.read
        if self.head is None:
            return reader.table(quoted_table(self.catalog, self.target)).limit(0)
        return reader.option("versionAsOf", str(self.head)).table(quoted_table(self.catalog, self.target))

    def _named(self, rows: DataFrame) -> DataFrame:
        """The rows with the columns of the table now: a snapshot is read with those that the table had then."""
        if self.head is None:
            return rows
        now = self.spark.table(quoted_table(self.catalog, self.target)).schema
        values = {one.name: fn.col(quoted(self.names[one.name])) for one in now if one.name in self.names}
        return rows.select(*(values.get(one.name, fn.lit(None)).cast(one.dataType).alias(one.name) for one in now))


def is_between(rows: DataFrame, column: str, bounds: tuple[int, int]) -> Column:
    """Whether a value lies between two of Iceberg's numbers; a row without a value may lie in any file."""
    kind, value = rows.schema[column].dataType, fn.col(quoted(column))
    if isinstance(kind, IntegralType):
        low, high = (fn.lit(number).cast(kind) for number in bounds)
    elif isinstance(kind, DateType):
        low, high = (fn.date_from_unix_date(fn.lit(day)) for day in bounds)
    else:
        low, high = (fn.timestamp_micros(fn.lit(micros)).cast(kind) for micros in bounds)
    return value.between(low, high) | value.isNull()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """Rows in a staging table of their own. rows: how many it holds, as its files count them."""

    table: Table
    files: Sequence[DataFile]

    @property
    def rows(self) -> int:
        """How many rows the files hold."""
        return sum(file.record_count for file in self.files)


def stage_rows(catalog: Catalog, rows: Sequence[DataFrame], *, staging: str, target: str, key: str) -> StagedRows:
    """Write rows into a new staging table of a target.

    Parameters
    ----------
    rows: each with the columns of the target. staging: the name of the table. key: of the attempt.

    Raises
    ------
    DeliveryError, LakehouseError: when the staging table cannot be made.
    """
    create_staging_copy(catalog, staging, target=target, writer=Writer.of_attempt(key))
    writer = reduce(DataFrame.unionByName, rows).writeTo(quoted_table(catalog.name, staging))
    writer.option("snapshot-property.sluice.publication-key", key).append()
    table = require_table(catalog, staging)
    return StagedRows(table=table, files=live_files(table))
