"""Counts the rows that come too late for a window or a group, before they are put together.

Spark drops what is late *after* it has aggregated every partition of a batch, and counts groups: a thousand late rows
of one window are told as one or two. So an observed metric is put below every aggregation of a stream's plan, which
counts rows against the very watermark that Spark judges the batch by.

*How the plan learns the watermark*: Spark optimizes the plan of every batch anew, and folds what is constant on the
driver. The metric compares with a call of `Long.getLong`, which reads a system property of the driver's JVM; it is
folded once a batch. The property holds the watermark of the batch before, as Spark judges lateness by that one
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
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from sluice_spark.session.jvm import jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

LATE_METRIC = "sluice.late."
"""The prefix of the observed metrics that count late rows, one for each aggregation."""

AGGREGATIONS = frozenset({"stateStoreSave", "sessionWindowStateStoreSaveExec"})
"""The state operators whose own count of dropped rows is one of groups, as Spark's progress names them."""

_GROUPING = frozenset({"Aggregate", "Distinct"})
_WATERMARKED = "spark.watermarkDelayMs"
"""The mark that Spark puts on a column that descends from an event time."""

_MS_IN_MICROSECONDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LateWatermark:
    """The watermark that the next batch of a run judges lateness by: a system property of the driver's JVM.

    stream, run_id: whose it is.
    """

    spark: SparkSession
    stream: str
    run_id: str

    @property
    def _name(self) -> str:
        return f"sluice.late-watermark.{self.run_id}"

    @contextmanager
    def starting_at(self, watermark_ms: int) -> Iterator[None]:
        """While the block runs, there is such a watermark.

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
        """The same delivery, for `foreachBatch`; first it lets the next batch know the watermark of this one."""

        def follow_and_deliver(batch: DataFrame, number: int) -> None:
            self._set(batch_watermark_ms(self.spark, self.stream))
            deliver(batch, number)

        return follow_and_deliver

    def _set(self, watermark_ms: int) -> None:
        jvm_of(self.spark).java.lang.System.setProperty(self._name, str(watermark_ms * _MS_IN_MICROSECONDS))

    def column(self) -> Column:
        """It as a column, in microseconds: looked up once in the planning of every batch, and null before it is set."""
        jvm = jvm_of(self.spark)
        expressions, types = jvm.org.apache.spark.sql.catalyst.expressions, jvm.org.apache.spark.sql.types
        text = types.ObjectType(jvm.java.lang.Class.forName("java.lang.String"))
        call = expressions.objects.StaticInvoke(
            jvm.java.lang.Class.forName("java.lang.Long"),
            types.DataTypes.LongType,
            "getLong",
            _sequence(self.spark, [expressions.Literal(self._name, text)]),
            _sequence(self.spark, []),  # the types of its arguments: as they are
            True,  # a null argument makes a null
            True,  # it may be null
            True,  # it is constant while a batch is planned
            jvm.scala.Option.empty(),
        )
        return _column(self.spark, call)


def batch_watermark_ms(spark: SparkSession, query_name: str) -> int:
    """The watermark of the batch that a running query is at, in milliseconds since 1970; 0 before any event time."""
    query = next(query for query in spark.streams.active if query.name == query_name)
    execution: JavaObject = query._jsq.streamingQuery().lastExecution()
    return int(execution.offsetSeqMetadata().batchWatermarkMs())


def count_late(rows: DataFrame, watermark: LateWatermark) -> DataFrame:
    """The same rows, with a metric below each aggregation by event time that counts the rows that come too late for it.

    A row of a sliding window is late when the last of its windows is closed. An aggregation of aggregated rows has no
    metric: the rows were judged below.
    """
    marked = _Marking(spark=rows.sparkSession, watermark=watermark).below(_analyzed(rows))
    return _dataframe(rows.sparkSession, marked)


@dataclass(slots=True, kw_only=True)
class _Marking:
    """One walk over a plan."""

    spark: SparkSession
    watermark: LateWatermark
    _numbers: Callable[[], int] = field(default_factory=lambda: count().__next__)

    def below(self, plan: JavaObject) -> JavaObject:
        children = [self.below(child) for child in _listed(plan.children())]
        if plan.nodeName() in _GROUPING and plan.isStreaming() and not _has_aggregation(children[0]):
            event_time = _event_time(plan)
            if event_time is not None:
                children = [self._counted(children[0], event_time)]
        return plan.withNewChildren(_sequence(self.spark, children)) if children else plan

    def _counted(self, plan: JavaObject, event_time: JavaObject) -> JavaObject:
        """The plan with the metric: below the sliding window's expansion if there is one, otherwise on top."""
        if plan.nodeName() == "Expand" and plan.output().head().exprId().equals(event_time.exprId()):
            last_window = plan.projections().head().head()
            return plan.withNewChildren(_sequence(self.spark, [self._observed(plan.child(), last_window)]))
        if plan.nodeName() in ("Filter", "Project") and _passes(plan.child(), event_time):
            return plan.withNewChildren(_sequence(self.spark, [self._counted(plan.child(), event_time)]))
        return self._observed(plan, event_time)

    def _observed(self, plan: JavaObject, event_time: JavaObject) -> JavaObject:
        time = _column(self.spark, event_time)
        if event_time.dataType().typeName() == "struct":
            time = time.getField("end")
        late = fn.unix_micros(time.cast("timestamp")) <= self.watermark.column()
        rows = _dataframe(self.spark, plan).observe(f"{LATE_METRIC}{self._numbers()}", fn.count_if(late).alias("rows"))
        return _analyzed(rows)


def _event_time(plan: JavaObject) -> JavaObject | None:
    """The first column that a plan groups by and that descends from an event time, as Spark itself chooses it."""
    grouped = plan.output() if plan.nodeName() == "Distinct" else plan.groupingExpressions()
    named = (column for column in _listed(grouped) if "AttributeReference" in column.getClass().getName())
    return next((column for column in named if column.metadata().contains(_WATERMARKED)), None)


def _has_aggregation(plan: JavaObject) -> bool:
    """Whether what arrives here was judged before, or by another watermark: aggregated rows, or joined streams."""
    children = _listed(plan.children())
    is_join_of_streams = plan.nodeName() == "Join" and all(child.isStreaming() for child in children)
    is_aggregation = plan.nodeName() in _GROUPING and plan.isStreaming()
    return is_join_of_streams or is_aggregation or any(_has_aggregation(child) for child in children)


def _passes(plan: JavaObject, column: JavaObject) -> bool:
    """Whether a column is there already in a plan's rows."""
    return any(given.exprId().equals(column.exprId()) for given in _listed(plan.output()))


def _analyzed(rows: DataFrame) -> JavaObject:
    return rows._jdf.queryExecution().analyzed()


def _dataframe(spark: SparkSession, plan: JavaObject) -> DataFrame:
    java = jvm_of(spark).org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    return ClassicDataFrame(java, spark)


def _column(spark: SparkSession, expression: JavaObject) -> Column:
    return ClassicColumn(jvm_of(spark).org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def _sequence(spark: SparkSession, values: list[JavaObject]) -> JavaObject:
    return jvm_of(spark).org.apache.spark.api.python.PythonUtils.toSeq(values)


def _listed(sequence: JavaObject) -> list[JavaObject]:
    return [sequence.apply(index) for index in range(sequence.size())]
