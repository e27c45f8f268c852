"""Rules: what must be true of each row of an output, or of all rows of a batch together.

A row rule is an SQL condition, or has one of the names of `ROW_KINDS`; it is evaluated in the pass that writes. A batch
rule has one of the names of `BATCH_KINDS`; it is evaluated on the rows that are about to be staged. An SQL condition
must be true: null breaks it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sluice.declarations.error_messages import did_you_mean
from sluice.declarations.rule_kinds import (
    BATCH_KINDS,
    ROW_KINDS,
    RuleKind,
    default_action,
    mistakes_in,
    named_columns,
)
from sluice.declarations.scalar_types import Declared, Description, Name, Owner, listed, wrong
from sluice.declarations.sql_text import condition_problem

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
