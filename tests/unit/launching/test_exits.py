"""How a driver ended, derived from its exit code and its log, and the note of its exit."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.failure_reasons import Failure, FailureReason
from sluice.launching.driver_records import exit_note_path, exit_of, read_exit_note, remove_exit_note, write_exit_note
from sluice.ledger.run_values import DriverExit, RunState

FAILED = "sluice: failed: DeliveryError: bronze.flights refuses"


@pytest.mark.parametrize(
    ("exit_code", "log", "state", "reason"),
    [
        (0, FAILED, RunState.FINISHED, "finished"),
        (1, f"one\n{FAILED}\n", RunState.FAILED, "DeliveryError: bronze.flights refuses"),
        (
            1,
            f"{FAILED.replace('bronze', 'gold')}\n{FAILED}\ntrace",
            RunState.FAILED,
            "DeliveryError: bronze.flights refuses",
        ),
        (1, f"it says '{FAILED}'", RunState.FAILED, "exit code 1"),
        (1, "", RunState.FAILED, "exit code 1"),
        (2, "usage: run_stream.py", RunState.FAILED, "exit code 2"),
        (-9, FAILED, RunState.FAILED, "killed by SIGKILL"),
        (-15, "", RunState.FAILED, "killed by SIGTERM"),
        (137, "", RunState.FAILED, "killed by SIGKILL"),
        (143, "", RunState.FAILED, "killed by SIGTERM"),
        (255, "", RunState.FAILED, "exit code 255"),
    ],
)
def test_an_exit_has_a_state_and_a_reason(
    tmp_path: Path, exit_code: int, log: str, state: RunState, reason: str
) -> None:
    log_file = tmp_path / "run.log"
    log_file.write_text(log)
    ended = exit_of(exit_code, log_file)
    assert (ended.state, ended.exit_code, ended.reason) == (state, exit_code, reason)
    assert (ended.failure is None) is (exit_code == 0)


@pytest.mark.parametrize(
    ("exit_code", "log", "reason"),
    [
        (1, f"sluice: reason: column_missing\n{FAILED}", FailureReason.COLUMN_MISSING),
        (-9, f"sluice: reason: column_missing\n{FAILED}", FailureReason.COLUMN_MISSING),
        (1, f"sluice: reason: of a newer program\n{FAILED}", FailureReason.UNEXPLAINED),
        (1, "sluice: failed: CheckpointError: It is damaged.", FailureReason.CHECKPOINT_DAMAGED),
        (-9, "", FailureReason.DRIVER_KILLED),
        (-9, 'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space', FailureReason.DRIVER_KILLED),
        (1, 'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space', FailureReason.OUT_OF_MEMORY),
        (1, "Caused by: org.apache.iceberg.exceptions.CommitFailedException: survived", FailureReason.UNEXPLAINED),
        (1, "", FailureReason.UNEXPLAINED),
    ],
)
def test_an_exit_has_a_failure(tmp_path: Path, exit_code: int, log: str, reason: FailureReason) -> None:
    log_file = tmp_path / "run.log"
    log_file.write_text(log)
    assert exit_of(exit_code, log_file).failure == Failure.of(reason)


def test_a_long_log_is_read_from_its_end_and_a_long_reason_is_cut(tmp_path: Path) -> None:
    log_file = tmp_path / "run.log"
    log_file.write_bytes(b"\xff" * 500_000 + b"\n" + FAILED.encode() + b"x" * 5_000)
    reason = exit_of(1, log_file).reason
    assert reason.startswith("DeliveryError: bronze.flights refuses")
    assert len(reason) == 1_000


def test_a_missing_log_does_not_hide_the_exit(tmp_path: Path) -> None:
    assert exit_of(1, tmp_path / "removed.log").reason == "exit code 1"


def test_a_note_is_left_read_and_taken_away(tmp_path: Path) -> None:
    log_file = tmp_path / "run.log"
    failure = Failure.of(FailureReason.DRIVER_KILLED)
    ended = DriverExit(state=RunState.FAILED, exit_code=-9, reason="killed by SIGKILL", failure=failure)
    assert read_exit_note(log_file) is None
    write_exit_note(log_file, ended)
    assert read_exit_note(log_file) == ended
    assert [path.name for path in tmp_path.iterdir()] == [exit_note_path(log_file).name]
    remove_exit_note(log_file)
    remove_exit_note(log_file)
    assert read_exit_note(log_file) is None
