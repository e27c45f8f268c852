"""Rules that the rows of a table meet today, as a patch of its declaration with the evidence beside each. Pure.

They are suggestions for a person: what was true of all rows so far need not be what is right.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import yaml

from sluice.declarations.loaded_declarations import LoadedTable
from sluice.declarations.rule_declaration import RuleDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.messages.message_parts import unshowable_character
from sluice.tables.column_facts import ColumnFacts

FEWEST_ROWS = 100
"""A table with fewer rows says too little."""

_FEWEST_OF_A_VALUE = 20
"""So many sampled values for each distinct one, before the distinct ones are taken for all that there are."""

_OF_TEXTS = (
    "expect_column_values_to_be_in_set",
    "expect_column_values_to_match_regex",
    "expect_column_value_lengths_to_be_between",
    "expect_column_value_lengths_to_equal",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedRule:
    """An expectation that holds now. evidence: why, in a sentence."""

    type: str
    kwargs: Mapping[str, Any]
    evidence: str


def suggest_rules(
    declared: TableDeclaration,
    facts: Iterable[ColumnFacts],
    *,
    masked: Collection[str],
    rules: Iterable[RuleDeclaration] = (),
) -> tuple[SuggestedRule, ...]:
    """What holds of the columns and is not declared yet, neither as an expectation nor as a rule.

    Parameters
    ----------
    masked: columns in lower case whose values are not shown: of them nothing is suggested that repeats a value.
    rules: those by which batches of the table are judged. A condition in SQL is not compared.
    """
    expectations = declared.quality.expectations if declared.quality is not None else ()
    known = {(one.type, one.kwargs.get("column")) for one in expectations}
    known |= {(one.type, one.kwargs.get("column")) for one in rules if one.type is not None}
    required = {column.name for column in declared.columns if column.required}
    return tuple(
        rule
        for one in facts
        if one.rows >= FEWEST_ROWS
        for rule in _of_column(one, is_masked=one.name.lower() in masked, is_required=one.name in required)
        if not any((kind, one.name) in known for kind in _instead_of(rule.type))
    )


def _instead_of(kind: str) -> tuple[str, ...]:
    """What makes a suggestion needless where it is declared: the same, or what says as much about a text."""
    return _OF_TEXTS if kind in _OF_TEXTS else (kind,)


def _of_column(facts: ColumnFacts, *, is_masked: bool, is_required: bool) -> Iterator[SuggestedRule]:
    column = {"column": facts.name}
    if facts.nulls == 0 and not is_required:
        evidence = f"none of {facts.rows:,} rows is null, by the counts of all files"
        yield SuggestedRule(type="expect_column_values_to_not_be_null", kwargs=column, evidence=evidence)
    if not is_masked:
        yield from _of_bounds(facts)
        yield from _of_sample(facts)


def _of_bounds(facts: ColumnFacts) -> Iterator[SuggestedRule]:
    """Of times the earliest alone: later ones come with the next rows."""
    lowest, highest = facts.lowest, facts.highest
    if lowest is None or highest is None:
        return
    bounds: dict[str, Any]
    if isinstance(lowest, date) or isinstance(highest, date):
        bounds = {"min_value": str(lowest)}
        evidence = f"the bounds of all files of {facts.rows:,} rows, {lowest} to {highest}; later ones may follow"
    elif math.isfinite(lowest) and math.isfinite(highest):
        bounds = {"min_value": lowest, "max_value": highest}
        evidence = f"the bounds of all files of {facts.rows:,} rows; widen them where other values are right"
    else:
        return
    kwargs = {"column": facts.name, **bounds}
    yield SuggestedRule(type="expect_column_values_to_be_between", kwargs=kwargs, evidence=evidence)


def _of_sample(facts: ColumnFacts) -> Iterator[SuggestedRule]:
    """The narrowest of these alone: few distinct values, one pattern, the lengths of texts. Nothing where one holds a
    character that no declaration may hold."""
    if any(unshowable_character(str(text)) is not None for text in (*facts.values, facts.pattern)):
        return
    others = f"among {facts.sampled:,} of a sample; other rows were not read"
    if facts.values and facts.sampled >= _FEWEST_OF_A_VALUE * len(facts.values):
        yield SuggestedRule(
            type="expect_column_values_to_be_in_set",
            kwargs={"column": facts.name, "value_set": list(facts.values)},
            evidence=f"{len(facts.values)} distinct values {others}",
        )
    elif facts.sampled < FEWEST_ROWS:
        return
    elif facts.pattern:
        yield SuggestedRule(
            type="expect_column_values_to_match_regex",
            kwargs={"column": facts.name, "regex": facts.pattern},
            evidence=f"all are built alike {others}",
        )
    elif facts.longest is not None:
        yield SuggestedRule(
            type="expect_column_value_lengths_to_be_between",
            kwargs={"column": facts.name, "min_value": facts.shortest, "max_value": facts.longest},
            evidence=f"{facts.shortest} to {facts.longest} characters {others}",
        )


def as_patch(loaded: LoadedTable, rules: Sequence[SuggestedRule]) -> str:
    """The rules in the YAML of a table's declaration, each below its evidence; a comment says where they belong.

    A declaration without `quality` gets one. Otherwise they are further items of its list; where that is written in
    one line, it comes with what it has.
    """
    quality, document = loaded.declaration.quality, loaded.document
    name = document.file.name
    advice = "accept what is right, and delete the rest"
    if quality is None:
        return "\n".join((f"# {name}: {advice}", "quality:", "  expectations:", *_items(rules, indent=4)))
    lines = document.lines
    first = document.text.decode().splitlines()[lines["quality", "expectations", 0] - 1]
    if first.lstrip().startswith("- "):
        indent = len(first) - len(first.lstrip())
        below = lines["quality", "expectations"]
        return "\n".join((f"# {name}: insert below line {below}; {advice}", *_items(rules, indent=indent)))
    declared = [f"    - {_in_one_line(one.model_dump(mode='json'))}" for one in quality.expectations]
    more = ["  on_publication: true"] if quality.on_publication else []
    items = ("quality:", *more, "  expectations:", *declared, *_items(rules, indent=4))
    return "\n".join((f"# {name}: in the place of `quality` in line {lines['quality',]}; {advice}", *items))


def _items(rules: Iterable[SuggestedRule], *, indent: int) -> Iterator[str]:
    margin = " " * indent
    for rule in rules:
        yield f"{margin}# {rule.evidence}"
        yield f"{margin}- type: {rule.type}"
        yield f"{margin}  kwargs: {_in_one_line(rule.kwargs)}"


def _in_one_line(values: Mapping[str, Any]) -> str:
    """As YAML of one line that every reader takes for the same values: JSON writes 1e-07, which is a text there."""
    return yaml.safe_dump(dict(values), default_flow_style=True, width=math.inf, sort_keys=False).strip()
