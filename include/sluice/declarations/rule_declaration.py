"""Rules: what must be true of each row of an output, or of all rows of a batch together.

A row rule is an SQL condition, or has one of the names of `ROW_KINDS`; it is evaluated in the pass that writes. A batch
rule has one of the names of `BATCH_KINDS`; it is evaluated on the rows that are about to be staged. An SQL condition
must be true: null breaks it.

A name that begins with `expect_` is an expectation of Great Expectations, and means what it means there: a null is no
value, and is neither met nor broken, unless the expectation is about nulls. The other names are Sluice's own, for what
Great Expectations has no expectation for. Source: https://greatexpectations.io/expectations/
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, StringConstraints, model_validator

from sluice.declarations.column_types import ColumnType, kind_of
from sluice.declarations.error_messages import did_you_mean
from sluice.declarations.scalar_types import (
    Declared,
    Description,
    Name,
    Owner,
    is_table_name,
    listed,
    parse_duration,
    wrong,
)
from sluice.declarations.sql_text import condition_problem

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


Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

MOST_RULES = 60
"""Of one output: which of them a row breaks is one number of 64 bits."""


class RuleDeclaration(Declared):
    """A rule: what is true of a good row or batch, and what becomes of the row or the batch when it is not."""

    name: Name = Field(description="the rule's name: in the reason of a rejected row, and in the ledger")
    expression: Annotated[str, StringConstraints(min_length=1, max_length=10_000)] | None = Field(
        None, description="an SQL condition over the output's columns, which must be true: null breaks it"
    )
    type: str | None = Field(
        None,
        description="in the place of `expression`: a condition on a row, or on a batch as a whole, by its name, "
        "which for most is that of Great Expectations",
    )
    kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="with `type`: its keyword arguments; `mostly`, the share of the values that must meet it in a "
        "batch, belongs to `warn`, `fail` and `hold`",
    )
    on_failure: Literal["warn", "quarantine", "fail", "hold"] = Field(
        default_factory=lambda given: default_action(given.get("type")),
        description="`warn` counts the rows, `quarantine` rejects them, `fail` ends the run before the batch is "
        "staged, `hold` stages the batch and lets it wait for a person; unset: `quarantine`, and `hold` of a condition "
        "on a batch, which rejects no rows",
    )
    severity: Severity = Field("critical", description="how much it matters: reports begin with what is `critical`")
    owner: Owner | None = Field(None, description="who answers for it; unset: the owner of the stream or table")
    description: Description | None = Field(None, description="what it is for")
    output: Name | None = Field(
        None, description="in a stream with several outputs: the output whose rows it is about; not in a table"
    )

    @model_validator(mode="after")
    def _one_condition(self) -> Self:
        if (self.expression is None) == (self.type is None):
            raise ValueError("a rule has either `expression` or `type`")
        if self.expression is not None:
            if self.kwargs:
                raise wrong("belongs to `type`: an SQL condition has no arguments", "kwargs")
            if (problem := condition_problem(self.expression)) is not None:
                raise wrong(f"the condition {problem}", "expression")
        return self

    @model_validator(mode="after")
    def _arguments_fit(self) -> Self:
        known = self._kind()
        if known is None:
            return self
        for name, value in self.kwargs.items():
            if name not in known.arguments:
                raise wrong(f"{self.type} has no argument {name}; it has {listed(known.arguments)}", "kwargs")
            if not _is_a(value, known.arguments[name]):
                raise wrong(f"needs {_spoken(known.arguments[name])}", "kwargs", name)
        for name in (*known.columns, *known.needs):
            if name not in self.kwargs:
                raise wrong(f"{self.type} needs the argument {name}", "kwargs")
        if known.one_of and not any(self.kwargs.get(name) is not None for name in known.one_of):
            raise wrong(f"{self.type} needs {' or '.join(known.one_of)}", "kwargs")
        return self

    @model_validator(mode="after")
    def _values_fit(self) -> Self:
        for name, problem in mistakes_in(self.kwargs):
            raise wrong(problem, "kwargs", name)
        if self.on_failure == "quarantine" and self.is_of_batch:
            raise wrong(
                "a condition on a batch rejects no rows by themselves: it is `warn`, `fail` or `hold`", "on_failure"
            )
        if self.mostly < 1 and self.on_failure == "quarantine":
            raise wrong(
                "the share is known when the batch is computed, and a row is rejected by itself: `on_failure` is "
                "`warn`, `fail` or `hold` then",
                "kwargs",
                "mostly",
            )
        return self

    def _kind(self) -> RuleKind | None:
        """The kind that its name stands for; none of an SQL condition."""
        if self.type is None:
            return None
        known = ROW_KINDS.get(self.type) or BATCH_KINDS.get(self.type)
        if known is None:
            names = (*ROW_KINDS, *BATCH_KINDS)
            hint = did_you_mean(self.type, names) or f"There are {listed(names)}."
            raise wrong(f"is not one of the conditions on a row or on a batch. {hint}".rstrip("."), "type")
        return known

    @property
    def is_of_batch(self) -> bool:
        """Whether it is about all rows of a batch together."""
        return self.type in BATCH_KINDS

    @property
    def mostly(self) -> float:
        """The share of the counted rows of a batch that must meet the rule."""
        return float(self.kwargs.get("mostly", 1))

    @property
    def columns(self) -> Iterator[tuple[Sequence[str | int], str]]:
        """The columns that it names, each with its place among the arguments; none of an SQL condition."""
        return named_columns(self.type, self.kwargs)

    @property
    def referenced(self) -> tuple[str, str] | None:
        """The table and its column in which the values must exist; none of another rule."""
        if "table" not in self.kwargs:
            return None
        return self.kwargs["table"], self.kwargs.get("table_column", self.kwargs["column"])

    @property
    def condition_digest(self) -> str:
        """A digest of its condition on a row, whatever share of rows must meet it."""
        arguments = {name: value for name, value in self.kwargs.items() if name != "mostly"}
        content = json.dumps([self.expression, self.type, arguments], sort_keys=True, default=str)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def sentence(self) -> str:
        """What must be true, for a person."""
        if self.expression is not None:
            return self.expression
        arguments = ", ".join(f"{name}: {value}" for name, value in self.kwargs.items())
        return f"{str(self.type).removeprefix('expect_').replace('_', ' ')} ({arguments})"

    def is_broken_by(self, *, counted: int, failed: int) -> bool:
        """Whether so many failed rows of those that count break the rule in a batch."""
        return failed > 0 and (counted - failed) / counted < self.mostly  # a product would not be exact: 0.55 * 100


def require_distinct(rules: Sequence[RuleDeclaration]) -> None:
    """Refuse two rules of one name, and too many rules.

    Raises
    ------
    PydanticCustomError: at the rule.
    """
    known: set[str] = set()
    for index, rule in enumerate(rules):
        if rule.name in known:
            raise wrong(f"the rule {rule.name} is declared twice", "rules", index, "name")
        known.add(rule.name)
    if len(rules) > MOST_RULES:
        raise wrong(f"at most {MOST_RULES} rules, got {len(rules)}", "rules")


def row_rules(rules: Mapping[str, Sequence[RuleDeclaration]]) -> dict[str, tuple[RuleDeclaration, ...]]:
    """The conditions on a row, by output; outputs without any are left out."""
    found = {output: tuple(one for one in declared if not one.is_of_batch) for output, declared in rules.items()}
    return {output: declared for output, declared in found.items() if declared}


def batch_rules(rules: Sequence[RuleDeclaration]) -> tuple[RuleDeclaration, ...]:
    """The conditions on a batch as a whole."""
    return tuple(rule for rule in rules if rule.is_of_batch)


def _is_a(value: object, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (isinstance(value, bool) <= (bool in kinds))


def _spoken(kinds: tuple[type, ...]) -> str:
    words = {
        int: "a number",
        float: "a number",
        str: "text",
        bool: "`true` or `false`",
        list: "a list",
        dict: "a mapping",
    }
    return " or ".join(dict.fromkeys(words.get(kind, "a time") for kind in kinds))
