"""The quality of a table as a page: each rule with what it found over time, and a summary over all tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.unit.maintenance.test_maintenance_records import NOON
from tests.unit.pages.test_page_templates import HOSTILE
from tests.unit.pages.test_table_page import DECLARED, EMPTY, LINE, page_of

from sluice.declarations.rule_declaration import RuleDeclaration
from sluice.ledger.batch_findings import RuleCount, RuleResult
from sluice.ledger.recorded_checks import ExpectationObservation, QualityObservation, QualityVerdict
from sluice.pages.line_selection import TableSelection, counts_of
from sluice.pages.page_templates import render
from sluice.pages.quality_report import (
    QualityLine,
    batch_lines,
    charts_of_report,
    has_rules,
    history_tones,
    quality_line,
    summary_figures,
)
from sluice.pages.table_lines import TableLine
from sluice.quality.rule_results import JudgedRule, RuleFinding, TableReport, report_of

assert DECLARED.quality is not None
NOT_NULL, BETWEEN = DECLARED.quality.expectations
SIX_HOURS = timedelta(hours=6)


def check(*, broken: int = 0, ago: int = 0, samples: Sequence[Any] = (5.3, 6.1)) -> QualityObservation:
    """A check so many times six hours ago, in which so many rows broke the bounds."""
    held = ExpectationObservation(expectation=NOT_NULL.type, arguments=NOT_NULL.kwargs, success=True, unexpected_rows=0)
    bounds = ExpectationObservation(
        expectation=BETWEEN.type,
        arguments=dict(reversed(BETWEEN.kwargs.items())),  # as PostgreSQL may return it
        success=not broken,
        observed={"element_count": 318, "samples": list(samples)} if broken else {"element_count": 318},
        unexpected_rows=broken,
    )
    at = NOON - ago * SIX_HOURS
    return QualityObservation(
        table="silver.clicks",
        checked_at=at,
        launched_by="airflow: data_quality, scheduled__7",
        verdict=QualityVerdict.FAILED if broken else QualityVerdict.PASSED,
        snapshot_id=7,
        snapshot_committed_at=at - timedelta(minutes=4),
        rows=318 + ago,
        expectations=2,
        failed_expectations=(BETWEEN.type,) if broken else (),
        report=None,
        details=(held, bounds),
    )


BROKEN_TWICE = (check(broken=2), check(broken=9, ago=1), check(ago=2), check(broken=1, ago=3))


def report_page(report: TableReport, **changed: Any) -> str:
    """The report of a table as HTML."""
    values = {
        "base": "/sluice",
        "airflow": "/",
        "line": LINE,
        "report": report,
        "charts": charts_of_report(report),
        "batches": batch_lines(report),
        "held": (),
        "run_link": "dags/data_quality/runs/scheduled__7",
        "data_docs": {},
        "paused": (),
        "outlook": None,
    }
    return render("table_quality", values | changed)


def test_each_rule_has_its_column_bounds_count_values_and_history_the_broken_first() -> None:
    report = report_of(DECLARED, BROKEN_TWICE, ())

    broken, held = report.rules
    assert (broken.rule, broken.columns, held.rule) == (
        "strongest is between 0 and 5",
        ("strongest",),
        "id is not null",
    )
    assert broken.newest is not None
    assert (broken.newest.failed_rows, broken.newest.rows, broken.newest.samples) == (2, 318, ("5.3", "6.1"))
    assert [result.failed_rows for result in broken.results] == [2, 9, 0, 1]
    assert (broken.broken, broken.broken_since) == (3, NOON - SIX_HOURS), "it held in between"
    assert (held.broken, held.broken_since, report.holding) == (0, None, 1)
    assert history_tones(broken) == ("bad", "good", "bad", "bad"), "oldest first"


def test_a_masked_column_has_counts_and_no_value() -> None:
    report = report_of(DECLARED, BROKEN_TWICE, ("strongest",))

    assert report.rules[0].newest is not None
    assert (report.rules[0].newest.failed_rows, report.rules[0].newest.samples) == (2, ())
    assert "5.3" not in report_page(report)
    assert "5.3" not in str(quality_line(LINE, BROKEN_TWICE, ("strongest",)))


def test_the_page_shows_the_rule_and_leads_to_the_run_and_to_data_docs() -> None:
    address = "20261122T120000Z/validations/silver.clicks/a b.html"
    shown = report_page(report_of(DECLARED, BROKEN_TWICE, ()), data_docs={NOON: address})

    for words in (
        "strongest is between 0 and 5",
        "<code>strongest</code>",
        "<code>5.3</code>, <code>6.1</code>",
        "of 318",
    ):
        assert words in shown
    assert "broken in 3 of 4 checks" in shown
    assert shown.count('class="bad" x=') == 3
    assert 'href="/dags/data_quality/runs/scheduled__7" data-airflow' in shown
    assert 'href="/sluice/tables/silver.clicks/reports/20261122T120000Z/validations/silver.clicks/a%20b.html"' in shown
    assert "no longer kept" in shown, "Data Docs of older checks"
    assert [chart.figure for chart in charts_of_report(report_of(DECLARED, BROKEN_TWICE, ()))] == [
        "50 %", "2", "318", "4 min",
    ]  # fmt: skip


def test_a_row_rule_is_shown_with_what_each_batch_found() -> None:
    rule = RuleDeclaration.model_validate({"name": "quick", "expression": "strongest < 9", "on_failure": "quarantine"})
    batches = [
        RuleResult(
            stream="clicks",
            generation=1,
            batch=number,
            output="main",
            table="silver.clicks",
            rows=40,
            rules={"quick": RuleCount(counted=40, failed=failed, on_failure="quarantine", is_broken=failed > 0)},
            recorded_at=NOON - timedelta(minutes=9 - number),
        )
        for number, failed in ((9, 2), (8, 0))
    ]
    report = report_of(DECLARED, BROKEN_TWICE, (), rules=[JudgedRule(declared=rule, owner="web")], batches=batches)

    first = report.rules[0]
    assert (first.rule, first.kind, first.unit, first.broken) == ("strongest < 9", "quick: quarantine", "batches", 1)
    assert first.newest is not None
    assert first.newest.found == "2 of 40 rows of batch 1:9 of clicks break it, and are in its quarantine"
    shown = report_page(report)
    assert "strongest &lt; 9" in shown
    assert "in 1 of 2 batches" in shown
    assert "in 3 of 4 checks" in shown
    assert "<code>1:9</code> of clicks" in shown
    assert "<div>quick: 2 of 40 rows</div>" in shown
    assert [chart.figure for chart in charts_of_report(report)][-3:] == ["0 %", "2", "40"]


def test_of_broken_rules_the_most_severe_comes_first_and_another_severity_is_named() -> None:
    severities = {"hint": "info", "odd": "warning", "wrong": "critical", "fine": "info"}
    rules = [
        JudgedRule(
            declared=RuleDeclaration.model_validate({"name": name, "expression": f"{name} > 0", "severity": severity}),
            owner="web",
        )
        for name, severity in severities.items()
    ]
    found = {
        name: RuleCount(counted=40, failed=2 * (name != "fine"), on_failure="quarantine", is_broken=name != "fine")
        for name in severities
    }
    batch = RuleResult(
        stream="clicks", generation=1, batch=9, output="main", table="silver.clicks", rows=40, rules=found
    )
    report = report_of(DECLARED, (), (), rules=rules, batches=[batch])

    assert [rule.rule for rule in report.rules][:4] == ["wrong > 0", "odd > 0", "hint > 0", "fine > 0"]
    assert [rule.remark("web") for rule in report.rules][:4] == ["", "; warning", "; info", "; info"]
    broken = quality_line(LINE, (), (), rules=rules, batches=[batch]).broken
    assert [words.partition(" > ")[0] for words in broken] == ["wrong", "odd", "hint"]
    assert broken[1].endswith("; warning")
    assert '<div class="dim">warning</div>' in report_page(report)


def test_a_rule_about_a_batch_is_shown_with_what_was_observed_unless_its_column_is_masked() -> None:
    mean = {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "strongest", "max_value": 4}}
    rules = [JudgedRule(declared=RuleDeclaration.model_validate({"name": "weak", **mean}), owner="web")]
    found = RuleCount(counted=40, failed=0, on_failure="hold", is_broken=True, observed="5.5")
    batch = RuleResult(
        stream="clicks", generation=1, batch=9, output="main", table="silver.clicks", rows=40, rules={"weak": found}
    )

    def newest(*masked: str) -> RuleFinding | None:
        return report_of(DECLARED, (), masked, rules=rules, batches=[batch]).rules[0].newest

    shown, hidden = newest(), newest("strongest")
    assert shown is not None
    assert (shown.success, shown.failed_rows, shown.rows) == (False, None, 40)
    assert shown.found == "does not hold for 40 rows of batch 1:9 of clicks: 5.5"
    assert hidden is not None
    assert hidden.found == "does not hold for 40 rows of batch 1:9 of clicks"


def test_the_page_of_the_table_names_what_is_broken_and_leads_to_the_report() -> None:
    shown = page_of(LINE, EMPTY, report=report_of(DECLARED, BROKEN_TWICE[:1], ()))

    assert "2 of 318 rows break it, for example 5.3, 6.1" in shown
    assert 'href="/sluice/tables/silver.clicks/quality">Quality over time' in shown
    assert "not checked" in page_of(LINE, EMPTY), "before the first check"


def test_before_the_first_check_and_without_rules_the_page_says_so() -> None:
    unchecked = report_page(report_of(DECLARED, (), ()), run_link="")
    without = report_page(report_of(DECLARED.model_copy(update={"quality": None}), (), ()), run_link="")

    assert "not checked" in unchecked
    assert "No rules" in without
    assert "Over time</h2>" not in without


def test_values_with_markup_stay_values() -> None:
    found = (check(broken=1, samples=[HOSTILE]),)

    assert HOSTILE not in report_page(report_of(DECLARED, found, ()))
    assert HOSTILE not in summary_page(quality_line(LINE, found, ()))


def summary_page(*lines: QualityLine) -> str:
    """The summary as HTML."""
    tables = [one.line for one in lines]
    values = {
        "base": "/sluice",
        "airflow": "/",
        "shown": [one for one in lines if has_rules(one.line)],
        "without_rules": [one.line for one in lines if not has_rules(one.line)],
        "counts": counts_of(tables),
        "figures": summary_figures(lines),
        "selection": TableSelection(),
        "most_checks": 12,
        "paused": (),
        "link_to_show": lambda kind: f"show={kind}",
    }
    return render("quality", values)


def with_result(table: str, *, failed: int = 0) -> TableLine:
    """A table that was checked."""
    verdict = QualityVerdict.FAILED if failed else QualityVerdict.PASSED
    return replace(LINE, table=table, rules=2, expectations=2, failed=failed, verdict=verdict, checked_at=NOON)


def test_the_summary_names_what_is_broken_and_counts_the_rest() -> None:
    broken = quality_line(with_result("silver.clicks", failed=1), BROKEN_TWICE, ())
    lines = (
        broken,
        QualityLine(line=with_result("gold.sums")),
        QualityLine(line=replace(LINE, rules=3)),
        QualityLine(line=LINE),
    )

    assert summary_figures(lines) == {"good": 1, "broken": 1, "unchecked": 1, "without": 1, "percent": 75}
    assert broken.scores == (50, 100, 50, 50)
    shown = summary_page(*lines)
    assert "strongest is between 0 and 5: 2 of 318 rows break it, for example 5.3, 6.1" in shown
    assert 'href="/sluice/tables/silver.clicks/quality"' in shown
    assert "1 of 2" in shown
    assert "75 %" in shown
    assert "1 without rules" in shown
    without_details = replace(BROKEN_TWICE[0], details=())
    assert quality_line(LINE, [without_details], ()).broken == (BETWEEN.type,), "of a program that recorded no more"


def test_the_summary_counts_rules_of_batches_and_names_those_that_are_broken_with_their_owner() -> None:
    rule = RuleDeclaration.model_validate({"name": "quick", "expression": "strongest < 9", "on_failure": "quarantine"})
    found = RuleCount(counted=40, failed=2, on_failure="quarantine", is_broken=True)
    batch = RuleResult(
        stream="clicks", generation=1, batch=9, output="main", table="silver.clicks", rows=40, rules={"quick": found}
    )
    line = replace(LINE, batch_rules=2, judged=1, broken=1, judged_at=NOON)
    shown = quality_line(line, (), (), rules=[JudgedRule(declared=rule, owner="analysts")], batches=[batch])

    assert (line.tone, line.quality_words, line.is_healthy) == ("bad", "failed", False)
    assert (shown.batch_scores, shown.broken) == (
        (0,),
        ("strongest < 9: 2 of 40 rows of batch 1:9 of clicks break it, and are in its quarantine; owner analysts",),
    )
    holds = QualityLine(line=replace(LINE, batch_rules=2, judged=2, judged_at=NOON))
    unchecked = QualityLine(line=replace(LINE, batch_rules=2))
    figures = {"good": 1, "broken": 1, "unchecked": 1, "without": 0, "percent": 67}
    assert summary_figures([shown, holds, unchecked]) == figures
    page = summary_page(shown, unchecked)
    assert "0 of 1" in page
    assert "1 not checked yet" in page
    assert "owner analysts" in page
    assert "2 declared" in page
    assert "without rules" not in page


def test_a_broken_batch_outweighs_a_check_that_passed_and_a_check_a_batch_that_did() -> None:
    passed, failed = with_result("silver.clicks"), with_result("silver.clicks", failed=1)
    judged: dict[str, Any] = {"batch_rules": 1, "judged": 1, "judged_at": NOON + SIX_HOURS}

    assert replace(passed, **judged, broken=1).result is QualityVerdict.FAILED
    assert replace(failed, **judged).result is QualityVerdict.FAILED
    assert replace(passed, **judged).found_at == NOON + SIX_HOURS
    empty = replace(LINE, rules=2, verdict=QualityVerdict.NOTHING_TO_CHECK, **judged)
    assert (empty.result, empty.unchecked) == (QualityVerdict.PASSED, 2)


def test_two_hundred_tables_are_a_summary_of_less_than_300_kilobytes() -> None:
    lines = [
        quality_line(with_result(f"silver.table_{n:03}_of_the_shop", failed=1), BROKEN_TWICE, ()) for n in range(200)
    ]

    assert len(summary_page(*lines).encode()) < 300_000
