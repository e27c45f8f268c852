"""Spark's analyzed plan of a DataFrame: its Java objects as Python reads and builds them, what it reads, and its state.

*What it reads*: a driver holds the deployment's secrets, and what is written as SQL is read as data.
`sluice.declarations.sql_text` refuses the known ways out by their words, before a JVM is started. Here Spark has
resolved every name, and what is not known to be harmless is refused: another relation than an input, an operator that
runs a program, a function that is not one of Spark's own, and those of Spark's that call code or read a file.

*Its state*: a checkpoint is bound to the operators that keep state, and to all that gives kept values their meaning.
Spark compares the state of a checkpoint with a query by the number and the types of its values. Two sums that have
changed places have equal types, and each would continue with the other one's total.
"""

from __future__ import annotations

import json
import re
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


_STATEFUL = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState",
        "TransformWithState",
        "TransformWithStateInPySpark",
        "TransformWithStateInPandas",
    }
)
"""The operators that keep state by keys when their rows arrive."""

_LIMIT = "GlobalLimit"
"""The operator that keeps how many rows it has let through."""

_AGGREGATE_EXPRESSION = "AggregateExpression"

_KEYS = {
    "Aggregate": "groupingExpressions",
    "Deduplicate": "keys",
    "DeduplicateWithinWatermark": "keys",
    "FlatMapGroupsWithState": "groupingAttributes",
    "FlatMapGroupsInPandasWithState": "groupingAttributes",
    "TransformWithState": "groupingAttributes",
}
"""The method of an operator that returns its keys; those of a `_PROCESSOR` are not part of its description. To ask the
JVM which methods an operator has would take hundreds of calls, a tenth of a second for each operator."""

_PROCESSOR = "TransformWithStateInPySpark"
"""The operator of a processor of state. Its keys are the first columns of its input (`leftAttributes`)."""

_EXPRESSION_ID = re.compile(r"#\d+L?|-T\d+ms")
"""What Spark adds to the name of a column to make it unique (another number at every start), and to a column of event
time (its delay, which a checkpoint may follow)."""

_DRAWN = re.compile(r"\b(rand|randn|uuid)\([^()]*\)")
"""A random function with its seed, which Spark draws at every start."""

_VARIABLE = re.compile(r"\b([xyz])_\d+\b")
"""A variable of a lambda function, which has another number at every start."""


def stateful_operators(rows: DataFrame) -> tuple[str, ...]:
    """The names of the operators of a streaming query that keep state from batch to batch, as Spark names them."""
    return tuple(operator.nodeName() for operator in _stateful(analyzed_plan(rows)))


def keyed_operators(rows: DataFrame) -> tuple[str, ...]:
    """The operators that keep state, from the result to the sources, for example `Aggregate carrier, window`."""
    return tuple(_with_keys(one) for one in _stateful(analyzed_plan(rows)) if one.nodeName() != _LIMIT)


def state_meaning(rows: DataFrame) -> tuple[str, ...]:
    """What the operators keep, from the result to the sources: keys and aggregates with their order and types,
    conditions of joins, limits; then the columns of the rows that joins keep. For example `Aggregate by carrier string:
    sum(delay) bigint, count(1) bigint`."""
    kept = [_meaning(operator) for operator in _stateful(analyzed_plan(rows))]
    joined = [_sides(operator) for operator in _joins(rows)]
    return tuple(_steady(text) for text in (*kept, *joined))


def processor_keys(rows: DataFrame) -> tuple[str, ...]:
    """The keys of each processor of state with their types, from the result to the sources."""
    processors = [one for one in _stateful(analyzed_plan(rows)) if one.nodeName() == _PROCESSOR]
    return tuple(_steady(_typed(python_list(one.leftAttributes()))) for one in processors)


def _joins(rows: DataFrame) -> list[JavaObject]:
    """The joins of streams as Spark carries them out: without the columns that nothing above them uses."""
    if not any(operator.nodeName() == "Join" for operator in _stateful(analyzed_plan(rows))):
        return []
    optimized = rows.sparkSession._jsparkSession.sessionState().optimizer().execute(analyzed_plan(rows))
    return [operator for operator in _stateful(optimized) if operator.nodeName() == "Join"]


def _stateful(plan: JavaObject) -> Iterator[JavaObject]:
    children = children_of(plan)
    is_join_of_streams = plan.nodeName() == "Join" and all(child.isStreaming() for child in children)
    if is_join_of_streams or (plan.isStreaming() and plan.nodeName() in (*_STATEFUL, _LIMIT)):
        yield plan
    for child in children:
        yield from _stateful(child)


def _with_keys(operator: JavaObject) -> str:
    if operator.nodeName() == "Join":
        return f"Join {operator.joinType().toString()} {_plain(operator.condition().toString())}"
    keys = ", ".join(_plain(key.toString()) for key in _key_expressions(operator))
    return f"{operator.nodeName()} {keys}".strip()


def _meaning(operator: JavaObject) -> str:
    name = operator.nodeName()
    match name:
        case "Join":
            return _with_keys(operator)
        case "GlobalLimit":
            return f"{name} {operator.limitExpr().toString()}"
        case "Distinct":
            return f"{name} by {_typed(python_list(operator.output()))}"
        case "Aggregate":
            kept = dict.fromkeys(
                _typed([one]) for column in python_list(operator.aggregateExpressions()) for one in _aggregates(column)
            )
            return f"{name} by {_typed(_key_expressions(operator))}: {', '.join(kept)}"
    return f"{name} by {_typed(_key_expressions(operator))}"


def _sides(join: JavaObject) -> str:
    left, right = (_typed(python_list(side.output())) for side in children_of(join))
    return f"Join of {left} with {right}"


def _aggregates(expression: JavaObject) -> Iterator[JavaObject]:
    """The aggregate functions of an expression, in the order in which Spark keeps their values."""
    if expression.getClass().getSimpleName() == _AGGREGATE_EXPRESSION:
        yield expression
        return
    for child in python_list(expression.children()):
        yield from _aggregates(child)


def _typed(expressions: list[JavaObject]) -> str:
    return ", ".join(f"{one.toString()} {one.dataType().simpleString()}" for one in expressions)


def _key_expressions(operator: JavaObject) -> list[JavaObject]:
    method = _KEYS.get(operator.nodeName())
    return [] if method is None else python_list(getattr(operator, method)())


def _steady(text: str) -> str:
    """A text that is the same at every start."""
    return _VARIABLE.sub(r"\1", _DRAWN.sub(r"\1()", _plain(text)))


def _plain(text: str) -> str:
    return _EXPRESSION_ID.sub("", text)
