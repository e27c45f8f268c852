"""Spark's analyzed plan of a DataFrame: the Java objects in it as Python reads and builds them, and what it reaches.

A driver holds the deployment's secrets, and what is written as SQL is read as data. `sluice.declarations.sql_text`
refuses the known ways out by their words, before a JVM is started. Here Spark has resolved every name, and what is not
known to be harmless is refused: another relation than an input, an operator that runs a program, a function that is not
one of Spark's own, and those of Spark's that call code or read a file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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


_OPERATORS = "org.apache.spark.sql.catalyst.plans.logical."
_FUNCTIONS = "org.apache.spark.sql.catalyst.expressions."

_RELATIONS = frozenset({"CTERelationRef", "LocalRelation", "OneRowRelation", "Range", "UnionLoopRef"})
"""What an operator without others below it may be: rows that the query itself writes, and names that it gives."""

_PROGRAMS = frozenset({"ScriptTransformation"})
"""Operators that run a program."""

_REACHING = frozenset(
    {
        *("CallMethodViaReflection", "TryReflect"),  # reflect, java_method, try_reflect
        *("FromAvro", "FromProtobuf", "SchemaOfAvro", "ToAvro", "ToProtobuf"),  # read a schema by its address or path
        *("XmlToStructs", "SchemaOfXml"),  # the same, as an option
        *(
            "XPathBoolean",
            "XPathShort",
            "XPathInt",
            "XPathLong",
            "XPathFloat",
            "XPathDouble",
            "XPathString",
            "XPathList",
        ),
        *("PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF", "UnresolvedPolymorphicPythonUDTF"),  # of the session
    }
)
"""Functions of Spark that call code, or read a file or an address: those of XPath by the DOCTYPE of a document."""


def reach_problem(rows: DataFrame, inputs: Collection[str]) -> str | None:
    """Why a query reaches further than its inputs, as the end of a sentence about it; none when it does not.

    Parameters
    ----------
    rows: of the query, with the inputs as temporary views. inputs: their names.
    """
    return problem_of(json.loads(analyzed_plan(rows).toJSON()), inputs)


def problem_of(tree: Sequence[Mapping[str, Any]], inputs: Collection[str]) -> str | None:
    """The same for a plan as Spark writes it: a list of nodes, each before those below it. Pure."""
    return next(_problems(tree, frozenset(name.casefold() for name in inputs)), None)


def _problems(tree: Sequence[Mapping[str, Any]], inputs: frozenset[str]) -> Iterator[str]:
    """The problems of one tree: each node, then those below it. What is below an input is the platform's own."""
    left, skipped = iter(tree), 0
    for node in left:
        if skipped:
            skipped += int(node["num-children"]) - 1
            continue
        if _is_input(node, inputs):
            skipped = int(node["num-children"])
            continue
        if (problem := _problem(node)) is not None:
            yield problem
        for value in node.values():
            yield from _problems_within(value, inputs)


def _problems_within(value: Any, inputs: frozenset[str]) -> Iterator[str]:
    """Those of the trees that a node holds: expressions of an operator, plans of a subquery."""
    if isinstance(value, list) and value and all(isinstance(one, dict) and "num-children" in one for one in value):
        yield from _problems(value, inputs)
    elif isinstance(value, list):
        for one in value:
            yield from _problems_within(one, inputs)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _problems_within(one, inputs)


def _is_input(node: Mapping[str, Any], inputs: frozenset[str]) -> bool:
    if node["class"] != f"{_OPERATORS}View":
        return False
    name = node["desc"]["identifier"]
    return "database" not in name and name["table"].casefold() in inputs  # without one it is a view of the session


def _problem(node: Mapping[str, Any]) -> str | None:
    kind = str(node["class"])
    name = kind.rpartition(".")[2]
    if kind.startswith(_FUNCTIONS):
        return f"calls {name}, which a transformation in SQL may not" if name in _REACHING else None
    if not kind.startswith(_OPERATORS) or name == "View" or (not node["num-children"] and name not in _RELATIONS):
        return f"reads or runs {name}, which is no input of it: declare it as one"
    return f"runs a program ({name})" if name in _PROGRAMS else None
