"""What the transformation of a stream gives as a batch: of bounded inputs, and of more than those of an interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice.backfill.backfill_plan import BackfillObservation
from sluice.backfill.intervals import Interval
from sluice.backfill.observe_backfill import backfill_of
from sluice.backfill.read_bounds import InputBound
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.rule_declaration import RuleDeclaration, row_rules
from sluice.settings import Settings
from sluice_spark.backfill.bounded_inputs import open_bounded, within
from sluice_spark.query.batch_form import CountedDuplicates, HeldResult
from sluice_spark.query.row_rules import broken_rules, found_by_rules
from sluice_spark.query.stream_outputs import judged_counts, open_targets, part, rule_counts, unite_outputs
from sluice_spark.query.transformation import transform
from sluice_spark.session.columns import quoted
from sluice_spark.session.valid_text import has_invalid_text, invalid_rows, require_valid_text
from sluice_spark.sinks.iceberg import IcebergTarget


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
