"""The operators of a query that keep state, and all that gives kept values their meaning: a checkpoint is bound to it.

Spark compares the state of a checkpoint with a query by the number and the types of its values. Two sums that have
changed places have equal types, and each would continue with the other one's total.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from sluice_spark.query.logical_plan import analyzed_plan, children_of, python_list

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

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
