"""The records of a batch that could not be decoded: observed while the rows of the batch are computed.

Each decoded input has a metric that counts its rejected records and keeps the first of each block. Spark hands the
metric over with the batch, so that neither the source is read nor a value parsed a second time. When more were rejected
than are kept, or when an operator may end before it has taken all rows (a join with an empty table, a limit), the plan
below the metric is executed once more, over the same offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import LongType, StructField, StructType

from sluice.errors import DeliveryError
from sluice_spark.query.logical_plan import analyzed_plan, children_of, python_list
from sluice_spark.session.columns import REJECTED_ROW
from sluice_spark.session.jvm import jvm_of
from sluice_spark.sources.input_decoding import INPUT_METRIC, REJECTED_METRIC, rejected_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

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
