"""Turns the rows of a streaming transformation into those of a batch, where Spark knows a step for streams only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Observation, SparkSession, Window
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

WITHIN_WATERMARK = "DeduplicateWithinWatermark"
DEDUPLICATIONS = frozenset({WITHIN_WATERMARK, "Deduplicate", "Distinct"})
"""The operators that drop repeated rows."""

_ROWS = "rows"
_PLACE = "_sluice_place"


def as_batch(rows: DataFrame) -> DataFrame:
    """The same rows as a batch: all duplicates are in hand, so they are dropped however far apart they are."""
    plan = analyzed_plan(rows)
    if WITHIN_WATERMARK not in steps_of(plan):
        return rows
    spark = rows.sparkSession
    return rows_of_plan(spark, _replaced(spark, plan))


def steps_of(plan: JavaObject) -> list[str]:
    """The names of all operators of a plan."""
    return [plan.nodeName(), *(name for child in children_of(plan) for name in steps_of(child))]


@dataclass(slots=True)
class CountedDuplicates:
    """The rows before and after each step that drops duplicates; known once the rows were computed."""

    _pairs: list[tuple[Observation, Observation]] = field(default_factory=list)

    def as_batch(self, rows: DataFrame) -> DataFrame:
        """The rows as a batch, with the duplicates that they drop counted."""
        plan = analyzed_plan(rows)
        if DEDUPLICATIONS.isdisjoint(steps_of(plan)):
            return rows
        return rows_of_plan(rows.sparkSession, self._counted(rows.sparkSession, plan))

    @property
    def rows(self) -> int:
        """How many rows were dropped."""
        return sum(int(before.get[_ROWS]) - int(after.get[_ROWS]) for before, after in self._pairs)

    def _counted(self, spark: SparkSession, plan: JavaObject) -> JavaObject:
        children = [self._counted(spark, child) for child in children_of(plan)]
        if plan.nodeName() not in DEDUPLICATIONS:
            return plan.withNewChildren(scala_sequence(spark, children)) if children else plan
        before, after = Observation(), Observation()
        self._pairs.append((before, after))
        child = _observed(spark, children[0], before)
        if plan.nodeName() == "Distinct":
            return _observed(spark, plan.withNewChildren(scala_sequence(spark, [child])), after)
        return _observed(spark, _lowest_of_each(spark, plan, child), after)


def _lowest_of_each(spark: SparkSession, deduplication: JavaObject, child: JavaObject) -> JavaObject:
    """The row of each key that is lowest by its other columns, so that the same rows always give the same result. Spark
    keeps whichever row comes first, which differs from run to run."""
    keys = python_list(deduplication.keys())
    key_ids = {key.exprId().id() for key in keys}
    is_orderable = jvm_of(spark).org.apache.spark.sql.catalyst.expressions.RowOrdering.isOrderable
    others = [
        attribute
        for attribute in python_list(child.output())
        if attribute.exprId().id() not in key_ids and is_orderable(attribute.dataType())
    ]
    if not others:
        return _deduplicate(spark, deduplication, child)
    by_key = Window.partitionBy(*(column_of(spark, key) for key in keys))
    place = fn.row_number().over(by_key.orderBy(*(column_of(spark, other) for other in others)))
    rows = rows_of_plan(spark, child).withColumn(_PLACE, place)
    return analyzed_plan(rows.where(fn.col(_PLACE) == 1).drop(_PLACE))


def _observed(spark: SparkSession, plan: JavaObject, observation: Observation) -> JavaObject:
    return analyzed_plan(rows_of_plan(spark, plan).observe(observation, fn.count(fn.lit(1)).alias(_ROWS)))


def _replaced(spark: SparkSession, plan: JavaObject) -> JavaObject:
    children = [_replaced(spark, child) for child in children_of(plan)]
    if plan.nodeName() == WITHIN_WATERMARK:
        return _deduplicate(spark, plan, children[0])
    return plan.withNewChildren(scala_sequence(spark, children)) if children else plan


def _deduplicate(spark: SparkSession, plan: JavaObject, child: JavaObject) -> JavaObject:
    return jvm_of(spark).org.apache.spark.sql.catalyst.plans.logical.Deduplicate(plan.keys(), child)
