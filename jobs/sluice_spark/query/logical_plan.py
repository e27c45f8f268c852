"""Spark's analyzed plan of a DataFrame, and the Java objects in it, as Python reads and builds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from sluice_spark.session.jvm import jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject


def analyzed_plan(rows: DataFrame) -> JavaObject:
    """The analyzed logical plan of some rows."""
    return rows._jdf.queryExecution().analyzed()


def rows_of_plan(spark: SparkSession, plan: JavaObject) -> DataFrame:
    """A DataFrame with this logical plan."""
    java = jvm_of(spark).org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    return ClassicDataFrame(java, spark)


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
