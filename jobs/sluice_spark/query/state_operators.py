"""The operators of a query that keep state, with the keys by which they keep it: what its checkpoint is bound to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from sluice_spark.query.runnable import STATEFUL_NODES

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_KEYS = ("groupingExpressions", "keys", "groupingAttributes")
"""The methods by which Spark's logical operators tell their keys: of an aggregate, of a deduplication, of a group's own
state."""

_EXPRESSION_ID = re.compile(r"#\d+L?|-T\d+ms")
"""What Spark adds to a column's name to tell it from others of the same name (another number at every start), and to a
column of event time (its delay, which a checkpoint may follow)."""


def keyed_operators(rows: DataFrame) -> tuple[str, ...]:
    """The operators that keep state, from the result to the sources, for example `Aggregate carrier, window`."""
    return tuple(_keyed(rows._jdf.queryExecution().analyzed()))


def _keyed(plan: JavaObject) -> Iterator[str]:
    children = [plan.children().apply(index) for index in range(plan.children().size())]
    if plan.nodeName() == "Join" and all(child.isStreaming() for child in children):
        yield f"Join {plan.joinType().toString()} {_plain(plan.condition().toString())}"
    elif plan.nodeName() in STATEFUL_NODES and plan.isStreaming():
        yield f"{plan.nodeName()} {_keys(plan)}".strip()
    for child in children:
        yield from _keyed(child)


def _keys(plan: JavaObject) -> str:
    methods = {method.getName() for method in plan.getClass().getMethods()}
    name = next((name for name in _KEYS if name in methods), None)
    return "" if name is None else _plain(getattr(plan, name)().mkString(", "))


def _plain(text: str) -> str:
    return _EXPRESSION_ID.sub("", text)
