"""What is said of a maintenance run, to a person and to a program."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from sluice.launching.job_output import json_line, json_value
from sluice.ledger.maintenance_runs import (
    KeptSnapshot,
    MaintenanceObservation,
    MaintenanceStep,
    StepObservation,
    StepOutcome,
)
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.maintenance.maintenance_records import maintenance_record, run_sentences, table_sentences
from sluice.maintenance.pin_plan import Pin, PinKind, PinPlan, ReaderCost
from sluice.tables.table_observation import PartitionObservation, SnapshotObservation, TableObservation

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
READ = Pin(kind=PinKind.POSITION, stream="silver", endpoint="rows", snapshot_id=5)
WRITTEN = Pin(kind=PinKind.WRITTEN, stream="bronze", endpoint="main", snapshot_id=4)
PINS = PinPlan(pins=(READ, WRITTEN), to_set=(), to_remove=(), holds=(), keep_since=None)
COSTS = (ReaderCost(stream="silver", endpoint="rows", snapshots=3, replaced_bytes=2**20, age=timedelta(days=8)),)


def table(*, files: int, snapshot_id: int | None = 7, manifests: int = 3) -> TableObservation:
    """A table of so many small files."""
    return TableObservation(
        table="bronze.flights",
        observed_at=NOON,
        metadata_location="s3://lakehouse/bronze/flights/metadata/v9.metadata.json",
        snapshot_id=snapshot_id,
        committed_at=NOON if snapshot_id else None,
        rows=100,
        small_file_bytes=1024,
        partitions=(
            PartitionObservation(
                partition="day=1", data_files=files, data_bytes=files * 10, small_files=files, small_bytes=files * 10
            ),
        ),
        delete_files=0,
        manifests=manifests,
        snapshots=(
            SnapshotObservation(
                snapshot_id=5, parent_id=None, committed_at=NOON - timedelta(days=8), operation="append"
            ),
        ),
        references=(),
        file_sizes=(files, 0, 0, 0, 0, 0, 0),
    )


def run(*operations: StepObservation) -> MaintenanceObservation:
    """A run that made one file of twelve."""
    return maintenance_record(
        MaintenancePlan(seen=table(files=12), pins=PINS, steps=(), content_check_bytes=0, costs=COSTS),
        table(files=1, snapshot_id=8, manifests=1),
        operations,
        launched_by="a test",
        ended_at=NOON + timedelta(seconds=9),
    )


def step(outcome: StepOutcome, reason: str = "small_files") -> StepObservation:
    """A compaction."""
    return StepObservation(
        step=MaintenanceStep.REWRITE_DATA_FILES,
        outcome=outcome,
        reason=reason,
        explanation="12 small files (120 bytes) in 1 of 1 partitions",
        attempts=1,
        duration_ms=2345,
        result={"added_data_files_count": 1},
    )


def test_a_run_in_sentences() -> None:
    assert list(run_sentences(run(step(StepOutcome.DONE)))) == [
        "bronze.flights: rewrite_data_files done: 12 small files (120 bytes) in 1 of 1 partitions (2.3 s)",
        "bronze.flights: files 12 → 1, bytes 120 → 10, manifests 3 → 1, snapshots 1 → 1, rows 100 → 100",
    ]


def test_a_run_has_the_debt_of_its_table_and_for_whom_snapshots_are_kept() -> None:
    done = run(step(StepOutcome.DONE))

    assert (done.before.small_files, done.after.small_files) == (12, 1)
    assert done.file_sizes == (1, 0, 0, 0, 0, 0, 0)
    assert done.oldest_snapshot_at == NOON - timedelta(days=8)
    assert done.kept == (
        KeptSnapshot(
            stream="silver",
            endpoint="rows",
            kind="position",
            snapshot_id=5,
            committed_at=NOON - timedelta(days=8),
            held_snapshots=3,
            held_bytes=2**20,
        ),
        KeptSnapshot(stream="bronze", endpoint="main", kind="written", snapshot_id=4),
    )


def test_a_run_as_json() -> None:
    document = json.loads(json_line(run(step(StepOutcome.DONE))))

    assert document["table"] == "bronze.flights"
    assert (document["started_at"], document["ended_at"]) == ("2026-11-20T12:00:00Z", "2026-11-20T12:00:09Z")
    assert document["operations"][0]["outcome"] == "done"
    assert document == json_value(run(step(StepOutcome.DONE)))


@pytest.mark.parametrize(
    ("outcome", "success"),
    [
        (StepOutcome.DONE, True),
        (StepOutcome.SKIPPED, True),
        (StepOutcome.YIELDED, False),
        (StepOutcome.REFUSED, False),
        (StepOutcome.FAILED, False),
    ],
)
def test_a_run_succeeded_when_everything_due_was_done(outcome: StepOutcome, success: bool) -> None:
    assert run(step(outcome)).success is success


def test_a_table_without_a_snapshot_is_said() -> None:
    assert next(table_sentences(table(files=0, snapshot_id=None))) == "bronze.flights: snapshot none yet"
