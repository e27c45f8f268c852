"""The rows that a target holds, in an interval and beside it: compared with computed ones, and staged with them.

Rows may lie in another interval than the one in which the target holds them, because their time is another one now, or
because they have a time now and had none. Such a row is known by its columns that are no times, or by its other times
when it has no such column: two rows that agree in them are taken for the same row. What the target holds where it lies
now, is not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce

from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import DateType, IntegralType, TimestampNTZType, TimestampType

from sluice.backfill.interval_gaps import Fingerprint
from sluice.backfill.intervals import Interval, IntervalLength, rounded_outwards
from sluice.errors import DeliveryError
from sluice.publication.data_files import Writer
from sluice.publication.interval_files import TouchedFiles, value_bounds
from sluice.publication.publish_batches import live_files
from sluice.publication.staging_layout import create_staging_copy
from sluice.tables.declared_tables import require_table
from sluice_spark.backfill.batch_outputs import within
from sluice_spark.session.columns import fingerprint_of, quoted, quoted_table, row_hashes, sums_of_rows
from sluice_spark.session.jvm import first_line

_FILE = "_file"
"""Iceberg's metadata column with the path of a row's file."""


def fingerprints(rows: DataFrame, column: str, intervals: Sequence[Interval]) -> dict[Interval, Fingerprint]:
    """The fingerprint of the rows of each interval, in one pass. Each row lies in one of them by its `column`."""
    numbered = [fn.when(within(rows, column, interval), number) for number, interval in enumerate(intervals)]
    found = rows.groupBy(fn.coalesce(*numbered).alias("interval")).agg(*sums_of_rows(rows)).collect()
    of_interval = {intervals[one["interval"]]: fingerprint_of(one) for one in found}
    return {interval: of_interval.get(interval, Fingerprint.of_no_rows()) for interval in intervals}


@contextmanager
def computing(what: str) -> Iterator[None]:
    """Name what is computed in what Spark reports when its rows cannot be. what: for the beginning of a sentence.

    Raises
    ------
    DeliveryError: with Spark's reason.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise DeliveryError(f"{what} cannot be computed: {first_line(error)}.") from error


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


_START = "_sluice_start"
_TIMES = (DateType, TimestampType, TimestampNTZType)


def moved_rows(
    *,
    held: DataFrame,
    computed: DataFrame,
    held_beside: DataFrame,
    computed_beside: DataFrame,
    column: str,
    length: IntervalLength,
) -> Mapping[Interval, int]:
    """How many rows have left an interval, by the interval in which they lie now and where the target has none of them.

    Parameters
    ----------
    held, computed: the rows of the interval, as the target holds them and as they were computed.
    held_beside, computed_beside: those of other intervals. All of them have the same columns.
    column: by which rows have intervals. length: of one.
    """
    return _found_beside(held, computed, here=computed_beside, there=lambda: held_beside, column=column, length=length)


def arrived_rows(
    *,
    held: DataFrame,
    computed: DataFrame,
    held_beside: DataFrame,
    computed_beside: Callable[[], DataFrame | None],
    column: str,
    length: IntervalLength,
) -> Mapping[Interval, int]:
    """How many rows come into an interval that the target holds in another one, by that one, where nothing gives them
    any more.

    Parameters
    ----------
    computed_beside: computes the rows of the other intervals, once the target holds such rows; none where that is not
        possible. All others as `moved_rows` has them.
    """
    return _found_beside(computed, held, here=held_beside, there=computed_beside, column=column, length=length)


def _found_beside(
    some: DataFrame,
    others: DataFrame,
    *,
    here: DataFrame,
    there: Callable[[], DataFrame | None],
    column: str,
    length: IntervalLength,
) -> Mapping[Interval, int]:
    """The rows that some have and others have not, which lie `here` beside the interval and not `there`."""
    if not (known_by := _known_by(some, column)):
        return {}
    wanted = _known(some, known_by).exceptAll(_known(others, known_by)).distinct().persist()
    start = fn.unix_micros(fn.date_trunc(length, fn.col(quoted(column)).cast("timestamp")))

    def beside(rows: DataFrame) -> DataFrame:
        return _hashed(rows, known_by, start).join(wanted, _KNOWN, "left_semi")

    try:
        if not wanted.count():  # all of it, so that Spark knows how large it is when it joins
            return {}
        # Most often nothing lies here, and what lies there need not be computed.
        if (found := beside(here)).isEmpty() or (known := there()) is None:
            return {}
        counts = found.exceptAll(beside(known)).groupBy(_START).count().collect()
    finally:
        wanted.unpersist()
    starts = ((datetime.fromtimestamp(one[_START] // 1_000_000, UTC), one["count"]) for one in counts)
    return {
        rounded_outwards(Interval(start=start, end=start.replace(microsecond=1)), length): rows
        for start, rows in starts
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TimesGiven:
    """The rows of an interval, and those without a time, from before and after a correction gave some of them one.

    held, computed: the rows of the interval, as the target holds them and as they were computed.
    held_timeless: all rows without a time that the target holds.
    computed_timeless: the computed rows without a time; where only an interval of the inputs was read, those of its
        records.
    every_timeless: computes the rows without a time of all records that are left. It is none where it is not known
        which these are, and unset where all were computed.
    """

    held: DataFrame
    computed: DataFrame
    held_timeless: DataFrame
    computed_timeless: DataFrame
    every_timeless: Callable[[], DataFrame | None] | None = None

    def count(self) -> int:
        """How many rows of the interval the target may hold without a time: as many as are new in the interval, while
        so many without a time are given no more.

        A correction may have changed the values of a row with its time, and any row of the interval may have left it
        for good meanwhile: neither numbers of rows nor their values show that a new row only is an older one of the
        interval. Where only an interval was read, a row without a time may be of a record that was not: then all
        records that are left are read, once the others leave it open. One of a record that is gone is counted, too.
        """
        if self.held_timeless.isEmpty() or not (stale := self._stale(self.computed_timeless)):
            return 0
        found = min(stale, new := self._new())
        if not found or self.every_timeless is None:
            return found
        every = self.every_timeless()
        return found if every is None else min(self._stale(every), new)

    def _stale(self, timeless: DataFrame) -> int:
        """How many rows without a time the target holds that are given no more."""
        held, computed = (rows.select(*row_hashes(rows)) for rows in (self.held_timeless, timeless))
        return held.exceptAll(computed).count()

    def _new(self) -> int:
        computed, held = (rows.select(*row_hashes(rows)) for rows in (self.computed, self.held))
        return computed.exceptAll(held).count()


_KNOWN = ["known0", "known1"]


def _known_by(rows: DataFrame, column: str) -> list[str]:
    values = [field.name for field in rows.schema if not isinstance(field.dataType, _TIMES)]
    return values or [name for name in rows.columns if name != column]


def _known(rows: DataFrame, known_by: list[str]) -> DataFrame:
    return rows.select(*map(quoted, known_by)).transform(lambda some: some.select(*row_hashes(some)).toDF(*_KNOWN))


def _hashed(rows: DataFrame, known_by: list[str], start: Column) -> DataFrame:
    """What a row is known by, where it lies, and all of it."""
    known = (one.alias(name) for one, name in zip(row_hashes(rows.select(*map(quoted, known_by))), _KNOWN, strict=True))
    return rows.select(*known, start.alias(_START), *row_hashes(rows))
