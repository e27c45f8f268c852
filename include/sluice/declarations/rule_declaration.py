"""Row rules: what must be true of each row of an output, as an SQL condition or under Great Expectations' own names.

Only those expectations are here that are exactly one condition on the columns of a row, so that they are evaluated in
the pass that writes. They mean what Great Expectations means: a null is no value, and is neither met nor broken, unless
the expectation is about nulls. An SQL condition must be true: null breaks it.

Source: https://greatexpectations.io/expectations/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sluice.declarations.error_messages import did_you_mean
from sluice.declarations.scalar_types import Declared, Description, Name, Owner, listed, wrong
from sluice.declarations.sql_text import condition_problem

MOST_RULES = 60
"""Of one output: which of them a row breaks is one number of 64 bits."""

_NUMBER, _BOUND, _FLAG = (int, float), (int, float, str, date, datetime), (bool,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExpectation:
    """An expectation that is a condition on a row.

    columns: the arguments that name a column. needs, may_have: the other arguments, each with the types of its value.
    one_of: arguments of which one at least is given.
    counts_nulls: whether a row with null in the column counts.
    """

    columns: tuple[str, ...] = ("column",)
    needs: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    may_have: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    one_of: tuple[str, ...] = ()
    counts_nulls: bool = False


_BETWEEN = {"min_value": _BOUND, "max_value": _BOUND, "strict_min": _FLAG, "strict_max": _FLAG}
_LENGTHS = {"min_value": (int,), "max_value": (int,), "strict_min": _FLAG, "strict_max": _FLAG}
_BOUNDS = ("min_value", "max_value")

ROW_EXPECTATIONS: Mapping[str, RowExpectation] = {
    "expect_column_values_to_be_null": RowExpectation(counts_nulls=True),
    "expect_column_values_to_not_be_null": RowExpectation(counts_nulls=True),
    "expect_column_values_to_be_between": RowExpectation(may_have=_BETWEEN, one_of=_BOUNDS),
    "expect_column_values_to_be_in_set": RowExpectation(needs={"value_set": (list,)}),
    "expect_column_values_to_not_be_in_set": RowExpectation(needs={"value_set": (list,)}),
    "expect_column_values_to_match_regex": RowExpectation(needs={"regex": (str,)}),
    "expect_column_values_to_not_match_regex": RowExpectation(needs={"regex": (str,)}),
    "expect_column_value_lengths_to_be_between": RowExpectation(may_have=_LENGTHS, one_of=_BOUNDS),
    "expect_column_value_lengths_to_equal": RowExpectation(needs={"value": (int,)}),
    "expect_column_pair_values_to_be_equal": RowExpectation(columns=("column_A", "column_B")),
    "expect_column_pair_values_a_to_be_greater_than_b": RowExpectation(
        columns=("column_A", "column_B"), may_have={"or_equal": _FLAG}
    ),
}
"""The expectations by their types. Of pairs, a row counts unless both columns are null."""


class RuleDeclaration(Declared):
    """A row rule: what is true of a good row, and what becomes of a row, or of its batch, when it is not."""

    name: Name = Field(description="the rule's name: in the reason of a rejected row, and in the ledger")
    expression: Annotated[str, StringConstraints(min_length=1, max_length=10_000)] | None = Field(
        None, description="an SQL condition over the output's columns, which must be true: null breaks it"
    )
    type: str | None = Field(
        None,
        description="in the place of `expression`: an expectation of Great Expectations that is a condition on a row",
    )
    kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="with `type`: its keyword arguments; `mostly`, the share of the values that must meet it in a "
        "batch, belongs to `warn`, `fail` and `hold`",
    )
    on_failure: Literal["warn", "quarantine", "fail", "hold"] = Field(
        "quarantine",
        description="`warn` counts the rows, `quarantine` rejects them, `fail` ends the run before the batch is "
        "staged, `hold` stages the batch and lets it wait for a person",
    )
    severity: Literal["critical", "warning", "info"] = Field("critical", description="how much it matters, for reports")
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
        if self.type is None:
            return self
        known = ROW_EXPECTATIONS.get(self.type)
        if known is None:
            hint = did_you_mean(self.type, ROW_EXPECTATIONS) or f"There are {listed(ROW_EXPECTATIONS)}."
            raise wrong(f"is not one of the expectations that are a condition on a row. {hint}".rstrip("."), "type")
        allowed = {**dict.fromkeys(known.columns, (str,)), **known.needs, **known.may_have, "mostly": _NUMBER}
        for name, value in self.kwargs.items():
            if name not in allowed:
                raise wrong(f"{self.type} has no argument {name}; it has {listed(allowed)}", "kwargs")
            if not _is_a(value, allowed[name]):
                raise wrong(f"needs {_spoken(allowed[name])}", "kwargs", name)
        for name in (*known.columns, *known.needs):
            if name not in self.kwargs:
                raise wrong(f"{self.type} needs the argument {name}", "kwargs")
        if known.one_of and not any(self.kwargs.get(name) is not None for name in known.one_of):
            raise wrong(f"{self.type} needs {' or '.join(known.one_of)}", "kwargs")
        return self

    @model_validator(mode="after")
    def _values_fit(self) -> Self:
        lowest, highest = self.kwargs.get("min_value"), self.kwargs.get("max_value")
        if lowest is not None and highest is not None:
            if isinstance(lowest, str) != isinstance(highest, str):
                raise wrong("min_value and max_value are of one type", "kwargs", "max_value")
            if lowest > highest:
                raise wrong(f"min_value is at most max_value, got {lowest} and {highest}", "kwargs", "min_value")
        values = self.kwargs.get("value_set")
        if values is not None and (not values or any(value is None for value in values)):
            raise wrong("the set has at least one value, and none of them is null", "kwargs", "value_set")
        if not 0 < self.mostly <= 1:
            raise wrong("a share above 0 and at most 1", "kwargs", "mostly")
        if self.mostly < 1 and self.on_failure == "quarantine":
            raise wrong(
                "the share is known when the batch is computed, and a row is rejected by itself: `on_failure` is "
                "`warn`, `fail` or `hold` then",
                "kwargs",
                "mostly",
            )
        return self

    @property
    def mostly(self) -> float:
        """The share of the counted rows of a batch that must meet the rule."""
        return float(self.kwargs.get("mostly", 1))

    @property
    def columns(self) -> Iterator[tuple[str, str]]:
        """The columns that an expectation names, each with its argument; none of an SQL condition."""
        names = ROW_EXPECTATIONS[self.type].columns if self.type is not None else ()
        return ((name, self.kwargs[name]) for name in names)

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


def _is_a(value: object, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (isinstance(value, bool) <= (bool in kinds))


def _spoken(kinds: tuple[type, ...]) -> str:
    words = {int: "a number", float: "a number", str: "text", bool: "`true` or `false`", list: "a list"}
    return " or ".join(dict.fromkeys(words.get(kind, "a time") for kind in kinds))
