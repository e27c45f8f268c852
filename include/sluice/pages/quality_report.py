"""The quality of tables as pages show it: of one table each rule over time, and a summary over all. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sluice.ledger.quality_checks import QualityObservation
from sluice.pages.page_words import ShownTone, count_text, duration_text
from sluice.pages.svg_charts import Chart, coloured_lines, newest_of, top_of
from sluice.pages.table_lines import TableLine
from sluice.quality.rule_results import RuleFinding, RuleHistory, TableReport, broken_rules, score_of

SUMMARY_CHECKS = 12
"""How many checks of each table the summary draws: three days of those every six hours."""

SHOWN_BROKEN = 3
"""How many broken rules of a table the summary names; its report has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityLine:
    """A table of the summary.

    scores: the share of its rules that held, of each check, oldest first; in percent.
    broken: what does not hold, in words, at most `SHOWN_BROKEN`; `more_broken` are not named.
    """

    line: TableLine
    scores: tuple[int | None, ...] = ()
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


def quality_line(line: TableLine, checks: Sequence[QualityObservation], masked: Collection[str]) -> QualityLine:
    """A table of the summary. checks: its newest, newest first, the first with what it found."""
    broken = tuple(broken_rules(checks[0], masked)) if checks else ()
    return QualityLine(
        line=line,
        scores=tuple(_percent(check) for check in reversed(checks)),
        broken=broken[:SHOWN_BROKEN],
        more_broken=max(len(broken) - SHOWN_BROKEN, 0),
    )


def has_rules(line: TableLine) -> bool:
    """Whether anything of a table is checked, or was."""
    return bool(line.rules or line.expectations)


def summary_figures(lines: Sequence[QualityLine]) -> Mapping[str, int]:
    """How many tables are in order, are not, were not checked yet, and have no rules; of those that were checked the
    share of rules that hold, in percent."""
    tables = [one.line for one in lines]
    checked = [one for one in tables if one.expectations]
    expectations = sum(one.expectations for one in checked)
    return {
        "good": sum(one.tone is ShownTone.GOOD for one in tables),
        "broken": sum(not one.is_healthy for one in tables),
        "unchecked": sum(bool(one.rules) and not one.expectations for one in tables),
        "without": sum(not has_rules(one) for one in tables),
        "percent": round(100 * sum(one.expectations - one.failed for one in checked) / expectations) if checked else 0,
    }


def charts_of_report(report: TableReport) -> tuple[Chart, ...]:
    """The charts of a table over its checks: rules that hold, rows that break one, volume, freshness."""
    checks = report.checks[::-1]
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


def _chart(title: str, values: Sequence[int | None], say: Callable[[float], str], *, top: float | None = None) -> Chart:
    most = top_of(values) if top is None else top
    newest = newest_of(values)
    shown = "unknown" if newest is None else say(newest)
    return Chart(
        title=title,
        figure=shown,
        summary=f"{title}: now {shown}, over {len(values)} checks.",
        top=say(round(most)),
        lines=coloured_lines([values], most),
    )


def _percent(check: QualityObservation) -> int | None:
    score = score_of(check)
    return None if score is None else round(100 * score)


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
