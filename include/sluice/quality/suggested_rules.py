"""Rules that the rows of a table meet today, as a patch of its declaration with the evidence beside each. Pure.

They are suggestions for a person: what was true of all rows so far need not be what is right.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.declarations.table_declaration import TableDeclaration
from sluice.tables.column_facts import ColumnFacts

FEWEST_ROWS = 100
"""A table with fewer rows says too little."""

_FEWEST_OF_A_VALUE = 20
"""So many sampled values for each distinct one, before the distinct ones are taken for all that there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedRule:
    """An expectation that holds now. evidence: why, in a sentence."""

    type: str
    kwargs: Mapping[str, Any]
    evidence: str


def suggest_rules(
    declared: TableDeclaration, facts: Iterable[ColumnFacts], *, masked: Collection[str]
) -> tuple[SuggestedRule, ...]:
    """What holds of the columns and is not declared yet.

    Parameters
    ----------
    masked: columns in lower case whose values are not shown: of them nothing is suggested that repeats a value.
    """
    expectations = declared.quality.expectations if declared.quality is not None else ()
    known = {(one.type, one.kwargs.get("column")) for one in expectations}
    required = {column.name for column in declared.columns if column.required}
    return tuple(
        rule
        for one in facts
        if one.rows >= FEWEST_ROWS
        for rule in _of_column(one, is_masked=one.name.lower() in masked, is_required=one.name in required)
        if (rule.type, one.name) not in known
    )


def _of_column(facts: ColumnFacts, *, is_masked: bool, is_required: bool) -> Iterator[SuggestedRule]:
    column = {"column": facts.name}
    if facts.nulls == 0 and not is_required:
        evidence = f"none of {facts.rows:,} rows is null, by the counts of all files"
        yield SuggestedRule(type="expect_column_values_to_not_be_null", kwargs=column, evidence=evidence)
    if is_masked:
        return
    if facts.lowest is not None and facts.highest is not None and _are_finite(facts.lowest, facts.highest):
        bounds = {"min_value": facts.lowest, "max_value": facts.highest}
        evidence = f"the bounds of all files of {facts.rows:,} rows; widen them where other values are right"
        yield SuggestedRule(type="expect_column_values_to_be_between", kwargs=column | bounds, evidence=evidence)
    if facts.values and facts.sampled >= _FEWEST_OF_A_VALUE * len(facts.values):
        evidence = f"{len(facts.values)} distinct values among {facts.sampled:,} of a sample; other rows were not read"
        kwargs = {**column, "value_set": list(facts.values)}
        yield SuggestedRule(type="expect_column_values_to_be_in_set", kwargs=kwargs, evidence=evidence)


def _are_finite(*values: float) -> bool:
    return all(math.isfinite(value) for value in values)


def as_patch(table: str, rules: Iterable[SuggestedRule]) -> str:
    """The rules in the YAML of a table's declaration, each below its evidence."""
    lines = [f"# {table}.table.yaml: accept what is right, and delete the rest", "quality:", "  expectations:"]
    for rule in rules:
        lines += [
            f"    # {rule.evidence}",
            f"    - type: {rule.type}",
            f"      kwargs: {json.dumps(dict(rule.kwargs))}",
        ]
    return "\n".join(lines)
