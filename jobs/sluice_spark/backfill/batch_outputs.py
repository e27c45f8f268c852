"""What the transformation of a stream gives as a batch: of inputs that are read exactly as far as the stream had read
them, and of more than those of an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import DataType, DateType, TimestampNTZType

from sluice.backfill.backfill_plan import BackfillObservation
from sluice.backfill.intervals import Interval
from sluice.backfill.observe_backfill import backfill_of
from sluice.backfill.read_bounds import FilesBound, InputBound, TableBound, TopicBound
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.rule_declaration import RuleDeclaration, row_rules
from sluice.declarations.source_declarations import RECORD_TIME, FilesSource, KafkaSource
from sluice.settings import KafkaConnection, Settings
from sluice_spark.query.batch_form import CountedDuplicates, HeldResult
from sluice_spark.query.row_rules import broken_rules, found_by_rules
from sluice_spark.query.stream_inputs import OpenedInputs, open_inputs
from sluice_spark.query.stream_outputs import judged_counts, open_targets, part, rule_counts, unite_outputs
from sluice_spark.query.transformation import transform
from sluice_spark.session.columns import quoted, quoted_table
from sluice_spark.session.valid_text import has_invalid_text, invalid_rows, require_valid_text
from sluice_spark.sinks.iceberg import IcebergTarget
from sluice_spark.sources import files, kafka, read_input
from sluice_spark.sources.input_decoding import without_tombstones


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedInputs:
    """The inputs as the transformation gets them.

    rows: by name. rejected: the records that cannot be decoded, or are too far ahead of the clock.
    counted: what is counted as read, of all inputs from which rows arrive.
    """

    rows: Mapping[str, DataFrame]
    rejected: tuple[DataFrame, ...]
    counted: tuple[DataFrame, ...]


def open_bounded(
    spark: SparkSession, stream: LoadedStream, settings: Settings, bounds: Mapping[str, InputBound], *, wide: Interval
) -> BoundedInputs:
    """Read and decode the inputs; of those with a column, the rows of the interval and its margin.

    Raises
    ------
    SettingsError: when a connection is missing.
    """
    reading = _Reading(spark=spark, stream=stream, settings=settings, wide=wide)
    arriving = {
        name: reading.read(bounds[name]) if name in bounds else read_input(spark, declared, settings)
        for name, declared in stream.declaration.inputs.items()
    }
    opened = open_inputs(stream, arriving, settings)
    rows = {
        name: reading.of_interval(bounds[name], decoded) if name in bounds else decoded
        for name, decoded in opened.rows.items()
    }
    return BoundedInputs(
        rows=rows,
        rejected=tuple(opened.rejected[name] for name in bounds if name in opened.rejected),
        counted=tuple(
            without_tombstones(one, stream.declaration.inputs[name].declared_source)
            if isinstance(bound, TableBound)
            else one
            for name, bound in bounds.items()
            for one in _counted(bound, arriving, rows, opened)
        ),
    )


def _counted(
    bound: InputBound, arriving: Mapping[str, DataFrame], rows: Mapping[str, DataFrame], opened: OpenedInputs
) -> list[DataFrame]:
    """What counts as read of an input. The rows of a table are counted without reading them; what is no record of a
    file, such as its header, is no row, and a record that cannot be decoded has no time by which it could be left out.
    """
    if isinstance(bound, TableBound):
        return [arriving[bound.input]]
    return [rows[bound.input], *([opened.rejected[bound.input]] if bound.input in opened.rejected else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The reading of the inputs of a stream. wide: the interval with its margin."""

    spark: SparkSession
    stream: LoadedStream
    settings: Settings
    wide: Interval

    def read(self, bound: InputBound) -> DataFrame:
        """What the stream had read of an input, before it is decoded."""
        source = self.stream.declaration.inputs[bound.input].declared_source.source
        match bound, source:
            case TableBound(), _:
                return self._table(bound)
            case TopicBound(), KafkaSource():
                connection = self.settings.connection(source.connection, KafkaConnection)
                records = kafka.read_ranges(self.spark, source, connection, bound.ranges, left_out=bound.left_out)
                return records.where(within(records, RECORD_TIME, self.wide)) if bound.is_by_record_time else records
            case FilesBound(), FilesSource():
                return files.read_these(self.spark, source, self.settings, sorted(bound.files))
        raise AssertionError(f"{bound} is no bound of {source}")

    def of_interval(self, bound: InputBound, decoded: DataFrame) -> DataFrame:
        """The decoded rows of the interval and its margin, by a column that only they have."""
        is_done = isinstance(bound, TableBound) or (isinstance(bound, TopicBound) and bound.is_by_record_time)
        if bound.column is None or is_done:
            return decoded
        return decoded.where(within(decoded, bound.column, self.wide))

    def _table(self, bound: TableBound) -> DataFrame:
        reader = self.spark.read.option("versionAsOf", str(bound.snapshot_id))
        rows = reader.table(quoted_table(self.settings.catalog.name, bound.table))
        return rows if bound.column is None else rows.where(within(rows, bound.column, self.wide))


def within(rows: DataFrame, column: str, interval: Interval) -> Column:
    """Whether a row lies in an interval: for filters, because it is null for a row without a value. Iceberg leaves out
    files by it; it knows no `coalesce`."""
    kind = rows.schema[column].dataType
    value = fn.col(quoted(column))
    return (value >= _boundary(interval.start, kind)) & (value < _boundary(interval.end, kind))


def _boundary(time: datetime, kind: DataType) -> Column:
    if isinstance(kind, DateType):
        midnight = time.replace(hour=0, minute=0, second=0, microsecond=0)
        day = time if time == midnight else midnight + timedelta(days=1)
        return fn.lit(day.date().isoformat()).cast("date")
    if isinstance(kind, TimestampNTZType):
        return fn.lit(time.replace(tzinfo=None).isoformat()).cast("timestamp_ntz")
    return fn.lit(time.isoformat()).cast("timestamp")


def batch_outputs(
    spark: SparkSession,
    stream: LoadedStream,
    seen: BackfillObservation,
    inputs: Mapping[str, DataFrame],
    *,
    held: DataFrame | None,
    duplicates: CountedDuplicates | None = None,
) -> dict[str, DataFrame]:
    """The outputs of the transformation as a batch. held: what the target holds, where the inputs are read whole."""
    kept = HeldResult(table=seen.output.target, column=backfill_of(stream).column, rows=held)
    counted = duplicates or CountedDuplicates()
    return {
        one: counted.as_batch(rows, held=kept if one == seen.output.output else None)
        for one, rows in transform(spark, stream, inputs).items()
    }


def timeless_of_all(
    spark: SparkSession, stream: LoadedStream, settings: Settings, seen: BackfillObservation
) -> DataFrame | None:
    """The rows without a time of all that the stream had read, also where a backfill reads an interval of an input;
    none when some of it is gone."""
    bounds = [source.whole() for source in seen.sources]

    def is_timeless(rows: DataFrame, column: str) -> Column:
        return fn.col(quoted(column)).isNull()

    return _rows_of(spark, stream, settings, seen, bounds=bounds, wide=seen.interval, chosen=is_timeless)


def rows_near(
    spark: SparkSession, stream: LoadedStream, settings: Settings, seen: BackfillObservation
) -> DataFrame | None:
    """The rows of the intervals before and after that of a backfill; none when some of what is read for it is gone."""
    near = seen.interval.with_neighbours(backfill_of(stream).interval)

    def is_near(rows: DataFrame, column: str) -> Column:
        return within(rows, column, near) & ~within(rows, column, seen.interval)

    bounds = [source.longer() for source in seen.sources]
    return _rows_of(spark, stream, settings, seen, bounds=bounds, wide=near.widened(seen.margin), chosen=is_near)


def _rows_of(
    spark: SparkSession,
    stream: LoadedStream,
    settings: Settings,
    seen: BackfillObservation,
    *,
    bounds: Sequence[InputBound | None],
    wide: Interval,
    chosen: Callable[[DataFrame, str], Column],
) -> DataFrame | None:
    """Rows that the transformation gives, with the columns of the target.

    Parameters
    ----------
    bounds: how far each input is read; none when one is. wide: what is read of those with a column.
    chosen: which rows, by the column of the intervals.
    """
    known = {bound.input: bound for bound in bounds if bound is not None}
    if len(known) < len(bounds):
        return None
    inputs, column = open_bounded(spark, stream, settings, known, wide=wide), backfill_of(stream).column
    outputs, name = batch_outputs(spark, stream, seen, inputs.rows, held=None), seen.output.output
    (target, *_) = targets = open_targets(spark, stream, outputs, catalog=settings.catalog.name)
    outputs[name], _ = separated(outputs[name], target, has_quarantine=stream.declaration.quarantine)
    outputs[name] = outputs[name].where(chosen(outputs[name], column))
    columns = [quoted(field) for field in spark.table(target.identifier).columns]
    return part(unite_outputs(stream, outputs, targets).rows, name).select(*columns)


def separated(
    rows: DataFrame, target: IcebergTarget, *, has_quarantine: bool
) -> tuple[DataFrame, tuple[DataFrame, ...]]:
    """The rows of an output whose text is UTF-8, and those of the quarantine for the others, as a batch of the stream
    has them. Without a quarantine, such a row stops the computation with the names of its columns.
    """
    invalid = has_invalid_text(rows.schema)
    if invalid is None:
        return rows, ()
    if not has_quarantine:
        return require_valid_text(rows, place=f"output {target.output}, table {target.declared.table},"), ()
    return rows.where(~invalid), (invalid_rows(rows, invalid),)


def blocking_rules(united: DataFrame, rules: Mapping[str, Sequence[RuleDeclaration]]) -> str:
    """The broken row rules by which a batch of the stream would not become visible, for a sentence; empty without any.

    Parameters
    ----------
    united: as `unite_outputs` gives it. rules: those about a batch as a whole are not for other portions of the rows.
    """
    wanted, judged = list(judged_counts(united, rules)), row_rules(rules)
    if not wanted:
        return ""
    counted = united.agg(*wanted, *rule_counts(rules)).collect()[0]
    rows = dict(zip(judged, counted, strict=False))  # the first of them
    return broken_rules(found_by_rules(counted[len(rows) :], judged, judged=rows), "fail", "hold")
