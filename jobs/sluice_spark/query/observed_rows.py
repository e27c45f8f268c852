"""Rows that a batch leaves out, observed while it computes the others: late ones, and records that cannot be decoded.

*Late rows* are counted below the aggregations of a stream. Spark drops late rows *after* it has aggregated every
partition of a batch, and counts groups: it reports a thousand late rows of one window as one or two. So an observed
metric is put below every aggregation of a stream's plan. It counts rows against the same watermark by which Spark drops
rows of the batch.

How the plan gets the watermark: Spark optimizes the plan of every batch again, and folds what is constant on the
driver. The metric compares with a call of `Long.getLong`, which reads a system property of the driver's JVM; it is
folded once for each batch. The property holds the watermark of the previous batch, by which Spark drops late rows
(decision 0016).

*Rejected records* could not be decoded. Each decoded input has a metric that counts them and keeps the first of each
block. Spark hands the metric over with the batch, so that neither the source is read nor a value parsed a second time.
When more were rejected than are kept, or when an operator may end before it has taken all rows (a join with an empty
table, a limit), the plan below the metric is executed once more, over the same offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import LongType, StructField, StructType

from sluice.errors import DeliveryError
from sluice_spark.query.logical_plan import (
    analyzed_plan,
    children_of,
    column_of,
    python_list,
    rows_of_plan,
    scala_sequence,
)
from sluice_spark.session.columns import REJECTED_ROW
from sluice_spark.session.jvm import jvm_of
from sluice_spark.sources.input_decoding import INPUT_METRIC, REJECTED_METRIC, rejected_of

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
    return int(_newest_execution(spark, query_name).offsetSeqMetadata().batchWatermarkMs())


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


_KEPT = StructType([StructField("number", LongType()), *REJECTED_ROW])

_METRIC = "CollectMetrics"
_TAKES_ALL = frozenset(
    {
        "Aggregate",
        "CTERelationDef",
        "CTERelationRef",
        _METRIC,
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "EventTimeWatermark",
        "Expand",
        "Filter",
        "Generate",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "SubqueryAlias",
        "StreamingRelation",
        "StreamingRelationV2",
        "Union",
        "View",
        "Window",
        "WithCTE",
    }
)
"""The operators that take every row of what is below them, by their names in an analyzed plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRecords:
    """The rejected records of a query's batches.

    spark, query_name: the query. metrics: the metric of each decoded input.
    takes_all: whether the metrics have seen every record once a batch is computed.
    """

    spark: SparkSession
    query_name: str
    metrics: Sequence[str]
    takes_all: bool

    def of_computed_batch(self) -> tuple[int, DataFrame | None]:
        """How many records of the batch that was just computed are rejected, and which; None when there are none.

        Raises
        ------
        DeliveryError: when the records that are read again are not those that were rejected.
        """
        execution = _newest_execution(self.spark, self.query_name)
        parts = [self._of_input(execution, metric) for metric in self.metrics]
        found = [rows for _, rows in parts if rows is not None]
        return sum(count for count, _ in parts), reduce(DataFrame.unionByName, found) if found else None

    def _of_input(self, execution: JavaObject, metric: str) -> tuple[int, DataFrame | None]:
        observed = execution.observedMetrics().get(metric)
        if not self.takes_all or observed.isEmpty():
            return _counted(self._read_again(execution, metric))
        count, kept = int(observed.get().getLong(0)), observed.get().getList(1)
        if count == 0:
            return 0, None
        if kept.size() == count:
            return _counted(self._rows_of(kept))
        again, rows = _counted(self._read_again(execution, metric))
        if again == 0 or count % again:  # a partition that was computed twice is counted twice
            raise DeliveryError(
                f"{count} records of the input {metric.removeprefix(REJECTED_METRIC)} were rejected, and {again} when "
                "they were read again for the quarantine.",
                next_step="Start the stream again; the batch is then computed again.",
            )
        return again, rows

    def _rows_of(self, kept: JavaObject) -> DataFrame:
        session = self.spark._jsparkSession
        java = session.createDataFrame(kept, session.parseDataType(_KEPT.json()))
        return ClassicDataFrame(java, self.spark).dropDuplicates(["number"]).drop("number")

    def _read_again(self, execution: JavaObject, metric: str) -> DataFrame:
        """The rejected records below a metric, over the offsets of the batch. To Spark this is the plan of a stream,
        which it does not execute as a batch unless its rows are handed over as an RDD.
        """
        session = execution.sparkSession().cloneSession()
        session.conf().set("spark.sql.streaming.unsupportedOperationCheck", "false")
        plan = next(found for found in _metrics_in(execution.analyzed()) if found.name() == metric).child()
        java = jvm_of(self.spark).org.apache.spark.sql.classic.Dataset.ofRows(session, plan)
        again = rejected_of(ClassicDataFrame(java, self.spark))
        computed = again._jdf.queryExecution().toRdd()
        rows = self.spark._jsparkSession.internalCreateDataFrame(computed, again._jdf.schema(), False)
        return ClassicDataFrame(rows, self.spark)


def rows_read(spark: SparkSession, query_name: str) -> int | None:
    """The rows that the inputs of a query have counted in the batch that was just computed; none where they count none,
    or an operator above them has ended before it took all rows."""
    metrics = python_list(_newest_execution(spark, query_name).observedMetrics().toSeq())
    counts = [
        int(metric._2().getAs("rows"))
        for metric in metrics
        if str(metric._1()).startswith((INPUT_METRIC, REJECTED_METRIC)) and "rows" in metric._2().schema().names()
    ]
    return sum(counts) if counts else None


def _newest_execution(spark: SparkSession, query_name: str) -> JavaObject:
    query = next(query for query in spark.streams.active if query.name == query_name)
    return query._jsq.streamingQuery().lastExecution()


def rejected_records(rows: DataFrame, query_name: str, metrics: Sequence[str]) -> RejectedRecords | None:
    """The rejected records of a query; None when no input is decoded.

    Parameters
    ----------
    rows: the rows of the query.
    """
    if not metrics:
        return None
    takes_all = all(_takes_all(operator) for operator in _above_metrics(analyzed_plan(rows)))
    return RejectedRecords(spark=rows.sparkSession, query_name=query_name, metrics=tuple(metrics), takes_all=takes_all)


def _takes_all(operator: JavaObject) -> bool:
    """Whether an operator takes every row below it. A join of streams does, one with an empty table may not."""
    joins_streams = operator.nodeName() == "Join" and all(child.isStreaming() for child in children_of(operator))
    return joins_streams or operator.nodeName() in _TAKES_ALL


def _counted(rows: DataFrame) -> tuple[int, DataFrame | None]:
    count = rows.count()
    return count, rows if count else None


def _metrics_in(plan: JavaObject) -> Iterator[JavaObject]:
    return (operator for operator in _operators(plan) if operator.nodeName() == _METRIC)


def _above_metrics(plan: JavaObject) -> Iterator[JavaObject]:
    """The operators of a plan without those below the metric of a decoded input."""
    yield plan
    if plan.nodeName() == _METRIC and plan.name().startswith(REJECTED_METRIC):
        return
    for child in children_of(plan):
        yield from _above_metrics(child)


def _operators(plan: JavaObject) -> Iterator[JavaObject]:
    yield plan
    for child in children_of(plan):
        yield from _operators(child)
