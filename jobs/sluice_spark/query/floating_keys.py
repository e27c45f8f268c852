"""Gives equal floating keys of a streaming de-duplication one form: -0.0 and 0.0 are equal, and so is every NaN.

Spark 4.1 does so for the keys of aggregations and joins (`NormalizeFloatingNumbers`), and not for those of a
de-duplication, which compares the bytes of its keys: equal rows would all be kept, and none counted as a duplicate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from sluice_spark.query.logical_plan import analyzed_plan, children_of, python_list, rows_of_plan, scala_sequence
from sluice_spark.session.jvm import jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_DEDUPLICATIONS = frozenset({"Deduplicate", "DeduplicateWithinWatermark"})
_FLOATING = frozenset({"float", "double"})


def with_normalized_keys(rows: DataFrame) -> DataFrame:
    """The same rows, with the floating keys of each de-duplication in one form below it."""
    plan = analyzed_plan(rows)
    if not _has_floating_keys(plan):
        return rows
    return rows_of_plan(rows.sparkSession, _normalized(rows.sparkSession, plan))


def _has_floating_keys(plan: JavaObject) -> bool:
    return bool(_floating_keys(plan)) or any(map(_has_floating_keys, children_of(plan)))


def _floating_keys(plan: JavaObject) -> set[int]:
    """The ids of the floating keys of a streaming de-duplication; none of another operator."""
    if plan.nodeName() not in _DEDUPLICATIONS or not plan.isStreaming():
        return set()
    keys = python_list(plan.keys())
    return {key.exprId().id() for key in keys if key.dataType().typeName() in _FLOATING}


def _normalized(spark: SparkSession, plan: JavaObject) -> JavaObject:
    children = [_normalized(spark, child) for child in children_of(plan)]
    if not (floating := _floating_keys(plan)):
        return plan.withNewChildren(scala_sequence(spark, children)) if children else plan
    (child,) = children
    logical = jvm_of(spark).org.apache.spark.sql.catalyst.plans.logical
    columns = python_list(child.output())
    # With their own ids Spark would take the projection for one that changes nothing, and drop it.
    below = [_one_form(spark, one) if one.exprId().id() in floating else one for one in columns]
    given = {one.exprId().id(): new.toAttribute() for one, new in zip(columns, below, strict=True)}
    keys = scala_sequence(spark, [given[key.exprId().id()] for key in python_list(plan.keys())])
    unique = getattr(logical, plan.nodeName())(keys, logical.Project(scala_sequence(spark, below), child))
    above = [_alias(spark, given[one.exprId().id()], one) if one.exprId().id() in floating else one for one in columns]
    return logical.Project(scala_sequence(spark, above), unique)


def _one_form(spark: SparkSession, attribute: JavaObject) -> JavaObject:
    jvm = jvm_of(spark)
    value = jvm.org.apache.spark.sql.catalyst.optimizer.NormalizeNaNAndZero(attribute)
    return _alias(spark, value, attribute, is_new=True)


def _alias(spark: SparkSession, value: JavaObject, attribute: JavaObject, *, is_new: bool = False) -> JavaObject:
    """A value under the name of a column, and its id, by which the operators above refer to it."""
    jvm = jvm_of(spark)
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    identity = (attribute.newInstance() if is_new else attribute).exprId()
    metadata = jvm.scala.Option.apply(attribute.metadata())
    return expressions.Alias(
        value, attribute.name(), identity, attribute.qualifier(), metadata, scala_sequence(spark, [])
    )
