"""Records become rows and rows become records, and text is stored as PostgreSQL can hold it."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import LedgerError
from sluice.failure_reasons import Failure, FailureReason
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.stored_values import record_of, storable_json, storable_text

ROW: dict[str, Any] = {
    "number": 7,  # no field
    "run_id": "r",
    "stream": "flights",
    "token": 1,
    "generation": 1,
    "mode": "continuous",
    "state": "failed",
    "desired_state": "running",
    "launched_at": datetime(2026, 11, 20, tzinfo=UTC),
    "launched_by": "a test",
    "declaration_digest": "d",
    "process_host": None,
    "process_pid": None,
    "log_file": "run.log",
    "failure": "driver_killed",
}


def test_a_row_becomes_a_record_whatever_columns_it_has() -> None:
    run = record_of(RunObservation, ROW)
    assert (run.state, run.process, run.log_file) == (RunState.FAILED, None, Path("run.log"))
    assert run.failure == Failure.of(FailureReason.DRIVER_KILLED)
    assert record_of(RunObservation, dict(reversed(ROW.items()))) == run, "by their names, in any order"
    few = {name: value for name, value in ROW.items() if name not in ("log_file", "failure", "process_pid")}
    assert (record_of(RunObservation, few).log_file, record_of(RunObservation, few).failure) == (None, None)


def test_a_word_of_a_newer_program_is_refused_and_a_reason_of_it_is_none() -> None:
    assert record_of(RunObservation, ROW | {"failure": "not_known_yet"}).failure is None
    with pytest.raises(LedgerError, match=r"the word 'hibernating' as state of stream flights, .* it knows failed, "):
        record_of(RunObservation, ROW | {"state": "hibernating"})


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("the key \0\x01 twice", "the key \\x00\x01 twice"),
        ("half a pair: \ud83d", "half a pair: \\ud83d"),
        ("Zürich 🙂", "Zürich 🙂"),
    ],
)
def test_text_that_postgresql_refuses_is_spelled_out(given: str, stored: str) -> None:
    assert storable_text(given) == stored
    assert json.loads(storable_json({given: [{"in": given}]})) == {stored: [{"in": stored}]}


def test_values_that_json_lacks_become_text_or_null() -> None:
    at = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert json.loads(storable_json({"at": at, "share": math.nan, "slots": range(2), "n": 2**62})) == {
        "at": "2026-10-25T01:30:00Z",
        "share": None,
        "slots": "range(0, 2)",
        "n": 2**62,
    }
