"""The operators of a query that keep state, and the keys by which they keep it: a checkpoint is bound to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from sluice_spark.query.logical_plan import analyzed_plan, children_of

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
"""The operators that keep state when their rows arrive."""

_KEYS = ("groupingExpressions", "keys", "groupingAttributes")
"""The methods of Spark's logical operators that return their keys: of an aggregate, of a deduplication, of a group with
state of its own."""

_EXPRESSION_ID = re.compile(r"#\d+L?|-T\d+ms")
"""What Spark adds to the name of a column to make it unique (another number at every start), and to a column of event
time (its delay, which a checkpoint may follow)."""


def stateful_operators(rows: DataFrame) -> tuple[str, ...]:
    """The names of the operators of a streaming query that keep state from batch to batch, as Spark names them."""
    return tuple(operator.nodeName() for operator in _stateful(analyzed_plan(rows)))


def keyed_operators(rows: DataFrame) -> tuple[str, ...]:
    """The operators that keep state, from the result to the sources, for example `Aggregate carrier, window`."""
    return tuple(_with_keys(operator) for operator in _stateful(analyzed_plan(rows)))


def _stateful(plan: JavaObject) -> Iterator[JavaObject]:
    children = children_of(plan)
    is_join_of_streams = plan.nodeName() == "Join" and all(child.isStreaming() for child in children)
    if is_join_of_streams or (plan.nodeName() in _STATEFUL and plan.isStreaming()):
        yield plan
    for child in children:
        yield from _stateful(child)


def _with_keys(operator: JavaObject) -> str:
    if operator.nodeName() == "Join":
        return f"Join {operator.joinType().toString()} {_plain(operator.condition().toString())}"
    return f"{operator.nodeName()} {_keys(operator)}".strip()


def _keys(operator: JavaObject) -> str:
    methods = {method.getName() for method in operator.getClass().getMethods()}
    name = next((name for name in _KEYS if name in methods), None)
    return "" if name is None else _plain(getattr(operator, name)().mkString(", "))


def _plain(text: str) -> str:
    return _EXPRESSION_ID.sub("", text)
