"""The rules that have a name: conditions on a row, and conditions on all rows of a batch together.

A name that begins with `expect_` is an expectation of Great Expectations, and means what it means there: a null is no
value, and is neither met nor broken, unless the expectation is about nulls. The other names are Sluice's own, for what
Great Expectations has no expectation for.

Source: https://greatexpectations.io/expectations/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import pairwise
from typing import Any, Literal

from sluice.declarations.column_types import ColumnType, kind_of
from sluice.declarations.scalar_types import is_table_name, parse_duration

_NUMBER, _BOUND, _FLAG = (int, float), (int, float, str, date, datetime), (bool,)

_NUMBERS = frozenset({"int", "long", "float", "double", "decimal"})
_TIMES = frozenset({"date", "timestamp", "timestamptz"})
_ORDERED = _NUMBERS | _TIMES


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleKind:
    """A rule that has a name.

    columns: the arguments that name a column, or several. needs, may_have: the other arguments, each with the types of
        its value. one_of: arguments of which one at least is given.
    has_share: whether it counts rows, so that `mostly` says how many of them must meet it.
    of: the types of column that it is about, in Iceberg's words; empty for all.
    """

    columns: tuple[str, ...] = ("column",)
    needs: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    may_have: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    one_of: tuple[str, ...] = ()
    has_share: bool = True
    of: frozenset[str] = frozenset()

    @property
    def arguments(self) -> dict[str, tuple[type, ...]]:
        """All arguments, each with the types of its value."""
        columns = {name: (list,) if name == "column_list" else (str,) for name in self.columns}
        return {**columns, **self.needs, **self.may_have, **({"mostly": _NUMBER} if self.has_share else {})}


_BETWEEN = {"min_value": _BOUND, "max_value": _BOUND, "strict_min": _FLAG, "strict_max": _FLAG}
_WHOLE = {"min_value": (int,), "max_value": (int,), "strict_min": _FLAG, "strict_max": _FLAG}
_SIZES = {"min_value": _NUMBER, "max_value": _NUMBER, "strict_min": _FLAG, "strict_max": _FLAG}
_BOUNDS = ("min_value", "max_value")

ROW_KINDS: Mapping[str, RuleKind] = {
    "expect_column_values_to_be_null": RuleKind(),
    "expect_column_values_to_not_be_null": RuleKind(),
    "expect_column_values_to_be_between": RuleKind(may_have=_BETWEEN, one_of=_BOUNDS),
    "expect_column_values_to_be_in_set": RuleKind(needs={"value_set": (list,)}),
    "expect_column_values_to_not_be_in_set": RuleKind(needs={"value_set": (list,)}),
    "expect_column_values_to_match_regex": RuleKind(needs={"regex": (str,)}),
    "expect_column_values_to_not_match_regex": RuleKind(needs={"regex": (str,)}),
    "expect_column_value_lengths_to_be_between": RuleKind(may_have=_WHOLE, one_of=_BOUNDS),
    "expect_column_value_lengths_to_equal": RuleKind(needs={"value": (int,)}),
    "expect_column_pair_values_to_be_equal": RuleKind(columns=("column_A", "column_B")),
    "expect_column_pair_values_a_to_be_greater_than_b": RuleKind(
        columns=("column_A", "column_B"), may_have={"or_equal": _FLAG}
    ),
}
"""Those that are exactly one condition on the columns of a row. Of pairs, a row counts unless both columns are null."""

BATCH_KINDS: Mapping[str, RuleKind] = {
    "expect_table_row_count_to_be_between": RuleKind(columns=(), may_have=_WHOLE, one_of=_BOUNDS, has_share=False),
    "expect_table_row_count_to_equal": RuleKind(columns=(), needs={"value": (int,)}, has_share=False),
    "expect_column_values_to_be_unique": RuleKind(),
    "expect_compound_columns_to_be_unique": RuleKind(columns=("column_list",)),
    "column_values_to_be_unique_in_table": RuleKind(),
    "compound_columns_to_be_unique_in_table": RuleKind(columns=("column_list",)),
    "expect_column_min_to_be_between": RuleKind(may_have=_BETWEEN, one_of=_BOUNDS, has_share=False, of=_ORDERED),
    "expect_column_max_to_be_between": RuleKind(may_have=_BETWEEN, one_of=_BOUNDS, has_share=False, of=_ORDERED),
    "expect_column_mean_to_be_between": RuleKind(may_have=_SIZES, one_of=_BOUNDS, has_share=False, of=_NUMBERS),
    "expect_column_stdev_to_be_between": RuleKind(may_have=_SIZES, one_of=_BOUNDS, has_share=False, of=_NUMBERS),
    "expect_column_quantile_values_to_be_between": RuleKind(
        needs={"quantile_ranges": (dict,)}, has_share=False, of=_NUMBERS
    ),
    "expect_column_proportion_of_non_null_values_to_be_between": RuleKind(
        may_have=_SIZES, one_of=_BOUNDS, has_share=False
    ),
    "column_to_be_fresh": RuleKind(needs={"within": (str,)}, has_share=False, of=_TIMES),
    "column_values_to_exist_in_table": RuleKind(needs={"table": (str,)}, may_have={"table_column": (str,)}),
}
"""Those about all rows of a batch together."""

UNIQUE_IN_TABLE = frozenset({"column_values_to_be_unique_in_table", "compound_columns_to_be_unique_in_table"})
"""Those that compare a batch with the rows that its table has already."""


def mistakes_in(kwargs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with the values of arguments whose types are right, each with the argument."""
    lowest, highest = kwargs.get("min_value"), kwargs.get("max_value")
    if lowest is not None and highest is not None:
        if (are_ordered := _are_ordered(lowest, highest)) is None:
            yield "max_value", "min_value and max_value are of one type"
        elif not are_ordered:
            yield "min_value", f"min_value is at most max_value, got {lowest} and {highest}"
    values = kwargs.get("value_set")
    if values is not None and (not values or any(value is None for value in values)):
        yield "value_set", "the set has at least one value, and none of them is null"
    if not 0 < kwargs.get("mostly", 1) <= 1:
        yield "mostly", "a share above 0 and at most 1"
    columns = kwargs.get("column_list")
    if columns is not None and (len(columns) < 2 or len({str(one) for one in columns}) < len(columns)):
        yield "column_list", "two columns at least, each once"
    if "within" in kwargs and (problem := _problem_of_duration(kwargs["within"])):
        yield "within", problem
    if "table" in kwargs and not is_table_name(kwargs["table"]):
        yield "table", "a table is named <namespace>.<table>"
    if (ranges := kwargs.get("quantile_ranges")) is not None and not _are_ranges(ranges):
        yield "quantile_ranges", "`{quantiles: [0.5], value_ranges: [[1, 9]]}`: shares, and a range or null for each"


def _are_ordered(lowest: Any, highest: Any) -> bool | None:
    """Whether a bound is at most the other one; none when they cannot be compared."""
    try:
        return bool(lowest <= highest)
    except TypeError:
        return None


def _problem_of_duration(text: str) -> str:
    try:
        parse_duration(text)
    except ValueError as error:
        return str(error)
    return ""


def _are_ranges(ranges: Mapping[str, Any]) -> bool:
    """Whether quantiles are named with a range for each, in the form of Great Expectations."""
    quantiles, bounds = ranges.get("quantiles"), ranges.get("value_ranges")
    if set(ranges) != {"quantiles", "value_ranges"} or not isinstance(quantiles, list) or not isinstance(bounds, list):
        return False
    shares = all(_is_number(one) and 0 <= one <= 1 for one in quantiles)
    return bool(quantiles) and shares and len(quantiles) == len(bounds) and all(map(_is_range, bounds))


def _is_range(bounds: object) -> bool:
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(one is None or _is_number(one) for one in bounds):
        return False
    return all(lower is None or upper is None or lower <= upper for lower, upper in pairwise(bounds))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def unfit_column(kind: str, kwargs: Mapping[str, Any], column: ColumnType) -> str:
    """Why a batch rule cannot be about a column of this type, as `is a string, and …`; empty when it can.

    Parameters
    ----------
    kind: the name of the rule.
    """
    name, of = kind_of(column), BATCH_KINDS[kind].of
    if of and name not in of:
        return f"is a {name}, and {kind} is about {' or '.join(sorted(of))}"
    if kind not in ("expect_column_min_to_be_between", "expect_column_max_to_be_between"):
        return ""
    for bound in (kwargs.get("min_value"), kwargs.get("max_value")):
        if bound is not None and not _is_value_of(bound, name):
            return f"is a {name}, and {bound!r} is none"
    return ""


def _is_value_of(bound: object, name: str) -> bool:
    if name in _NUMBERS:
        return _is_number(bound)
    return isinstance(bound, date) or (isinstance(bound, str) and _is_time(bound))


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def default_action(kind: object) -> Literal["hold", "quarantine"]:
    """What becomes of a broken rule that does not say it: a batch waits, a row is rejected. kind: its name, if any."""
    return "hold" if kind in BATCH_KINDS else "quarantine"


def named_columns(kind: str | None, kwargs: Mapping[str, Any]) -> Iterator[tuple[Sequence[str | int], str]]:
    """The columns that a rule names, each with its place among the arguments. kind: none for an SQL condition."""
    known = ROW_KINDS.get(kind or "") or BATCH_KINDS.get(kind or "")
    for argument in known.columns if known is not None else ():
        named = kwargs[argument]
        if isinstance(named, list):
            yield from (((argument, index), str(column)) for index, column in enumerate(named))
        else:
            yield (argument,), named
