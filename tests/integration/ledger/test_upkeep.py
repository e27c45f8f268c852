"""What upkeep found, in a real PostgreSQL: everything comes back as it was recorded, the newest first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sluice.ledger.connection import Ledger
from sluice.ledger.maintenance_runs import (
    KeptSnapshot,
    MaintenanceObservation,
    MaintenanceStep,
    StepObservation,
    StepOutcome,
    TableFigures,
    newest_maintenance,
    recent_maintenance,
    record_maintenance,
)
from sluice.ledger.recorded_checks import (
    CheckpointFinding,
    CheckpointObservation,
    CheckpointProperty,
    ExpectationObservation,
    QualityObservation,
    QualityVerdict,
    newest_checkpoint_check,
    newest_quality,
    recent_checkpoint_checks,
    recent_quality,
    record_checkpoint_check,
    record_quality,
)

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MAINTENANCE = MaintenanceObservation(
    table="bronze.flights",
    started_at=NOON,
    ended_at=NOON + timedelta(seconds=9),
    launched_by="a test",
    before=TableFigures(snapshot=2**62, rows=10, files=40, bytes=4_000, manifests=12, snapshots=30, small_files=40),
    after=TableFigures(snapshot=2**62 + 1, rows=10, files=1, bytes=2**40, manifests=1, snapshots=5),
    operations=(
        StepObservation(
            step=MaintenanceStep.REWRITE_DATA_FILES,
            outcome=StepOutcome.DONE,
            reason="small_files",
            explanation="40 small files.",
            attempts=1,
            duration_ms=900,
            result={"rewritten_data_files_count": 40},
        ),
    ),
    file_sizes=(0, 0, 0, 0, 1, 0, 0),
    oldest_snapshot_at=NOON - timedelta(days=5),
    kept=(
        KeptSnapshot(
            stream="silver",
            endpoint="rows",
            kind="position",
            snapshot_id=2**62,
            committed_at=NOON - timedelta(days=5),
            held_snapshots=3,
            held_bytes=2**40,
        ),
        KeptSnapshot(stream="bronze", endpoint="main", kind="written", snapshot_id=2**61),
    ),
)
QUALITY = QualityObservation(
    table="bronze.flights",
    checked_at=NOON,
    launched_by="a test",
    verdict=QualityVerdict.FAILED,
    snapshot_id=2**62,
    snapshot_committed_at=NOON,
    rows=10,
    expectations=1,
    failed_expectations=("expect_column_max_to_be_between",),
    report="file:///reports/index.html",
    details=(
        ExpectationObservation(
            expectation="expect_column_max_to_be_between",
            arguments={"column": "distance", "max_value": 5000},
            success=False,
            observed={"value": 6000},
            unexpected_percent=1.5,
        ),
    ),
)
CHECK = CheckpointObservation(
    stream="flights",
    generation=1,
    location="file:///checkpoints/flights/1",
    checked_at=NOON,
    findings=(CheckpointFinding(name=CheckpointProperty.EXISTS, healthy=True, message="It exists."),),
    newest_batch=7,
    newest_commit_age_seconds=1.5,
)


def test_maintenance(ledger: Ledger) -> None:
    assert newest_maintenance(ledger, "bronze.flights") is None
    record_maintenance(ledger, replace(MAINTENANCE, launched_by="an earlier test"))
    record_maintenance(ledger, MAINTENANCE)
    newest = newest_maintenance(ledger, "bronze.flights")
    assert newest is not None
    assert newest.recorded_at is not None
    assert replace(newest, recorded_at=None) == MAINTENANCE
    assert [run.launched_by for run in recent_maintenance(ledger, "bronze.flights", limit=5)] == [
        "a test",
        "an earlier test",
    ]


def test_quality(ledger: Ledger) -> None:
    assert newest_quality(ledger, "bronze.flights") is None
    record_quality(ledger, QUALITY, sentence="It failed.")
    (newest,) = recent_quality(ledger, "bronze.flights", limit=5)
    assert replace(newest, recorded_at=None) == QUALITY


def test_values_that_json_does_not_know_do_not_lose_a_check(ledger: Ledger) -> None:
    odd = {"mean": float("nan"), "sum": Decimal("1.50"), "newest": NOON}
    record_quality(
        ledger, replace(QUALITY, details=(replace(QUALITY.details[0], observed=odd),)), sentence="It failed."
    )
    newest = newest_quality(ledger, "bronze.flights")
    assert newest is not None
    assert newest.details[0].observed == {"mean": None, "sum": "1.50", "newest": "2026-11-20T12:00:00Z"}


def test_checkpoint_checks(ledger: Ledger) -> None:
    assert newest_checkpoint_check(ledger, "flights") is None
    record_checkpoint_check(ledger, CHECK)
    (newest,) = recent_checkpoint_checks(ledger, "flights", limit=5)
    assert replace(newest, recorded_at=None) == CHECK
