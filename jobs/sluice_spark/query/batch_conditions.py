"""Batch rules: what is true of all rows of a batch together, found by one query over the kept rows.

A rule that has one of Great Expectations' names finds what Great Expectations finds on Spark; only of a batch without
rows nothing but the number of its rows is said. What a change feed deletes belongs to no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import DoubleType, FloatType, IntegralType

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.rule_declaration import UNIQUE_IN_TABLE, RuleDeclaration, batch_rules
from sluice.declarations.scalar_types import parse_duration
from sluice.ledger.batch_findings import RuleCount
from sluice_spark.query.row_rules import between, require_each
from sluice_spark.session.columns import quoted, quoted_table

QUANTILE_ACCURACY = 1_000_000
"""A quantile is a value whose place is at most a millionth of the rows away: exact up to half a million rows."""

_SOME_TIME = datetime(2000, 1, 1, tzinfo=UTC)

_ROWS, _MET, _FOUND, _COUNTED, _FAILED = "rows", "met_{}", "found_{}", "counted_{}", "failed_{}"
"""The columns of the one row that says everything; the number is the place of a rule."""

_NUMBER = "number"
"""How many rows have a value."""


Present = Callable[[Sequence[str]], DataFrame]
"""Gives some columns of the rows that the table of an output has already."""


def judge_batch(
    rows: DataFrame,
    rules: Sequence[RuleDeclaration],
    *,
    catalog: str,
    now: datetime,
    present: Present | None = None,
) -> Mapping[str, RuleCount]:
    """What each rule finds in a batch, by its name.

    Parameters
    ----------
    rows: those that would become visible, kept. They are read once for all measures, and once for each rule about
        repeated values or another table.
    rules: about the batch as a whole. catalog: the name of the catalog in Spark. now: when the batch is judged.
    present: the rows of its table; unset where there are none yet.

    Raises
    ------
    PySparkException, Py4JJavaError: when Spark cannot evaluate one.
    """
    found = _found(rows, rules, catalog=catalog, now=now, present=present).collect()[0].asDict()
    return {rule.name: _count(found, place, rule) for place, rule in enumerate(rules)}


def require_batch_rules(stream: LoadedStream, output: str, rows: DataFrame, *, catalog: str) -> None:
    """Check the batch rules of an output on the plan that Spark makes of them.

    Raises
    ------
    DeclarationError: at the rule, with Spark's reason.
    """
    empty = rows.sparkSession.createDataFrame([], rows.schema)

    def problem_of(rule: RuleDeclaration) -> str | None:
        # Spark analyses a plan when it is made.
        _found(empty, [rule], catalog=catalog, now=_SOME_TIME, present=lambda names: empty.select(*map(quoted, names)))
        return None

    require_each(stream, output, batch_rules(stream.rules.get(output, ())), problem_of)


def _count(found: Mapping[str, Any], place: int, rule: RuleDeclaration) -> RuleCount:
    if _MET.format(place) in found:
        is_broken, counted, failed = not found[_MET.format(place)], found[_ROWS], 0
    else:
        counted, failed = found[_COUNTED.format(place)] or 0, found[_FAILED.format(place)] or 0
        is_broken = rule.is_broken_by(counted=counted, failed=failed)
    return RuleCount(
        counted=counted,
        failed=failed,
        on_failure=rule.on_failure,
        is_broken=is_broken,
        observed=found.get(_FOUND.format(place)),
    )


def _found(
    rows: DataFrame,
    rules: Sequence[RuleDeclaration],
    *,
    catalog: str,
    now: datetime,
    present: Present | None = None,
) -> DataFrame:
    """One row with what all rules find."""
    measures, apart = [fn.count(fn.lit(1)).alias(_ROWS)], list[DataFrame]()
    for place, rule in enumerate(rules):
        counted = _counted_apart(rows, rule, catalog=catalog, present=present)
        if counted is None:
            measures += _measured(rows, rule, place, now=now)
        else:
            apart.append(counted.toDF(_COUNTED.format(place), _FAILED.format(place)))
    return reduce(DataFrame.crossJoin, apart, rows.agg(*measures))


def _measured(rows: DataFrame, rule: RuleDeclaration, place: int, *, now: datetime) -> Iterator[Column]:
    """Whether a rule is met, and what it has found: aggregates over all rows."""
    given, kind = rule.kwargs, str(rule.type)
    if kind in _ROW_COUNTS:
        yield _ROW_COUNTS[kind](fn.count(fn.lit(1)), given).alias(_MET.format(place))
        return
    value = fn.col(quoted(given["column"]))
    found = _MEASURES[kind](value)
    if kind == "expect_column_quantile_values_to_be_between":
        found = fn.percentile_approx(value.cast("double"), given["quantile_ranges"]["quantiles"], QUANTILE_ACCURACY)
        met = _are_in_ranges(found, given["quantile_ranges"]["value_ranges"])
    elif kind == "column_to_be_fresh":
        met = found >= fn.lit(now - parse_duration(given["within"]))
    else:
        met = between(found, given)
    if isinstance(rows.select(value).schema[0].dataType, FloatType | DoubleType) and kind in _COMPARED:
        met = met & ~fn.isnan(found)
    no_rows = fn.count(fn.lit(1)) == 0
    yield (no_rows | fn.coalesce(met, fn.lit(False))).alias(_MET.format(place))
    yield found.cast("string").alias(_FOUND.format(place))


_ROW_COUNTS: Mapping[str, Callable[[Column, Mapping[str, Any]], Column]] = {
    "expect_table_row_count_to_be_between": lambda rows, given: between(rows, given),
    "expect_table_row_count_to_equal": lambda rows, given: rows == given["value"],
}

_MEASURES: Mapping[str, Callable[[Column], Column]] = {
    "expect_column_min_to_be_between": fn.min,
    "expect_column_max_to_be_between": fn.max,
    "expect_column_mean_to_be_between": fn.avg,
    "expect_column_stdev_to_be_between": fn.stddev_samp,
    "expect_column_quantile_values_to_be_between": fn.max,
    "expect_column_proportion_of_non_null_values_to_be_between": lambda value: fn.count(value) / fn.count(fn.lit(1)),
    "column_to_be_fresh": fn.max,
}

_COMPARED = frozenset(
    {
        "expect_column_min_to_be_between",
        "expect_column_max_to_be_between",
        "expect_column_mean_to_be_between",
        "expect_column_stdev_to_be_between",
    }
)
"""The measures that are NaN where a value is. Spark takes NaN for the largest number, Great Expectations for none."""


def _are_in_ranges(found: Column, ranges: Sequence[Sequence[float | None]]) -> Column:
    """Whether each quantile lies in its range, as near to it as Great Expectations wants it.

    Source: `_quantile_is_in_range` of its `expect_column_quantile_values_to_be_between`.
    """
    return reduce(Column.__and__, (_is_in_range(found[place], *bounds) for place, bounds in enumerate(ranges)))


def _is_in_range(value: Column, lowest: float | None, highest: float | None) -> Column:
    given = [bound for bound in (lowest, highest) if bound is not None]
    inside = between(value, {"min_value": lowest, "max_value": highest}) if given else value.isNotNull()
    return reduce(Column.__or__, (fn.abs(value - bound) <= 1e-8 + 1e-4 * abs(bound) for bound in given), inside)


_UNIQUE = {"expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique", *UNIQUE_IN_TABLE}


def _counted_apart(
    rows: DataFrame, rule: RuleDeclaration, *, catalog: str, present: Present | None
) -> DataFrame | None:
    """How many rows count for a rule about repeated values or another table, and how many break it; none of others."""
    columns = [fn.col(quoted(name)) for _, name in rule.columns]
    if rule.referenced is not None:
        return _known_elsewhere(rows, columns[0], *rule.referenced, catalog=catalog)
    if rule.type in UNIQUE_IN_TABLE and present is not None:
        return _repeated_in_table(rows, [name for _, name in rule.columns], present)
    if rule.type not in _UNIQUE:
        return None
    number = fn.col(_NUMBER)
    return _of_each_value(rows, columns).agg(fn.sum(number), fn.sum(fn.when(number > 1, number)))


def _of_each_value(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """How often each value occurs; null, or nulls alone, is none."""
    is_value = reduce(Column.__or__, (column.isNotNull() for column in columns))
    named = [column.alias(f"value_{place}") for place, column in enumerate(columns)]
    return rows.where(is_value).groupBy(*named).agg(fn.count(fn.lit(1)).alias(_NUMBER))


def _repeated_in_table(rows: DataFrame, names: Sequence[str], present: Present) -> DataFrame:
    """The rows whose values are in another row of the batch, or in the table already. Of whole numbers, files of the
    table whose bounds lie elsewhere are not read: the least and greatest values are found first. Both are grouped as
    one: a join of them would sort what it compares."""
    own = [f"value_{place}" for place in range(len(names))]
    values = rows.select(*(fn.col(quoted(name)).alias(one) for name, one in zip(names, own, strict=True)))
    known = present(names).toDF(*own)
    for name in own:
        if isinstance(values.schema[name].dataType, IntegralType):  # Spark has an uuid as text, with other bounds
            lowest, highest = values.agg(fn.min(name), fn.max(name)).collect()[0]
            is_near = fn.col(name).between(lowest, highest) if lowest is not None else fn.lit(False)
            known = known.where(fn.col(name).isNull() | is_near)  # null is one of several columns
    both = values.withColumn(_NUMBER, fn.lit(1)).unionAll(known.withColumn(_NUMBER, fn.lit(0)))
    is_value = reduce(Column.__or__, (fn.col(name).isNotNull() for name in own))
    counted = (fn.sum(_NUMBER).alias(_NUMBER), fn.count_if(fn.col(_NUMBER) == 0).alias("known"))
    number = fn.col(_NUMBER)
    is_repeated = (number > 1) | (fn.col("known") > 0)  # of a value that is in the table alone the number is 0
    each = both.where(is_value).groupBy(*own).agg(*counted)
    return each.agg(fn.sum(number), fn.sum(fn.when(is_repeated, number)))


def _known_elsewhere(rows: DataFrame, column: Column, table: str, named: str, *, catalog: str) -> DataFrame:
    """The rows whose value is in no row of another table, as it is now."""
    values = _of_each_value(rows, [column])
    known = rows.sparkSession.table(quoted_table(catalog, table)).select(fn.col(quoted(named)).alias("known"))
    number = fn.col(_NUMBER)
    joined = values.join(known.distinct(), fn.col("value_0") == fn.col("known"), "left")
    return joined.agg(fn.sum(number), fn.sum(fn.when(fn.col("known").isNull(), number)))
