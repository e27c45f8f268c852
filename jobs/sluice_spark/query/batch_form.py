"""Turns the rows of a streaming transformation into those of a batch, where Spark knows a step for streams only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as fn

from sluice.errors import UnpublishableError
from sluice_spark.query.logical_plan import (
    analyzed_plan,
    children_of,
    column_of,
    python_list,
    rows_of_plan,
    scala_sequence,
)
from sluice_spark.session.columns import quoted
from sluice_spark.session.jvm import jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

WITHIN_WATERMARK = "DeduplicateWithinWatermark"
DEDUPLICATIONS = frozenset({WITHIN_WATERMARK, "Deduplicate", "Distinct"})
"""The operators that drop repeated rows."""

_ROWS = "rows"
_PLACE, _HELD, _IS_HELD, _HAS_HELD = "_sluice_place", "_sluice_held_", "_sluice_is_held", "_sluice_has_held"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldResult:
    """The rows that a target holds of a result. column: the time by which its intervals are replaced.

    rows: all of them; unset when the inputs are not read whole, so that a row in their place may not be in hand.
    """

    table: str
    column: str
    rows: DataFrame | None


@dataclass(slots=True)
class CountedDuplicates:
    """The rows before and after each step that drops duplicates; known once the rows were computed."""

    _pairs: list[tuple[Observation, Observation]] = field(default_factory=list)

    def as_batch(self, rows: DataFrame, *, held: HeldResult | None = None) -> DataFrame:
        """The rows as a batch, with the duplicates that they drop counted.

        Parameters
        ----------
        held: what the target holds of these rows, if they go into one that has intervals.

        Raises
        ------
        UnpublishableError: when it cannot be known which of several rows in different intervals the stream has kept.
        """
        plan = analyzed_plan(rows)
        if DEDUPLICATIONS.isdisjoint(steps_of(plan)):
            return rows
        result = _Above.result(plan, rows.columns, held.column) if held is not None else _Above()
        return rows_of_plan(rows.sparkSession, self._counted(rows.sparkSession, plan, result, held))

    @property
    def rows(self) -> int:
        """How many rows were dropped."""
        return sum(int(before.get[_ROWS]) - int(after.get[_ROWS]) for before, after in self._pairs)

    def _counted(self, spark: SparkSession, plan: JavaObject, above: _Above, held: HeldResult | None) -> JavaObject:
        below = zip(children_of(plan), above.below(plan), strict=True)
        children = [self._counted(spark, child, of_child, held) for child, of_child in below]
        if plan.nodeName() not in DEDUPLICATIONS:
            return plan.withNewChildren(scala_sequence(spark, children)) if children else plan
        before, after = Observation(), Observation()
        self._pairs.append((before, after))
        child = _observed(spark, children[0], before)
        if plan.nodeName() == "Distinct":
            return _observed(spark, plan.withNewChildren(scala_sequence(spark, [child])), after)
        is_apart = held is not None and not above.is_known_by({key.exprId().id() for key in python_list(plan.keys())})
        once = _held_of_each(spark, plan, child, above, held) if is_apart and held is not None else None
        return _observed(spark, once or _lowest_of_each(spark, plan, child), after)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Above:
    """What becomes of the columns of a step in the result.

    names: by the id of a column, the name that it has in the result unchanged. time: the columns from which the time of
        the result is made.
    """

    names: Mapping[int, str] = field(default_factory=dict)
    time: frozenset[int] = frozenset()

    @classmethod
    def result(cls, plan: JavaObject, columns: Sequence[str], column: str) -> _Above:
        """The result itself."""
        ids = [one.exprId().id() for one in python_list(plan.output())]
        names = dict(zip(ids, columns, strict=True))
        return cls(names=names, time=frozenset(key for key, name in names.items() if name == column))

    def is_known_by(self, keys: set[int]) -> bool:
        """Whether rows that agree in some columns have the same time in the result."""
        return bool(self.time) and self.time <= keys

    def below(self, plan: JavaObject) -> list[_Above]:
        """The same for each of the steps below."""
        children = children_of(plan)
        match plan.nodeName():
            case "Project":
                return [self._before(_by_id(plan.projectList()))]
            case "Aggregate":
                return [self._before(_by_id(plan.aggregateExpressions()))]
            case "Union":
                output = [one.exprId().id() for one in python_list(plan.output())]
                return [self._before(dict(zip(output, python_list(child.output()), strict=True))) for child in children]
        return [self for _ in children]

    def _before(self, made: Mapping[int, JavaObject]) -> _Above:
        names = {_origin(made[key]): name for key, name in self.names.items() if key in made}
        time = {one for key in self.time for one in (_references(made[key]) if key in made else {key})}
        return _Above(names={key: name for key, name in names.items() if key is not None}, time=frozenset(time))


def _by_id(expressions: JavaObject) -> dict[int, JavaObject]:
    return {one.exprId().id(): one for one in python_list(expressions)}


def _origin(expression: JavaObject) -> int | None:
    """The id of the column that an expression renames at most."""
    kind = expression.getClass().getSimpleName()
    if kind == "Alias":
        return _origin(expression.child())
    return int(expression.exprId().id()) if kind == "AttributeReference" else None


def _references(expression: JavaObject) -> set[int]:
    return {int(one.exprId().id()) for one in python_list(expression.references().toSeq())}


def _held_of_each(
    spark: SparkSession, deduplication: JavaObject, child: JavaObject, above: _Above, held: HeldResult
) -> JavaObject:
    """The rows of each key that the target holds, by key and time; of a key that it does not hold, the lowest row.

    The stream has kept the row that came first. When rows of a key lie in different intervals, another choice would
    lose the key with one of them, or bring it in twice.

    Raises
    ------
    UnpublishableError: when the target does not show which row was kept.
    """
    keys, (time, *more) = python_list(deduplication.keys()), above.time or (None,)
    names = [above.names.get(key.exprId().id()) for key in keys]
    if held.rows is None or None in names or more or time is None or time not in above.names:
        named = ", ".join(key.name() for key in keys)
        reason = "its inputs are not read whole" if held.rows is None else f"{held.table} does not have all of them"
        raise UnpublishableError(
            f"Rows with the same {named} count once, and may lie in different intervals of {held.column}: which of "
            f"them the stream has kept cannot be known, because {reason}.",
            next_step=f"Let the time from which {held.column} is made be one of the columns by which duplicates are "
            f"dropped; or keep {named} and {held.column} in the output as they are, and leave out `reads`.",
        )
    columns = python_list(child.output())
    by, at = [column_of(spark, key) for key in keys], _of_id(spark, columns, time)
    wanted = [*(str(name) for name in names), above.names[time]]
    known = held.rows.select(*(fn.col(quoted(name)).alias(f"{_HELD}{n}") for n, name in enumerate(wanted))).distinct()
    same = [one.cast(known.schema[n].dataType).eqNullSafe(fn.col(f"{_HELD}{n}")) for n, one in enumerate([*by, at])]
    found = rows_of_plan(spark, child).join(
        known.withColumn(_IS_HELD, fn.lit(True)), reduce(Column.__and__, same), "left"
    )
    is_held = fn.coalesce(fn.col(_IS_HELD), fn.lit(False))
    others = [column_of(spark, one) for one in _orderable(spark, columns, without=keys)]
    kept_of = Window.partitionBy(*by, is_held, fn.when(is_held, at)).orderBy(*others)
    placed = found.withColumns(
        {_PLACE: fn.row_number().over(kept_of), _HAS_HELD: fn.max(is_held).over(Window.partitionBy(*by))}
    )
    once = placed.where((fn.col(_PLACE) == 1) & (is_held == fn.col(_HAS_HELD)))
    return analyzed_plan(once.select(*(column_of(spark, one) for one in columns)))


def _of_id(spark: SparkSession, columns: Sequence[JavaObject], wanted: int) -> Column:
    return next(column_of(spark, one) for one in columns if one.exprId().id() == wanted)


def _orderable(
    spark: SparkSession, columns: Sequence[JavaObject], *, without: Sequence[JavaObject]
) -> list[JavaObject]:
    """The columns that Spark can order by, without some."""
    ids = {one.exprId().id() for one in without}
    is_orderable = jvm_of(spark).org.apache.spark.sql.catalyst.expressions.RowOrdering.isOrderable
    return [one for one in columns if one.exprId().id() not in ids and is_orderable(one.dataType())]


def _lowest_of_each(spark: SparkSession, deduplication: JavaObject, child: JavaObject) -> JavaObject:
    """The row of each key that is lowest by its other columns, so that the same rows always give the same result. Spark
    keeps whichever row comes first, which differs from run to run."""
    keys = python_list(deduplication.keys())
    others = _orderable(spark, python_list(child.output()), without=keys)
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
