"""Counts late rows below the aggregations of a stream.

Spark drops late rows *after* it has aggregated every partition of a batch, and counts groups: it reports a thousand
late rows of one window as one or two. So an observed metric is put below every aggregation of a stream's plan. It
counts rows against the same watermark by which Spark drops rows of the batch.

*How the plan gets the watermark*: Spark optimizes the plan of every batch again, and folds what is constant on the
driver. The metric compares with a call of `Long.getLong`, which reads a system property of the driver's JVM; it is
folded once for each batch. The property holds the watermark of the previous batch, by which Spark drops late rows
(decision 0016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice_spark.query.logical_plan import (
    analyzed_plan,
    children_of,
    column_of,
    python_list,
    rows_of_plan,
    scala_sequence,
)
from sluice_spark.session.jvm import jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

LATE_METRIC = "sluice.late."
"""The prefix of the observed metrics that count late rows, one for each aggregation."""

AGGREGATIONS = frozenset({"stateStoreSave", "sessionWindowStateStoreSaveExec"})
"""The state operators that count dropped groups instead of rows, as Spark's progress report names them."""

_GROUPING = frozenset({"Aggregate", "Distinct"})
_WATERMARKED = "spark.watermarkDelayMs"
"""The metadata key that Spark sets on a column that derives from an event time."""

_MS_IN_MICROSECONDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LateWatermark:
    """The watermark by which rows of the next batch are late: a system property of the driver's JVM."""

    spark: SparkSession
    stream: str
    run_id: str

    @property
    def _name(self) -> str:
        return f"sluice.late-watermark.{self.run_id}"

    @contextmanager
    def starting_at(self, watermark_ms: int) -> Iterator[None]:
        """Set the watermark while the block runs.

        Parameters
        ----------
        watermark_ms: of the newest batch before the first one, in milliseconds since 1970; 0 when there is none.
        """
        self._set(watermark_ms)
        try:
            yield
        finally:
            jvm_of(self.spark).java.lang.System.clearProperty(self._name)

    def ahead_of(self, deliver: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """The same delivery, for `foreachBatch`; it first sets the watermark of this batch for the next one."""

        def follow_and_deliver(batch: DataFrame, number: int) -> None:
            self._set(batch_watermark_ms(self.spark, self.stream))
            deliver(batch, number)

        return follow_and_deliver

    def _set(self, watermark_ms: int) -> None:
        jvm_of(self.spark).java.lang.System.setProperty(self._name, str(watermark_ms * _MS_IN_MICROSECONDS))

    def column(self) -> Column:
        """The watermark as a column, in microseconds: read once when a batch is planned, and null before it is set."""
        jvm = jvm_of(self.spark)
        expressions, types = jvm.org.apache.spark.sql.catalyst.expressions, jvm.org.apache.spark.sql.types
        text = types.ObjectType(jvm.java.lang.Class.forName("java.lang.String"))
        call = expressions.objects.StaticInvoke(
            jvm.java.lang.Class.forName("java.lang.Long"),
            types.DataTypes.LongType,
            "getLong",
            scala_sequence(self.spark, [expressions.Literal(self._name, text)]),
            scala_sequence(self.spark, []),  # the types of its arguments: as they are
            True,  # a null argument makes a null
            True,  # it may be null
            True,  # it is constant while a batch is planned
            jvm.scala.Option.empty(),
        )
        return column_of(self.spark, call)


def batch_watermark_ms(spark: SparkSession, query_name: str) -> int:
    """The watermark of the batch that a query runs, in milliseconds since 1970; 0 before any event time."""
    query = next(query for query in spark.streams.active if query.name == query_name)
    execution: JavaObject = query._jsq.streamingQuery().lastExecution()
    return int(execution.offsetSeqMetadata().batchWatermarkMs())


def count_late(rows: DataFrame, watermark: LateWatermark) -> DataFrame:
    """The same rows, with a metric below each aggregation by event time that counts the late rows.

    A row of a sliding window is late when the last of its windows is closed. An aggregation of aggregated rows has no
    metric: its rows are counted below it.
    """
    marked = _Marking(spark=rows.sparkSession, watermark=watermark).below(analyzed_plan(rows))
    return rows_of_plan(rows.sparkSession, marked)


@dataclass(slots=True, kw_only=True)
class _Marking:
    """One walk over a plan."""

    spark: SparkSession
    watermark: LateWatermark
    _numbers: Callable[[], int] = field(default_factory=lambda: count().__next__)

    def below(self, plan: JavaObject) -> JavaObject:
        children = [self.below(child) for child in children_of(plan)]
        if plan.nodeName() in _GROUPING and plan.isStreaming() and not _has_aggregation(children[0]):
            event_time = _event_time(plan)
            if event_time is not None:
                children = [self._counted(children[0], event_time)]
        return plan.withNewChildren(scala_sequence(self.spark, children)) if children else plan

    def _counted(self, plan: JavaObject, event_time: JavaObject) -> JavaObject:
        """The plan with the metric: below the expansion of a sliding window if there is one, otherwise on top."""
        if plan.nodeName() == "Expand" and plan.output().head().exprId().equals(event_time.exprId()):
            last_window = plan.projections().head().head()
            return plan.withNewChildren(scala_sequence(self.spark, [self._observed(plan.child(), last_window)]))
        if plan.nodeName() in ("Filter", "Project") and _passes(plan.child(), event_time):
            return plan.withNewChildren(scala_sequence(self.spark, [self._counted(plan.child(), event_time)]))
        return self._observed(plan, event_time)

    def _observed(self, plan: JavaObject, event_time: JavaObject) -> JavaObject:
        time = column_of(self.spark, event_time)
        if event_time.dataType().typeName() == "struct":
            time = time.getField("end")
        late = fn.unix_micros(time.cast("timestamp")) <= self.watermark.column()
        rows = rows_of_plan(self.spark, plan).observe(
            f"{LATE_METRIC}{self._numbers()}", fn.count_if(late).alias("rows")
        )
        return analyzed_plan(rows)


def _event_time(plan: JavaObject) -> JavaObject | None:
    """The first grouping column that derives from an event time, as Spark itself chooses it."""
    grouped = plan.output() if plan.nodeName() == "Distinct" else plan.groupingExpressions()
    named = (column for column in python_list(grouped) if "AttributeReference" in column.getClass().getName())
    return next((column for column in named if column.metadata().contains(_WATERMARKED)), None)


def _has_aggregation(plan: JavaObject) -> bool:
    """Whether the rows were counted below, or have another watermark: aggregated rows, or joined streams."""
    children = children_of(plan)
    is_join_of_streams = plan.nodeName() == "Join" and all(child.isStreaming() for child in children)
    is_aggregation = plan.nodeName() in _GROUPING and plan.isStreaming()
    return is_join_of_streams or is_aggregation or any(_has_aggregation(child) for child in children)


def _passes(plan: JavaObject, column: JavaObject) -> bool:
    """Whether the rows of a plan have a column."""
    return any(given.exprId().equals(column.exprId()) for given in python_list(plan.output()))
