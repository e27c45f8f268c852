"""The rules by which the batches of tables are judged, and what they found over time, whatever has applied them.

The expectations of a table are evaluated by its checks, its rules by every batch that writes it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sluice.declarations.loaded_declarations import Declarations, LoadedStream, all_tables, masked_columns_of_table
from sluice.declarations.rule_declaration import SEVERITIES, RuleDeclaration, Severity
from sluice.declarations.table_declaration import TableDeclaration
from sluice.ledger.batch_findings import RuleCount, RuleResult, rule_results_of_tables
from sluice.ledger.connection import Ledger
from sluice.ledger.recorded_checks import ExpectationObservation, QualityObservation, newest_checks, recent_quality
from sluice.quality.check_results import (
    columns_of,
    expectation_sentence,
    found_words,
    rule_words,
    sample_words,
    without_masked_values,
)

SHOWN_RESULTS = 30
"""How many results of each rule a report has: a week of checks every six hours, and as many batches of each stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRule:
    """A rule by which batches of a table are judged.

    owner: who answers for it. stream: the one that declares it, of whose batches it is; unset: the table declares it,
    for the batches of all streams that write it.
    """

    declared: RuleDeclaration
    owner: str
    stream: str | None = None

    def found_in(self, batch: RuleResult) -> RuleCount | None:
        """What it found in a batch; none where the batch was not judged by it."""
        return batch.rules.get(self.declared.name) if self.stream in (None, batch.stream) else None

    def newest_in(self, batches: Iterable[RuleResult]) -> RuleCount | None:
        """What it found last. batches: newest first."""
        return next((found for batch in batches if (found := self.found_in(batch)) is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """The rules of the batches of one table, its own first, and the streams whose batches are judged by them."""

    rules: tuple[JudgedRule, ...] = ()
    streams: tuple[str, ...] = ()


class RulePlace(StrEnum):
    """What applies a rule, in words that follow `found by`."""

    CHECK = "the check of the table"
    BATCH = "the batches that write it"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFinding:
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
    owner: who answers for it. severity: how much it matters; an expectation is `critical`, as it has no other.
    columns: what it is about; none for a rule about the whole table.
    """

    rule: str
    kind: str
    place: RulePlace
    owner: str
    severity: Severity = "critical"
    columns: tuple[str, ...] = ()
    results: tuple[RuleFinding, ...] = ()

    @property
    def unit(self) -> str:
        """What its results are counted in."""
        return "checks" if self.place is RulePlace.CHECK else "batches"

    @property
    def newest(self) -> RuleFinding | None:
        """Its newest result; none before the first."""
        return self.results[0] if self.results else None

    def remark(self, owner: str) -> str:
        """What is said behind its result: a severity that is not the usual one, and who answers for it where that is
        not the `owner` of the table."""
        severity = f"; {self.severity}" if self.severity != "critical" else ""
        return severity + (f"; owner {self.owner}" if self.owner != owner else "")

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

    checks, batches: the newest first; of the batches what the rules found in them.
    rules: those that are broken first, the most severe of them before the others, then in the order of the declaration.
    """

    table: str
    owner: str
    checks: tuple[QualityObservation, ...]
    rules: tuple[RuleHistory, ...]
    batches: tuple[RuleResult, ...] = ()

    @property
    def newest(self) -> QualityObservation | None:
        """The newest check; none before the first."""
        return self.checks[0] if self.checks else None

    @property
    def holding(self) -> int:
        """How many of the rules hold, by their newest results."""
        return sum(rule.newest is not None and rule.newest.success is True for rule in self.rules)

    @property
    def broken(self) -> tuple[RuleHistory, ...]:
        """The rules that do not hold, or could not be evaluated, by their newest results."""
        return tuple(rule for rule in self.rules if rule.newest is not None and rule.newest.success is not True)

    @property
    def unchecked(self) -> int:
        """How many of the rules have no result yet."""
        return sum(rule.newest is None for rule in self.rules)


def read_report(
    ledger: Ledger, declarations: Declarations, declared: TableDeclaration, *, limit: int = SHOWN_RESULTS
) -> TableReport:
    """Read what the rules of a table found. limit: how many results of each rule are read, by stream."""
    table = declared.table
    known = judged_rules(declarations).get(table, TableRules())
    written = [(table, stream) for stream in known.streams]
    return report_of(
        declared,
        recent_quality(ledger, table, limit=limit),
        masked_columns_of_table(declarations, table),
        rules=known.rules,
        batches=rule_results_of_tables(ledger, written, limit=limit).get(table, ()),
    )


def read_newest_reports(ledger: Ledger, declarations: Declarations) -> tuple[TableReport, ...]:
    """The newest results of all declared tables that have rules or were checked, by name."""
    rules = judged_rules(declarations)
    checks = {check.table: check for check in newest_checks(ledger)}
    batches = rule_results_of_tables(ledger, writers_of(rules, rules), limit=1)
    return tuple(
        report_of(
            table,
            (checks[name],) if name in checks else (),
            masked_columns_of_table(declarations, name),
            rules=rules.get(name, TableRules()).rules,
            batches=batches.get(name, ()),
        )
        for name, table in sorted(all_tables(declarations).items())
        if name in rules or name in checks or table.quality is not None
    )


def report_of(
    declared: TableDeclaration,
    checks: Sequence[QualityObservation],
    masked: Collection[str],
    *,
    rules: Sequence[JudgedRule] = (),
    batches: Sequence[RuleResult] = (),
) -> TableReport:
    """The report of a table from what is recorded, the newest first. Pure.

    Parameters
    ----------
    masked: the columns, in lower case, of which no value is shown.
    rules, batches: by which its batches are judged, and what they found.
    """
    found = (*batch_histories(rules, batches, masked), *_of_checks(declared, checks, masked))
    ordered = sorted(found, key=broken_first)
    return TableReport(
        table=declared.table,
        owner=declared.owner,
        checks=tuple(checks),
        rules=tuple(ordered),
        batches=tuple(batches),
    )


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


def broken_first(rule: RuleHistory) -> tuple[bool, int]:
    """The key of an order: rules that are broken first, the most severe of them before the others."""
    comes_later = rule.newest is None or rule.newest.success is True
    return comes_later, 0 if comes_later else SEVERITIES.index(rule.severity)


def batch_histories(
    rules: Iterable[JudgedRule], batches: Sequence[RuleResult], masked: Collection[str]
) -> Iterator[RuleHistory]:
    """The rules of batches. The rows that break one are not recorded with its counts: those in the quarantine are
    there."""
    for rule in rules:
        declared = rule.declared
        columns = tuple(dict.fromkeys(column for _, column in declared.columns))
        is_shown = not any(column.lower() in masked for column in columns)
        yield RuleHistory(
            rule=rule_words(declared.type, declared.kwargs) if declared.type is not None else declared.sentence,
            kind=f"{declared.name}: {declared.on_failure}",
            place=RulePlace.BATCH,
            owner=rule.owner,
            severity=declared.severity,
            columns=columns,
            results=tuple(
                _of_batch(batch, found, is_shown=is_shown)
                for batch in batches
                if (found := rule.found_in(batch)) is not None
            ),
        )


def _of_batch(batch: RuleResult, found: RuleCount, *, is_shown: bool) -> RuleFinding:
    """is_shown: whether a value that was observed is shown."""
    where = f"{found.counted:,} rows of batch {batch.generation}:{batch.batch} of {batch.stream}"
    value = f": {found.observed}" if is_shown and found.observed is not None else ""
    if found.failed:
        said = f"{found.failed:,} of {where} break it"
    else:
        said = f"{'does not hold' if found.is_broken else 'holds'} for {where}{value}"
    rejected = ", and are in its quarantine" if found.failed and found.on_failure == "quarantine" else ""
    return RuleFinding(
        at=batch.recorded_at or datetime.min.replace(tzinfo=UTC),
        success=not found.is_broken,
        found=said + rejected,
        failed_rows=None if found.is_broken and not found.failed else found.failed,
        rows=found.counted,
    )


def _of_checks(
    declared: TableDeclaration, checks: Iterable[QualityObservation], masked: Collection[str]
) -> Iterator[RuleHistory]:
    """The declared expectations, each with its results."""
    found: dict[str, list[RuleFinding]] = {}
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
            owner=declared.owner,
            columns=tuple(dict.fromkeys(columns_of(rule.kwargs))),
            results=tuple(found.get(key, ())),
        )


def _key(name: str, arguments: Mapping[str, Any]) -> str:
    """The ledger returns the arguments in another order than that of the declaration."""
    return json.dumps([name, arguments], sort_keys=True, default=str)


def _result(check: QualityObservation, found: ExpectationObservation) -> RuleFinding:
    elements = found.observed.get("element_count")
    return RuleFinding(
        at=check.checked_at,
        success=found.success,
        found=found_words(found),
        failed_rows=found.unexpected_rows,
        rows=elements if isinstance(elements, int) else check.rows,
        samples=tuple(sample_words(found)),
    )


def judged_rules(declarations: Declarations) -> Mapping[str, TableRules]:
    """The rules of the batches of all tables that have any, by table."""
    found = {
        name: TableRules(
            rules=tuple(JudgedRule(declared=rule, owner=rule.owner or table.owner) for rule in table.rules)
        )
        for name, loaded in declarations.tables.items()
        if (table := loaded.declaration).rules
    }
    for stream in declarations.streams.values():
        for table_name, rules in _of_stream(stream):
            known = found.get(table_name, TableRules())
            of_table = {one.declared.name for one in known.rules if one.stream is None}
            own = [
                JudgedRule(declared=rule, owner=rule.owner or stream.declaration.owner, stream=stream.name)
                for rule in rules
                if rule.name not in of_table
            ]
            found[table_name] = replace(
                known, rules=(*known.rules, *own), streams=tuple(dict.fromkeys((*known.streams, stream.name)))
            )
    return found


def _of_stream(stream: LoadedStream) -> Iterator[tuple[str, Sequence[RuleDeclaration]]]:
    """The tables of a stream whose batches are judged, each with all rules of its output."""
    for name, rules in stream.rules.items():
        output = stream.declaration.outputs[name].iceberg
        if output is not None:
            yield output.table, rules


def writers_of(rules: Mapping[str, TableRules], tables: Iterable[str]) -> list[tuple[str, str]]:
    """These tables with each of the streams whose batches are judged there."""
    return [(table, stream) for table in tables if table in rules for stream in rules[table].streams]
