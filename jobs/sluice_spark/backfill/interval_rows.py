"""Computes the rows of an interval with the transformation of the stream, as one batch over bounded inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as fn

from sluice.backfill.backfill_plan import BackfillObservation, plan_backfill
from sluice.backfill.intervals import Interval, IntervalLength, spanned
from sluice.backfill.observe_backfill import backfill_of
from sluice.backfill.reach import PlanReach, reach_refusals
from sluice.backfill.read_bounds import InputBound, TableBound, TopicBound
from sluice.backfill.results import ALLOW_REPEATED, RowTotals
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.output_declaration import IcebergOutput
from sluice.declarations.rule_declaration import RuleDeclaration
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import UnpublishableError, VerificationError
from sluice.settings import Settings
from sluice_spark.backfill.batch_outputs import (
    batch_outputs,
    blocking_rules,
    open_bounded,
    rows_near,
    separated,
    timeless_of_all,
    within,
)
from sluice_spark.backfill.held_rows import HeldRows, TimesGiven, arrived_rows, moved_rows
from sluice_spark.backfill.plan_reach import derive_reach
from sluice_spark.query.batch_form import DEDUPLICATIONS, CountedDuplicates
from sluice_spark.query.logical_plan import stateful_operators
from sluice_spark.query.stream_outputs import (
    count_rejected_by_rules,
    open_targets,
    part,
    unite_outputs,
)
from sluice_spark.query.stream_plan import plan_stream
from sluice_spark.session.columns import quoted, row_hashes
from sluice_spark.sinks.iceberg import one_row_per_key

_OWN_STATE = "WithState"
"""Part of the name of each operator whose state is the user's own."""


def require_exact(
    spark: SparkSession, stream: LoadedStream, settings: Settings, seen: BackfillObservation
) -> PlanReach:
    """Refuse an interval that a batch cannot compute as the stream does.

    Returns
    -------
    How far the plan of the stream reaches.

    Raises
    ------
    UnpublishableError: with the operator that blocks it, or with how far the plan reaches beyond the interval.
    DeclarationError, SchemaError, SettingsError: as `plan_stream` raises them.
    """
    reach, backfill = exact_reach(spark, stream, settings, seen), backfill_of(stream)
    refusals = reach_refusals(
        reach,
        seen.interval,
        stream=stream.name,
        column=backfill.column,
        reads=backfill.reads,
        margin=backfill.margin,
        watermark=seen.published.watermark if seen.published is not None else None,
    )
    replace(plan_backfill(seen), refusals=tuple(refusals)).require_unrefused()
    return reach


def exact_reach(spark: SparkSession, stream: LoadedStream, settings: Settings, seen: BackfillObservation) -> PlanReach:
    """How far the plan of a stream reaches that a batch computes as the stream does.

    Raises
    ------
    UnpublishableError: with the operator that a batch cannot compute so.
    DeclarationError, SchemaError, SettingsError: as `plan_stream` raises them.
    """
    plan = plan_stream(spark, stream, settings)
    operators = stateful_operators(plan.rows)
    if own := [name for name in operators if _OWN_STATE in name or name.startswith("FlatMapGroups")]:
        raise UnpublishableError(
            f"{stream.name} cannot be backfilled yet: {own[0]} keeps a state of its own, and a batch calls it "
            "differently.",
            next_step="Reset the stream instead (`sluice stream reset`).",
        )
    windows = [name for name in operators if name not in DEDUPLICATIONS]
    if windows and (seen.published is None or seen.published.watermark is None):
        raise UnpublishableError(
            f"{stream.name} cannot be backfilled: {windows[0]} had no watermark in its newest batch, so the stream may "
            "change every interval.",
            next_step="Declare a watermark for its input; the second batch is the first that has one.",
        )
    return derive_reach(spark, stream, plan.inputs)


@dataclass(slots=True)
class CountedSuperseded:
    """The rows that are older than another one of their key, by the columns of the ordering; known once computed."""

    _pair: tuple[Observation, Observation] | None = None

    def newest(self, rows: DataFrame, declared: IcebergOutput) -> DataFrame:
        """The newest row of each key."""
        if not declared.ordering:
            return one_row_per_key(rows, declared)
        before, after = self._pair = Observation(), Observation()
        counted = fn.count(fn.lit(1)).alias("rows")
        return one_row_per_key(rows.observe(before, counted), declared).observe(after, counted)

    @property
    def rows(self) -> int:
        """How many rows were dropped."""
        return 0 if self._pair is None else int(self._pair[0].get["rows"]) - int(self._pair[1].get["rows"])


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRows:
    """The computed rows; a context manager would release them, `release` does.

    rows: of the interval, with the columns of the target. rejected: what the transformation rejected, rows with
        text that is not UTF-8, and rows that are too far ahead of the clock; unset without a quarantine.
    """

    rows: DataFrame
    rejected: DataFrame | None
    _kept: DataFrame
    _inputs: tuple[DataFrame, ...]
    _all_results: Observation
    _duplicates: CountedDuplicates
    _superseded: CountedSuperseded
    _without_time: DataFrame
    _every_timeless: Callable[[], DataFrame | None] | None
    _every_near: Callable[[], DataFrame | None] | None
    _beside: DataFrame
    _declared: IcebergOutput
    _reach: PlanReach
    _column: str
    _unknown: str

    def totals(self, *, moved: int) -> RowTotals:
        """The numbers of all computed rows. The rows must have been computed; those that were read are counted here,
        apart from the transformation.

        Parameters
        ----------
        moved: how many of them have left the interval.
        """
        superseded = self._superseded.rows
        return RowTotals(
            read=sum(rows.count() for rows in self._inputs),
            results=int(self._all_results.get["rows"]) - superseded - count_rejected_by_rules(self._kept),
            without_time=int(self._all_results.get["without_time"]),
            quarantined=self.rejected.count() if self.rejected is not None else 0,
            duplicate=self._duplicates.rows + superseded,
            moved=moved,
        )

    def moved(self, held: HeldRows, interval: Interval, length: IntervalLength) -> Mapping[Interval, int]:
        """The rows that the target holds in an interval and that lie in another one now (`moved_rows`). Rows that are
        made of several are counted again in each interval, and move nowhere."""
        if self._reach.keeps_rows:
            return {}
        return moved_rows(
            held=held.of_interval(interval),
            computed=self.rows,
            held_beside=held.outside(interval),
            computed_beside=self._beside.distinct() if self._declared.mode == "merge" else self._beside,
            column=self._column,
            length=length,
        )

    def arrived(self, held: HeldRows, interval: Interval, length: IntervalLength) -> Mapping[Interval, int]:
        """The rows of an interval that the target holds in another one, where they are not any more (`arrived_rows`).
        Where only an interval of the inputs is read, the nearest others are looked at."""
        if self._reach.keeps_rows:
            return {}
        is_whole = self._every_near is None
        return arrived_rows(
            held=held.of_interval(interval),
            computed=self.rows,
            held_beside=held.outside(interval, near=None if is_whole else interval.with_neighbours(length)),
            computed_beside=self._every_near or (lambda: self._beside),
            column=self._column,
            length=length,
        )

    def are_held_elsewhere(self, held: HeldRows, intervals: Sequence[Interval]) -> bool:
        """Whether the target holds each row that was computed beside some intervals: then every record that was read
        is published once these are."""
        whole = spanned(intervals)
        new, old = self._beside, held.outside(whole)
        if self._declared.mode == "merge":
            new = one_row_per_key(new, self._declared)
        hashed = new.select(*row_hashes(new))
        return hashed.exceptAll(old.select(*row_hashes(old))).isEmpty()

    def require_times(self, held: HeldRows, interval: Interval, *, stream: str, allows_repeated: bool = False) -> None:
        """Refuse rows whose time is null, unless the target holds them: no interval takes them, so that they would be
        lost where the row in their place is replaced. Refuse rows that the target holds without a time, and that have
        one now: no interval removes them, so that they would be there twice. The rows must have been computed.

        Parameters
        ----------
        held: what the target holds; a merged row is known by its keys. allows_repeated: whether it may hold rows of the
            interval without a time.

        Raises
        ------
        VerificationError: with their number.
        """
        timeless, refreshes = held.without_time(), f"`sluice stream refresh {stream}`"
        self._require_held(timeless, refreshes)
        if self._reach.keeps_rows or allows_repeated:
            return
        twice = TimesGiven(
            held=held.of_interval(interval),
            computed=self.rows,
            held_timeless=timeless,
            computed_timeless=self._without_time,
            every_timeless=self._every_timeless,
        ).count()
        if twice:
            raise VerificationError(
                f"{twice} rows of {interval.spoken} may be in {self._declared.table} already, with a null "
                f"{self._column} that they do not have any more: no interval removes those. {self._unknown}Nothing was "
                "published.",
                next_step=f"Build the whole table again: {refreshes}. {ALLOW_REPEATED}",
            )

    def _require_held(self, held: DataFrame, refreshes: str) -> None:
        if not int(self._all_results.get["without_time"]):
            return
        is_merged = self._declared.mode == "merge"
        by = self._declared.keys if is_merged else self.rows.columns
        new, old = (rows.select(*map(quoted, by)) for rows in (self._without_time, held))
        hashed = new.select(*row_hashes(new))
        lost = (hashed.distinct() if is_merged else hashed).exceptAll(old.select(*row_hashes(old))).count()
        if lost:
            raise VerificationError(
                f"{lost} rows of the result have no {self._column} and are not in {self._declared.table}: no interval "
                "takes them, so they would be lost. Nothing was published.",
                next_step=f"Let the transformation give them a {self._column}, or reject them: where the table holds "
                f"them with one, that takes `--allow-fewer`. {refreshes} builds the whole table again, with them.",
            )

    def of_intervals(self, intervals: Sequence[Interval], column: str) -> DataFrame:
        """The rows of some of the intervals, by their `column`."""
        return self.rows.where(reduce(Column.__or__, (within(self.rows, column, one) for one in intervals)))

    def require_unbroken(self, rules: Mapping[str, Sequence[RuleDeclaration]]) -> None:
        """Refuse rows that break a rule by which a batch of the stream would not become visible either.

        Raises
        ------
        VerificationError: with the rules and their counts.
        """
        if broken := blocking_rules(self._kept, rules):
            raise VerificationError(
                f"The rows of the interval break {broken}. Nothing was published.",
                next_step="Correct the data or the rule, and run the backfill again.",
            )

    def release(self) -> None:
        """Forget the computed rows."""
        for rows in (self._kept, self.rejected):
            if rows is not None:
                rows.unpersist()


@contextmanager
def computed_interval(
    spark: SparkSession, stream: LoadedStream, settings: Settings, seen: BackfillObservation, target: Table
) -> Iterator[tuple[IntervalRows, HeldRows]]:
    """The rows of an interval by what the stream had read when the backfill was planned, and what the target held then.

    Parameters
    ----------
    target: as it was loaded for the plan.

    Raises
    ------
    UnpublishableError: as `require_exact` raises it; when it cannot be known which of repeated rows the stream has
        kept.
    DeclarationError, SchemaError, SettingsError: as `plan_stream` raises them.
    """
    reach = require_exact(spark, stream, settings, seen)
    held = HeldRows.at(spark, settings.catalog.name, target, head=seen.head, column=backfill_of(stream).column)
    computed = _computed(spark, stream, settings, seen, reach=reach, held=held)
    try:
        yield computed, held
    finally:
        computed.release()


def _computed(
    spark: SparkSession,
    stream: LoadedStream,
    settings: Settings,
    seen: BackfillObservation,
    *,
    reach: PlanReach,
    held: HeldRows,
) -> IntervalRows:
    """Apply the transformation, and keep the interval's rows."""
    catalog, column = settings.catalog.name, backfill_of(stream).column
    bounds = {source.input: source for source in seen.sources}
    inputs = open_bounded(spark, stream, settings, bounds, wide=seen.interval.widened(seen.margin))
    duplicates, all_results = CountedDuplicates(), Observation()
    name, is_whole = seen.output.output, all(source.column is None for source in seen.sources)
    everything = held.everything() if is_whole else None
    outputs = batch_outputs(spark, stream, seen, inputs.rows, held=everything, duplicates=duplicates)
    targets = open_targets(spark, stream, outputs, catalog=catalog)
    declared = targets[0].declared
    outputs[name], invalid = separated(outputs[name], targets[0], has_quarantine=stream.declaration.quarantine)
    is_timeless = fn.col(quoted(column)).isNull()
    timeless = unite_outputs(stream, outputs | {name: outputs[name].where(is_timeless)}, targets).rows
    is_beside = ~within(outputs[name], column, seen.interval)
    beside = unite_outputs(stream, outputs | {name: outputs[name].where(is_beside)}, targets).rows
    counts = (fn.count(fn.lit(1)).alias("rows"), fn.count_if(is_timeless).alias("without_time"))
    found = outputs[name].observe(all_results, *counts)
    of_interval = found.where(within(found, column, seen.interval))
    superseded = CountedSuperseded()
    outputs[name] = superseded.newest(of_interval, declared) if declared.mode == "merge" else of_interval
    united = (result := unite_outputs(stream, outputs, targets)).rows.persist()
    columns = [quoted(field) for field in spark.table(targets[0].identifier).columns]
    own = [part(united, QUARANTINE_OUTPUT)] if QUARANTINE_OUTPUT in result.outputs else []
    rejected = [*own, *invalid, *inputs.rejected]
    return IntervalRows(
        rows=part(united, name).select(*columns),
        rejected=reduce(DataFrame.unionByName, rejected).persist() if rejected else None,
        _kept=united,
        _inputs=inputs.counted,
        _all_results=all_results,
        _duplicates=duplicates,
        _superseded=superseded,
        _without_time=part(timeless, name).select(*columns),
        _every_timeless=None if is_whole else partial(timeless_of_all, spark, stream, settings, seen),
        _every_near=None if is_whole else partial(rows_near, spark, stream, settings, seen),
        _beside=part(beside, name).select(*columns),
        _declared=declared,
        _reach=reach,
        _column=column,
        _unknown="".join(map(_unknown_losses, seen.sources)),
    )


def _unknown_losses(source: InputBound) -> str:
    """That records without a time may have been removed instead, as a sentence; empty where none was."""
    if isinstance(source, TopicBound) and source.has_lost_records:
        return f"Input {source.input} has lost records, and they may be rows of these. "
    if not isinstance(source, TableBound):
        return ""
    if source.has_lost_rows:
        return f"{source.table} has lost rows, and they may be made of these. "
    if source.has_expired_history:
        return f"Whether {source.table} has lost their records instead is unknown: snapshots of it are expired. "
    return ""
