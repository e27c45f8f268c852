"""Computes the rows of an interval with the transformation of the stream, as one batch over bounded inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import DataType, DateType, TimestampNTZType

from sluice.backfill.backfill_plan import BackfillObservation, PublishedBatch, SourceBound
from sluice.backfill.balance import RowTotals
from sluice.backfill.intervals import Interval
from sluice.backfill.observe_backfill import backfill_of
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import UnpublishableError
from sluice.settings import Settings
from sluice_spark.query.batch_form import CountedDuplicates
from sluice_spark.query.state_operators import stateful_operators
from sluice_spark.query.stream_inputs import open_inputs
from sluice_spark.query.stream_outputs import open_targets, unite_outputs
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.query.transformation import transform
from sluice_spark.query.united_outputs import part
from sluice_spark.session.identifiers import quoted, quoted_table
from sluice_spark.sinks.iceberg import one_row_per_key
from sluice_spark.sources import read_input

_DEDUPLICATING = frozenset({"Deduplicate", "DeduplicateWithinWatermark", "Distinct"})
_OWN_STATE = "WithState"
"""Part of the name of each operator whose state is the user's own."""


def require_exact(plan: StreamPlan, published: PublishedBatch) -> None:
    """Refuse a stream whose interval a batch cannot compute as the stream does.

    Raises
    ------
    UnpublishableError: with the operator that stands against it.
    """
    stream, operators = plan.declaration.stream, stateful_operators(plan.rows)
    if own := [name for name in operators if _OWN_STATE in name or name.startswith("FlatMapGroups")]:
        raise UnpublishableError(
            f"{stream} cannot be backfilled yet: {own[0]} keeps a state of its own, and a batch calls it differently.",
            next_step="Reset the stream instead (`sluice stream reset`).",
        )
    windows = [name for name in operators if name not in _DEDUPLICATING]
    if windows and published.watermark is None:
        raise UnpublishableError(
            f"{stream} cannot be backfilled: {windows[0]} has no watermark, so the stream may change every interval.",
            next_step="Declare a watermark for its input.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRows:
    """The computed rows; a context manager would release them, `release` does.

    rows: of the interval, with the columns of the target. rejected: what the transformation rejected, and rows that are
        too far ahead of the clock; unset without a quarantine.
    """

    rows: DataFrame
    rejected: DataFrame | None
    _kept: DataFrame
    _inputs: tuple[DataFrame, ...]
    _all_results: Observation
    _duplicates: CountedDuplicates

    def totals(self) -> RowTotals:
        """The numbers of all computed rows. The rows must have been computed; those that were read are counted here,
        apart from the transformation."""
        return RowTotals(
            read=sum(rows.count() for rows in self._inputs),
            results=int(self._all_results.get["rows"]),
            quarantined=self.rejected.count() if self.rejected is not None else 0,
            duplicate=self._duplicates.rows,
        )

    def of_intervals(self, intervals: Sequence[Interval], column: str) -> DataFrame:
        """The rows of some of the intervals, by their `column`."""
        return self.rows.where(reduce(Column.__or__, (within(self.rows, column, one) for one in intervals)))

    def release(self) -> None:
        """Forget the computed rows."""
        self._kept.unpersist()


def compute_interval(
    spark: SparkSession, stream: LoadedStream, settings: Settings, seen: BackfillObservation
) -> IntervalRows:
    """Apply the transformation to what the stream had read when the backfill was planned; keep the interval's rows.

    Raises
    ------
    DeclarationError, SchemaError, SettingsError: as `plan_stream` raises them.
    """
    catalog, column = settings.catalog.name, backfill_of(stream).column
    bounded = {source.input: _bounded(spark, source, seen, catalog=catalog) for source in seen.sources}
    arriving = {
        name: bounded[name] if name in bounded else read_input(spark, declared, settings)
        for name, declared in stream.declaration.inputs.items()
    }
    opened = open_inputs(stream, arriving, settings)
    duplicates, all_results = CountedDuplicates(), Observation()
    outputs = {name: duplicates.as_batch(rows) for name, rows in transform(spark, stream, opened.rows).items()}
    targets = open_targets(spark, stream, outputs, catalog=catalog)
    name, declared = seen.output.output, targets[0].declared
    found = outputs[name].observe(all_results, fn.count(fn.lit(1)).alias("rows"))
    of_interval = found.where(within(found, column, seen.interval))
    outputs[name] = one_row_per_key(of_interval, declared) if declared.mode == "merge" else of_interval
    kept = unite_outputs(stream.declaration, outputs, targets).rows.persist()
    columns = [quoted(field) for field in spark.table(targets[0].identifier).columns]
    rejected = [part(kept, QUARANTINE_OUTPUT)] if QUARANTINE_OUTPUT in outputs else []
    rejected += [opened.rejected[one] for one in bounded if one in opened.rejected]
    return IntervalRows(
        rows=part(kept, name).select(*columns),
        rejected=reduce(DataFrame.unionByName, rejected) if rejected else None,
        _kept=kept,
        _inputs=tuple(bounded.values()),
        _all_results=all_results,
        _duplicates=duplicates,
    )


def within(rows: DataFrame, column: str, interval: Interval) -> Column:
    """Whether a row lies in an interval: for filters, because it is null for a row without a value. Iceberg leaves out
    files by it; it knows no `coalesce`."""
    kind = rows.schema[column].dataType
    value = fn.col(quoted(column))
    return (value >= _boundary(interval.start, kind)) & (value < _boundary(interval.end, kind))


def _bounded(spark: SparkSession, source: SourceBound, seen: BackfillObservation, *, catalog: str) -> DataFrame:
    read = spark.read.option("versionAsOf", str(source.snapshot_id)).table(quoted_table(catalog, source.table))
    if source.column is None:
        return read
    wide = seen.interval.widened(seen.margin)
    return read.where(within(read, source.column, wide))


def _boundary(time: datetime, kind: DataType) -> Column:
    if isinstance(kind, DateType):
        midnight = time.replace(hour=0, minute=0, second=0, microsecond=0)
        day = time if time == midnight else midnight + timedelta(days=1)
        return fn.lit(day.date().isoformat()).cast("date")
    if isinstance(kind, TimestampNTZType):
        return fn.lit(time.replace(tzinfo=None).isoformat()).cast("timestamp_ntz")
    return fn.lit(time.isoformat()).cast("timestamp")
