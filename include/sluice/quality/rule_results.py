"""What the rules of a table found over time, whatever has applied them: the one reader of pages and commands.

A new kind of rule is added to `_histories`; the pages and the command show it as every other one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sluice.declarations.table_declaration import TableDeclaration
from sluice.ledger.connection import Ledger
from sluice.ledger.quality_checks import ExpectationObservation, QualityObservation, recent_quality
from sluice.quality.expectation_sentences import (
    columns_of,
    expectation_sentence,
    found_words,
    rule_words,
    sample_words,
    without_masked_values,
)

SHOWN_RESULTS = 30
"""How many results of each rule a report has: a week of checks every six hours."""


class RulePlace(StrEnum):
    """What applies a rule, in words that follow `found by`."""

    CHECK = "the check of the table"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """What one rule found at one time.

    success: unset when it could not be evaluated. found: in words.
    failed_rows: how many rows break it; unset for a rule that is not about single rows. rows: of how many.
    samples: some values that break it, in words; none of a masked column.
    """

    at: datetime
    success: bool | None
    found: str
    failed_rows: int | None = None
    rows: int | None = None
    samples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleHistory:
    """One rule, and what it found each time, newest first.

    rule: what must be true, in words. kind: its name in the declaration. place: what applies it.
    columns: what it is about; none for a rule about the whole table.
    """

    rule: str
    kind: str
    place: RulePlace
    columns: tuple[str, ...] = ()
    results: tuple[RuleResult, ...] = ()

    @property
    def newest(self) -> RuleResult | None:
        """Its newest result; none before the first."""
        return self.results[0] if self.results else None

    @property
    def broken(self) -> int:
        """How many of its results are that it does not hold."""
        return sum(result.success is False for result in self.results)

    @property
    def broken_since(self) -> datetime | None:
        """Since when it does not hold without a break, as far as results are read; unset while it holds."""
        since = None
        for result in self.results:
            if result.success is not False:
                break
            since = result.at
        return since


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """The quality of a table.

    checks: the newest first. rules: those that are broken first, then in the order of the declaration.
    """

    table: str
    owner: str
    checks: tuple[QualityObservation, ...]
    rules: tuple[RuleHistory, ...]

    @property
    def newest(self) -> QualityObservation | None:
        """The newest check; none before the first."""
        return self.checks[0] if self.checks else None

    @property
    def holding(self) -> int:
        """How many of the rules hold, by their newest results."""
        return sum(rule.newest is not None and rule.newest.success is True for rule in self.rules)


def read_report(
    ledger: Ledger, declared: TableDeclaration, *, masked: Collection[str], limit: int = SHOWN_RESULTS
) -> TableReport:
    """Read what the rules of a table found.

    Parameters
    ----------
    masked: the columns, in lower case, of which no value is shown. limit: how many results of each rule are read.
    """
    return report_of(declared, recent_quality(ledger, declared.table, limit=limit), masked)


def report_of(declared: TableDeclaration, checks: Sequence[QualityObservation], masked: Collection[str]) -> TableReport:
    """The report of a table from what is recorded, the newest first. Pure."""
    rules = sorted(_histories(declared, checks, masked), key=_comes_later)
    return TableReport(table=declared.table, owner=declared.owner, checks=tuple(checks), rules=tuple(rules))


def broken_rules(check: QualityObservation, masked: Collection[str]) -> Iterator[str]:
    """What a check found that is not as it should be, a sentence for each rule; the names alone where a program has
    recorded no more."""
    if not check.details:
        yield from dict.fromkeys(check.failed_expectations)
    for found in check.details:
        if not found.success:
            yield expectation_sentence(without_masked_values(found, masked))


def score_of(check: QualityObservation) -> float | None:
    """The share of its expectations that hold; unset when none was checked."""
    if not check.expectations:
        return None
    return (check.expectations - len(check.failed_expectations)) / check.expectations


def _comes_later(rule: RuleHistory) -> bool:
    return rule.newest is None or rule.newest.success is True


def _histories(
    declared: TableDeclaration, checks: Iterable[QualityObservation], masked: Collection[str]
) -> Iterator[RuleHistory]:
    """The declared expectations, each with its results."""
    found: dict[str, list[RuleResult]] = {}
    for check in checks:
        newest = {_key(one.expectation, one.arguments): one for one in check.details}
        for key, one in newest.items():
            found.setdefault(key, []).append(_result(check, without_masked_values(one, masked)))
    expectations = () if declared.quality is None else declared.quality.expectations
    once = {_key(rule.type, rule.kwargs): rule for rule in expectations}
    for key, rule in once.items():
        yield RuleHistory(
            rule=rule_words(rule.type, rule.kwargs),
            kind=rule.type,
            place=RulePlace.CHECK,
            columns=tuple(dict.fromkeys(columns_of(rule.kwargs))),
            results=tuple(found.get(key, ())),
        )


def _key(name: str, arguments: Mapping[str, Any]) -> str:
    """The ledger returns the arguments in another order than that of the declaration."""
    return json.dumps([name, arguments], sort_keys=True, default=str)


def _result(check: QualityObservation, found: ExpectationObservation) -> RuleResult:
    elements = found.observed.get("element_count")
    return RuleResult(
        at=check.checked_at,
        success=found.success,
        found=found_words(found),
        failed_rows=found.unexpected_rows,
        rows=elements if isinstance(elements, int) else check.rows,
        samples=tuple(sample_words(found)),
    )
