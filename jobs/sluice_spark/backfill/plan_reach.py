"""Derives from the analysed plan of a stream how far the rows of its result lie from those that they are made of.

The plan is walked from the inputs to the result. The time of an input is marked there; what a step makes of it is
followed as long as it is a window, a shift, a truncation, or the same. A join of streams adds the rows of the other
side, within the range by which Spark itself limits the state of the join. What cannot be followed is no error: the
declaration then says how far it reaches (decision 0078).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice.backfill.observe_backfill import backfill_of, backfilled_output
from sluice.backfill.reach import JOINS_SETTLE, SAME, PlanReach, TimeReach, within_range
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.source_declarations import IcebergSource
from sluice_spark.backfill.expression_times import Column, ExpressionTimes, Times, after, merged, one_of
from sluice_spark.query.batch_form import DEDUPLICATIONS
from sluice_spark.query.logical_plan import analyzed_plan, children_of, python_list, stateful_operators
from sluice_spark.query.transformation import transform
from sluice_spark.session.jvm import jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_MARK = "sluice.reach."
"""The prefix of the metrics that mark the inputs in the plan. Nothing is executed."""

_WATERMARKED = "spark.watermarkDelayMs"
"""What Spark writes into the metadata of a column of event time."""

_A_WATERMARK_MS = 10**12
"""Any: the range of a join does not depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What is known below a step of the plan: its columns by their ids, and how late its rows come."""

    columns: Mapping[int, Column]
    lag: timedelta = timedelta(0)


def derive_reach(spark: SparkSession, stream: LoadedStream, inputs: Mapping[str, DataFrame]) -> PlanReach:
    """How far the result of a stream reaches.

    Parameters
    ----------
    inputs: as the transformation gets them, as streams.

    Raises
    ------
    DeclarationError: as `transform` raises it.
    """
    marked = {name: mark_input(rows, name) if rows.isStreaming else rows for name, rows in inputs.items()}
    result = transform(spark, stream, marked)[backfilled_output(stream).output]
    times, reads = _time_columns(stream), backfill_of(stream).reads
    reach = reach_of_result(result, column=backfill_of(stream).column, times=times)
    beside = (name for name, column in reads.items() if times.get(name) != column or _decodes_column(stream, name))
    return replace(reach, beside=tuple(beside))


def mark_input(rows: DataFrame, name: str) -> DataFrame:
    """The rows of an input, which `reach_of_result` then finds in the plan."""
    return rows.observe(f"{_MARK}{name}", fn.count(fn.lit(1)).alias("rows"))


def reach_of_result(result: DataFrame, *, column: str, times: Mapping[str, str]) -> PlanReach:
    """How far a streaming result reaches.

    Parameters
    ----------
    column: the time of the result. times: by marked input, the column that is the time of its rows.
    """
    plan, walk = analyzed_plan(result), _Walk(spark=result.sparkSession, columns=times)
    kept = [name for name in stateful_operators(result) if name not in DEDUPLICATIONS]
    known = walk.below(plan).columns
    found = known.get(python_list(plan.output())[result.columns.index(column)].exprId().id())
    follows = found is not None and not found.is_window and bool(found.times)
    unknown = walk.expressions.problem or (
        "" if follows else f"{column} is not made of the time of an input by a known step"
    )
    return PlanReach(
        of_inputs={} if unknown or found is None else found.times,
        unknown=unknown,
        keeps_rows=bool(kept),
        lag=walk.late + (JOINS_SETTLE if "Join" in kept else timedelta(0)),
        at_least=walk.expressions.gap,
    )


def _time_columns(stream: LoadedStream) -> dict[str, str]:
    """The column that is the time of each input: that of its watermark, or the one of `reads` if its rows have that."""
    reads = {name: one for name, one in backfill_of(stream).reads.items() if not _decodes_column(stream, name)}
    found = {name: one.watermark.column for name, one in stream.declaration.inputs.items() if one.watermark is not None}
    return {**reads, **found}


def _decodes_column(stream: LoadedStream, name: str) -> bool:
    """Whether an input is a table of which a column is decoded: it is read by a column of the table, and what a column
    of its rows has is of the value, whatever its name."""
    source = stream.declaration.inputs[name].declared_source.source
    return isinstance(source, IcebergSource) and source.value is not None


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One walk over a plan. late: how late rows reach the topmost step that keeps rows."""

    spark: SparkSession
    columns: Mapping[str, str]
    expressions: ExpressionTimes = field(default_factory=ExpressionTimes)
    late: timedelta = timedelta(0)

    def below(self, plan: JavaObject) -> _Step:
        name = plan.nodeName()
        if name == "CollectMetrics" and plan.name().startswith(_MARK):
            return self._input(plan, plan.name().removeprefix(_MARK))
        children = [self.below(child) for child in children_of(plan)]
        lag = max((child.lag for child in children), default=timedelta(0))
        known = {key: column for child in children for key, column in child.columns.items()}
        match name:
            case "Join" if all(child.isStreaming() for child in children_of(plan)):
                self.late = max(self.late, lag)
                return self._join(plan, *children)
            case "Union":
                return _Step(columns=_united(plan, known), lag=lag)
            case "Project":
                return _Step(columns=self.expressions.named(python_list(plan.projectList()), known), lag=lag)
            case "Aggregate":
                self.late = max(self.late, lag)
                return _Step(columns=self.expressions.named(python_list(plan.aggregateExpressions()), known), lag=lag)
            case "Expand":
                return _Step(columns=self.expressions.expanded(plan, known), lag=lag)
            case "GlobalLimit" if plan.isStreaming():
                self.expressions.fail("a limit lets rows through in the order in which they arrive")
        return _Step(columns=known, lag=lag)

    def _input(self, plan: JavaObject, name: str) -> _Step:
        time = self.columns.get(name)
        return _Step(
            columns={
                attribute.exprId().id(): Column(times={name: SAME})
                for attribute in python_list(plan.output())
                if attribute.name() == time
            }
        )

    def _join(self, plan: JavaObject, left: _Step, right: _Step) -> _Step:
        """Each row is made of one of the other side, too: of the same event time or window, or within a range."""
        pair = self._paired(plan, left, right)
        if pair is None:
            self.expressions.fail("a join of streams does not say how far the times of its sides lie apart")
            return _Step(columns={**left.columns, **right.columns}, lag=max(left.lag, right.lag))
        return _Step(
            columns={
                **_beside(left, pair.left, pair.to_right, pair.same),
                **_beside(right, pair.right, pair.to_left, pair.same),
            },
            lag=max(left.lag, right.lag) + pair.lag,
        )

    def _paired(self, plan: JavaObject, left: _Step, right: _Step) -> _Pair | None:
        sides = children_of(plan)
        events = [_events(side, step) for side, step in zip(sides, (left, right), strict=True)]
        for one, other in _equalities(plan):
            found = [(one in left.columns and other in right.columns, one, other)]
            found.append((other in left.columns and one in right.columns, other, one))
            for is_pair, here, there in found:
                if is_pair and here in events[0] and there in events[1]:
                    return _equal(here, left.columns[here], there, right.columns[there])
        ahead, behind = self._range(plan, *sides), self._range(plan, *reversed(sides))
        if ahead is None or behind is None or len(events[0]) != 1 or len(events[1]) != 1:
            return None
        here, there = events[0][0], events[1][0]
        x, y = left.columns[here], right.columns[there]
        if x.is_window or y.is_window or _base(x) is None or _base(y) is None:
            return None
        later, earlier = _whole(ahead), _whole(behind)
        return _Pair(
            left=here,
            right=there,
            to_right=after(within_range(-earlier, later), y.times),
            to_left=after(within_range(-later, earlier), x.times),
            lag=max(ahead, behind, timedelta(0)),
        )

    def _range(self, plan: JavaObject, side: JavaObject, other: JavaObject) -> timedelta | None:
        """How much later than a row of one side a row of the other can be, as Spark limits the state of the join."""
        jvm = jvm_of(self.spark)
        helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
        sets = (side.outputSet(), other.outputSet())
        found = helper.getStateValueWatermark(*sets, plan.condition(), jvm.scala.Some(_A_WATERMARK_MS))
        return timedelta(milliseconds=_A_WATERMARK_MS - found.get()) if found.isDefined() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """The event times by which two streams are joined. to_right, to_left: by input of the other side, how the time of a
    row follows from its rows there. same: the equal columns with the rows of both sides; none for a range."""

    left: int
    right: int
    to_right: Times
    to_left: Times
    same: Column | None = None
    lag: timedelta = timedelta(0)


def _equal(here: int, x: Column, there: int, y: Column) -> _Pair | None:
    if x.is_window != y.is_window or _base(x) is None or _base(y) is None:
        return None
    ends = {**(x.ends or {}), **(y.ends or {})} if x.is_window else None
    same = Column(times=merged(x.times, y.times), ends=ends)
    return _Pair(left=here, right=there, to_right=_spans(y), to_left=_spans(x), same=same)


def _spans(column: Column) -> Times:
    """How a time within a window follows from the rows of the window; the same for a time."""
    if column.ends is None:
        return column.times
    return {
        name: TimeReach(earliest=column.ends[name].earliest, latest=start.latest)
        for name, start in column.times.items()
    }


def _base(column: Column) -> str | None:
    """The one input whose rows have this time, or lie in this window."""
    own = [name for name, reach in column.times.items() if reach is SAME] or list(column.times)
    return own[0] if len(own) == 1 and (column.is_window or column.times[own[0]] is SAME) else None


def _beside(step: _Step, event: int, others: Times, same: Column | None) -> dict[int, Column]:
    """The columns of one side of a join, with the rows of the other side of which they are made, too."""
    base = _base(step.columns[event])
    if base is None:
        return {}
    found: dict[int, Column] = {}
    for key, column in step.columns.items():
        if key == event and same is not None:
            found[key] = same
        elif base in column.times:
            times = merged(column.times, after(column.times[base], others))
            ends = column.ends
            if ends is not None:
                ends = merged(ends, after(ends[base], others))
            found[key] = Column(times=times, ends=ends)
    return found


def _united(plan: JavaObject, known: Mapping[int, Column]) -> dict[int, Column]:
    outputs = [python_list(child.output()) for child in children_of(plan)]
    found = {
        attribute.exprId().id(): one_of([known.get(of_one[place].exprId().id()) for of_one in outputs])
        for place, attribute in enumerate(python_list(plan.output()))
    }
    return {key: column for key, column in found.items() if column is not None}


def _events(side: JavaObject, step: _Step) -> list[int]:
    """The event times among the columns of one side of a join."""
    attributes = python_list(side.output())
    marked = [one.exprId().id() for one in attributes if one.metadata().contains(_WATERMARKED)]
    return [key for key in marked if key in step.columns]


def _equalities(plan: JavaObject) -> Iterator[tuple[int, int]]:
    """The columns that a join requires to be equal."""
    condition = plan.condition()
    pending = [condition.get()] if condition.isDefined() else []
    while pending:
        one = pending.pop()
        children = python_list(one.children())
        kind = one.getClass().getSimpleName()
        if kind == "And":
            pending += children
        elif kind == "EqualTo" and all(child.getClass().getSimpleName() == "AttributeReference" for child in children):
            yield children[0].exprId().id(), children[1].exprId().id()


def _whole(found: timedelta) -> timedelta:
    """A range without the millisecond by which Spark rounds an inclusive one."""
    return found - JOINS_SETTLE if found % timedelta(seconds=1) == JOINS_SETTLE else found
