"""The quality of tables as pages show it: of one table each rule over time, and a summary over all. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sluice.ledger.batch_findings import RuleCount, RuleResult
from sluice.ledger.recorded_checks import QualityObservation
from sluice.pages.page_figures import Chart, ShownTone, coloured_lines, count_text, duration_text, newest_of, top_of
from sluice.pages.table_lines import TableLine
from sluice.quality.rule_results import (
    JudgedRule,
    RuleFinding,
    RuleHistory,
    TableReport,
    batch_histories,
    broken_first,
    broken_rules,
    score_of,
)

SUMMARY_CHECKS = 12
"""How many checks of each table the summary draws, and batches of each stream: three days of checks every six hours."""

SHOWN_BROKEN = 3
"""How many broken rules of a table the summary names; its report has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityLine:
    """A table of the summary.

    scores, batch_scores: the share of its rules that held, of each check and of each batch, oldest first; in percent.
    broken: what does not hold, in words, at most `SHOWN_BROKEN`; `more_broken` are not named.
    """

    line: TableLine
    scores: tuple[int | None, ...] = ()
    batch_scores: tuple[int | None, ...] = ()
    broken: tuple[str, ...] = ()
    more_broken: int = 0


def tone_of(result: RuleFinding | None) -> ShownTone:
    """How a result is marked; none: the rule was not checked."""
    if result is None:
        return ShownTone.CALM
    return ShownTone.ODD if result.success is None else ShownTone.GOOD if result.success else ShownTone.BAD


def history_tones(rule: RuleHistory) -> tuple[ShownTone, ...]:
    """The marks of a rule's results, oldest first."""
    return tuple(tone_of(result) for result in reversed(rule.results))


def quality_line(
    line: TableLine,
    checks: Sequence[QualityObservation],
    masked: Collection[str],
    *,
    rules: Sequence[JudgedRule] = (),
    batches: Sequence[RuleResult] = (),
) -> QualityLine:
    """A table of the summary.

    Parameters
    ----------
    checks: its newest, newest first, the first with what it found.
    rules, batches: by which its batches are judged, and the newest of them, newest first.
    """
    of_checks = tuple(broken_rules(checks[0], masked)) if checks else ()
    broken = (*_broken_in_batches(batch_histories(rules, batches, masked), line.owner), *of_checks)
    return QualityLine(
        line=line,
        scores=tuple(_percent(check) for check in reversed(checks)),
        batch_scores=tuple(_percent_of_batch(batch) for batch in reversed(batches)),
        broken=broken[:SHOWN_BROKEN],
        more_broken=max(len(broken) - SHOWN_BROKEN, 0),
    )


def _broken_in_batches(rules: Iterable[RuleHistory], owner: str) -> Iterator[str]:
    """The rules that do not hold in their newest batch, the most severe first, with who answers where that is not the
    owner of the table."""
    for rule in sorted(rules, key=broken_first):
        if rule.newest is not None and not rule.newest.success:
            yield f"{rule.rule}: {rule.newest.found}{rule.remark(owner)}"


def has_rules(line: TableLine) -> bool:
    """Whether anything of a table is checked, or was."""
    return bool(line.all_rules or line.found)


def summary_figures(lines: Sequence[QualityLine]) -> Mapping[str, int]:
    """How many tables are in order, are not, were not checked yet, and have no rules; of the rules with a result the
    share that holds, in percent."""
    tables = [one.line for one in lines]
    found = sum(one.found for one in tables)
    return {
        "good": sum(one.tone is ShownTone.GOOD for one in tables),
        "broken": sum(not one.is_healthy for one in tables),
        "unchecked": sum(bool(one.all_rules) and not one.found for one in tables),
        "without": sum(not has_rules(one) for one in tables),
        "percent": round(100 * sum(one.holding for one in tables) / found) if found else 0,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """What the rules found in one batch of a table. batch: `<generation>:<batch>`.

    broken: the rules that do not hold, each with how many rows break it. holds: whether it waited for a person.
    """

    at: datetime | None
    stream: str
    batch: str
    rows: int
    rules: int
    broken: tuple[str, ...]
    holds: bool


def batch_lines(report: TableReport) -> tuple[BatchLine, ...]:
    """The batches of a table, newest first."""
    return tuple(
        BatchLine(
            at=batch.recorded_at,
            stream=batch.stream,
            batch=f"{batch.generation}:{batch.batch}",
            rows=batch.rows,
            rules=len(batch.rules),
            broken=tuple(_in_rows(name, batch.rules[name]) for name in batch.broken),
            holds=batch.holds,
        )
        for batch in report.batches
    )


def _in_rows(name: str, found: RuleCount) -> str:
    return f"{name}: {found.failed:,} of {found.counted:,} rows" if found.failed else name


def charts_of_report(report: TableReport) -> tuple[Chart, ...]:
    """The charts of a table over its checks and batches: rules that hold, rows that break one, volume, and freshness
    when it was checked."""
    return (*_charts_of_checks(report.checks[::-1]), *_charts_of_batches(report.batches[::-1]))


def _charts_of_checks(checks: Sequence[QualityObservation]) -> tuple[Chart, ...]:
    if not checks:
        return ()
    failing = [_failing_rows(check) for check in checks]
    ages = [_age_seconds(check) for check in checks]
    return (
        _chart("Rules that hold", [_percent(check) for check in checks], "{:.0f} %".format, top=100),
        _chart("Rows that break a rule, by check", failing, count_text),
        _chart("Rows of the table, by check", [check.rows for check in checks], count_text),
        _chart("Age of the data when it was checked", ages, _duration),
    )


def _charts_of_batches(batches: Sequence[RuleResult]) -> tuple[Chart, ...]:
    """A row that breaks two rules counts twice, as in a check."""
    if not batches:
        return ()
    failing = [sum(found.failed for found in batch.rules.values()) for batch in batches]
    scores = [_percent_of_batch(batch) for batch in batches]
    return (
        _chart("Rules that hold, by batch", scores, "{:.0f} %".format, top=100, unit="batches"),
        _chart("Rows that break a rule, by batch", failing, count_text, unit="batches"),
        _chart("Rows, by batch", [batch.rows for batch in batches], count_text, unit="batches"),
    )


def _chart(
    title: str,
    values: Sequence[int | None],
    say: Callable[[float], str],
    *,
    top: float | None = None,
    unit: str = "checks",
) -> Chart:
    most = top_of(values) if top is None else top
    newest = newest_of(values)
    shown = "unknown" if newest is None else say(newest)
    return Chart(
        title=title,
        figure=shown,
        summary=f"{title}: now {shown}, over {len(values)} {unit}.",
        top=say(round(most)),
        lines=coloured_lines([values], most),
    )


def _percent(check: QualityObservation) -> int | None:
    score = score_of(check)
    return None if score is None else round(100 * score)


def _percent_of_batch(batch: RuleResult) -> int | None:
    return round(100 * (len(batch.rules) - len(batch.broken)) / len(batch.rules)) if batch.rules else None


def _failing_rows(check: QualityObservation) -> int | None:
    """A row that breaks two rules counts twice: which rows they are is not recorded."""
    counted = [found.unexpected_rows for found in check.details if found.unexpected_rows is not None]
    return sum(counted) if counted else None


def _age_seconds(check: QualityObservation) -> int | None:
    if check.snapshot_committed_at is None:
        return None
    return max(int((check.checked_at - check.snapshot_committed_at).total_seconds()), 0)


def _duration(seconds: float) -> str:
    return duration_text(timedelta(seconds=seconds))
