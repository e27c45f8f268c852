"""Spark's analyzed plan of a DataFrame, and the Java objects in it, as Python reads and builds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from sluice_spark.session.jvm import jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView


def analyzed_plan(rows: DataFrame) -> JavaObject:
    """The analyzed logical plan of some rows."""
    return rows._jdf.queryExecution().analyzed()


def rows_of_plan(spark: SparkSession, plan: JavaObject) -> DataFrame:
    """A DataFrame with this logical plan."""
    java = jvm_of(spark).org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    return ClassicDataFrame(java, spark)


_CHANGING = (
    "org.apache.spark.sql.catalyst.plans.logical.Command",
    "org.apache.spark.sql.catalyst.plans.logical.ParsedStatement",
)
"""What Spark's parser makes of a text that does something: `SparkSession.sql` would do it at once."""


def is_query(spark: SparkSession, text: str) -> bool:
    """Whether Spark's own parser takes a text for a query. Nothing is resolved or executed.

    Raises
    ------
    ParseException: when it is not one statement of Spark's SQL.
    """
    return not _does_something(jvm_of(spark), spark._jsparkSession.sessionState().sqlParser().parsePlan(text))


def _does_something(jvm: JVMView, plan: JavaObject) -> bool:
    kinds = (jvm.java.lang.Class.forName(name) for name in _CHANGING)
    return any(kind.isInstance(plan) for kind in kinds) or any(
        _does_something(jvm, child) for child in children_of(plan)
    )


def inline_ctes(rows: DataFrame) -> DataFrame:
    """The same rows, with the body of every common table expression in the place of its name: what looks through a plan
    then sees the sources, and can put something above them."""
    spark, plan = rows.sparkSession, analyzed_plan(rows)
    if not _holds_ctes(plan):
        return rows
    inline = jvm_of(spark).org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False)
    return rows_of_plan(spark, inline.apply(plan))


def _holds_ctes(plan: JavaObject) -> bool:
    return plan.nodeName() == "WithCTE" or any(_holds_ctes(child) for child in children_of(plan))


def children_of(plan: JavaObject) -> list[JavaObject]:
    """The operators directly below an operator."""
    return python_list(plan.children())


def leaves_of(plan: JavaObject) -> list[JavaObject]:
    """The operators of a plan that read something."""
    return python_list(plan.collectLeaves())


def python_list(sequence: JavaObject) -> list[JavaObject]:
    """The elements of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def column_of(spark: SparkSession, expression: JavaObject) -> Column:
    """A column that is exactly this expression, whatever the names of other columns."""
    return ClassicColumn(jvm_of(spark).org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def scala_sequence(spark: SparkSession, values: list[JavaObject]) -> JavaObject:
    """A Scala sequence of some values."""
    return jvm_of(spark).org.apache.spark.api.python.PythonUtils.toSeq(values)
