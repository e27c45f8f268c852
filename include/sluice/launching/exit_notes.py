"""The note that a driver's parent leaves beside the log: how the driver ended, in case the ledger cannot be told.

The note is written before the ledger is told and removed afterwards, so that an exit is never known to nobody.
"""

from __future__ import annotations

import json
from pathlib import Path

from sluice.failure_reasons import Failure, FailureReason
from sluice.ledger.records.run import DriverExit, RunState


def exit_note_path(log_file: Path) -> Path:
    """Where the note of the driver with this log lies."""
    return log_file.with_name(f"{log_file.name}.exit.json")


def write_exit_note(log_file: Path, ended: DriverExit) -> None:
    """Leave the note. It appears whole or not at all."""
    note = exit_note_path(log_file)
    draft = note.with_suffix(".draft")
    failure = None if ended.failure is None else ended.failure.reason
    draft.write_text(
        json.dumps(
            {"state": ended.state, "exit_code": ended.exit_code, "reason": ended.reason, "failure_reason": failure}
        )
    )
    draft.replace(note)


def read_exit_note(log_file: Path) -> DriverExit | None:
    """The note, when there is one that can be read from this host."""
    try:
        note = json.loads(exit_note_path(log_file).read_text())
    except OSError:
        return None  # no note, or a log on another host: then only the ledger can tell
    told = note.get("failure_reason")  # notes of before do not have it
    return DriverExit(
        state=RunState(note["state"]),
        exit_code=note["exit_code"],
        reason=note["reason"],
        failure=Failure.of(FailureReason(told)) if told in set(FailureReason) else None,
    )


def remove_exit_note(log_file: Path) -> None:
    """Take the note away: the ledger knows."""
    exit_note_path(log_file).unlink(missing_ok=True)
