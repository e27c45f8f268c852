"""Which text of an output needs no look at whether it is UTF-8: that of values which were decoded strictly, where the
transformation passes them on as they are.

To look at each text of each row takes Spark a quarter of the time in which it plans a small batch, and a few hundredths
of the processor time of its rows. Decision 0112 says why and how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from sluice_spark.query.logical_plan import analyzed_plan, children_of, python_list
from sluice_spark.session.columns import quoted
from sluice_spark.session.valid_text import KNOWN_VALID
from sluice_spark.sources.input_decoding import DECODED

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_PASSING = frozenset(
    {"Project", "Filter", "SubqueryAlias", "View", "CollectMetrics", "EventTimeWatermark", "Join", "Aggregate"}
    | {"Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Sort", "Window", "Generate", "ResolvedHint"}
)
"""The operators whose columns are those below them, or computed by expressions that stand in them."""

_NAMED = frozenset({"AttributeReference", "Alias"})
(_KEY,) = KNOWN_VALID


def with_true_marks(rows: DataFrame, *, goes_into_table: bool) -> DataFrame:
    """The same rows. No column is marked as one of known text whose values may come from somewhere else.

    Parameters
    ----------
    rows: an output, as the transformation returns it.
    goes_into_table: whether it is staged. Spark writes the marks into the files of a sink, for every reader of those.
    """
    if not any(_KEY in field.metadata for field in rows.schema):
        return rows
    return rows if goes_into_table and _keeps_marks_true(analyzed_plan(rows)) else _without_marks(rows)


def _without_marks(rows: DataFrame) -> DataFrame:
    others = {one.name: {key: value for key, value in one.metadata.items() if key != _KEY} for one in rows.schema}
    return rows.select(*(fn.col(quoted(name)).alias(name, metadata=rest) for name, rest in others.items()))


def _keeps_marks_true(plan: JavaObject) -> bool:
    """Whether a mark on a column of a plan says what is true of its values."""
    children = children_of(plan)
    if not children:
        return _KEY not in plan.schema().json()
    if plan.nodeName() not in _PASSING or not all(map(_keeps_marks_true, children)):
        return False
    named = [one for one in python_list(plan.expressions()) if one.nodeName() in _NAMED]
    if any(map(_takes_the_name, named)):
        return False
    marked = list(filter(_is_marked, named))
    below = {one.exprId() for child in children for one in python_list(child.output()) if marked and _is_marked(one)}
    return all(_is_decoded(one) or _source_of(one) in below for one in marked)


def _is_marked(named: JavaObject) -> bool:
    return bool(named.metadata().contains(_KEY))


def _takes_the_name(named: JavaObject) -> bool:
    """Whether something else than a decoder's function has the name of a value that is decoded."""
    return bool(named.name() == DECODED and named.nodeName() == "Alias" and named.child().nodeName() != "PythonUDF")


def _source_of(named: JavaObject) -> JavaObject | None:
    """The id of the column that an expression passes on; none when it computes something."""
    passed = named.child() if named.nodeName() == "Alias" else named
    return passed.exprId() if passed.nodeName() == "AttributeReference" else None


def _is_decoded(named: JavaObject) -> bool:
    """Whether it takes a field out of a value that was just decoded."""
    taken = named.child() if named.nodeName() == "Alias" else named
    if taken.nodeName() != "GetStructField" or taken.child().nodeName() != "AttributeReference":
        return False
    return bool(taken.child().name() == DECODED)
