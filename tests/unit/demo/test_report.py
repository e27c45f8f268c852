"""The report says what a newcomer needs, on a screen and as JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console

from sluice.demo.lakehouse_copy import compare_number
from sluice.demo.report import DemoReport, RowBalance, StepDuration, StepLog, TableReport, WhereToLook, print_report
from sluice.ledger.maintenance_runs import MaintenanceObservation, TableFigures
from sluice.ledger.recorded_checks import QualityObservation, QualityVerdict

NOW = datetime(2026, 11, 20, tzinfo=UTC)

MAINTENANCE = MaintenanceObservation(
    table="bronze.flights",
    started_at=NOW,
    ended_at=NOW,
    launched_by="test",
    before=TableFigures(snapshot=1, rows=10, files=1_234, bytes=10, manifests=4, snapshots=30),
    after=TableFigures(snapshot=2, rows=10, files=2, bytes=10, manifests=1, snapshots=20),
    operations=(),
)

QUALITY = QualityObservation(
    table="silver.flights",
    checked_at=NOW,
    launched_by="test",
    verdict=QualityVerdict.FAILED,
    snapshot_id=1,
    snapshot_committed_at=NOW,
    rows=10,
    expectations=6,
    failed_expectations=("expect_column_values_to_not_be_null",),
    report="reports/index.html",
)

REPORT = DemoReport(
    days="2013-01-01 to 2013-01-14",
    is_year_over=False,
    sent_records=12_518,
    balance=RowBalance(bronze=12_518, silver=12_197, refused=69, late=11, duplicate=241),
    tables=(
        TableReport(table="bronze.flights", rows=12_518, maintenance=MAINTENANCE, quality=None),
        TableReport(table="silver.flights", rows=12_197, maintenance=None, quality=QUALITY),
    ),
    checks=(compare_number(name="balance", statement="the rows add up", expected=3, seen=3),),
    steps=(StepDuration(title="stack", began_after_seconds=0.0, seconds=21.25),),
    total_seconds=150.4,
    held="A bad file was held: batch 1:0 breaks temperature_is_possible.",
    where=WhereToLook(
        airflow_url="http://127.0.0.1:8080",
        airflow_user="admin",
        airflow_login_file="data/airflow/passwords.json",
        quality_reports="data/reports/index.html",
    ),
)


def _shown(report: DemoReport) -> str:
    console = Console(file=StringIO(), width=160)
    print_report(report, console)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        "12,518 in bronze = 12,197 in silver + 69 refused + 11 late + 241 duplicate.",
        "A bad file was held: batch 1:0 breaks temperature_is_possible.",
        "1,234",
        "failed: 5 of 6 expectations",
        "the rows add up",
        "21.2 s",
        "http://127.0.0.1:8080  (user admin, password in data/airflow/passwords.json)",
        "data/reports/index.html",
        "sluice stack down",
    ],
)
def test_the_report_says(words: str) -> None:
    assert words in _shown(REPORT)


def test_the_year_is_said_to_be_over_only_then() -> None:
    from dataclasses import replace

    assert "Every flight of 2013 has been sent" not in _shown(REPORT)
    assert "Every flight of 2013 has been sent" in _shown(replace(REPORT, is_year_over=True, days=None))


def test_the_json_holds_the_same() -> None:
    content = json.loads(json.dumps(REPORT.as_json()))
    assert content["verified"] is True
    assert content["balance"] == {"bronze": 12518, "silver": 12197, "refused": 69, "late": 11, "duplicate": 241}
    assert content["tables"][0] == {
        "table": "bronze.flights",
        "rows": 12518,
        "files_before": 1234,
        "files_after": 2,
        "quality": None,
        "expectations": None,
        "failed_expectations": None,
        "quality_report": None,
    }
    assert content["tables"][1]["failed_expectations"] == ["expect_column_values_to_not_be_null"]
    assert content["steps"] == [{"title": "stack", "began_after_seconds": 0.0, "seconds": 21.25}]


def test_the_steps_are_remembered_in_the_order_in_which_they_began() -> None:
    log = StepLog(None)
    with log.step("outer"), log.step("inner"):
        pass
    assert [step.title for step in log.durations] == ["outer", "inner"]
    with pytest.raises(ValueError, match="broken"), log.step("failing"):
        raise ValueError("broken")
    assert [step.title for step in log.durations] == ["outer", "inner"]
