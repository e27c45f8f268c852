"""The results of one run of a backfill, for a person and for later tasks."""

from __future__ import annotations

from typing import Any

from sluice.ledger.backfill_attempts import attempts_launched_by
from sluice.ledger.connection import Ledger
from sluice.ledger.records.backfill_attempt import BackfillAttemptObservation

RESULTS = "results"
"""The XCom of the results of a run's task."""


def results_of_run(ledger: Ledger, launched_by: str) -> dict[str, Any]:
    """The newest result of each stream that a run has replaced an interval of; `rows` are those of the balance.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    return {one.key.stream: _result(one) for one in attempts_launched_by(ledger, launched_by) if one.rows}


def _result(attempt: BackfillAttemptObservation) -> dict[str, Any]:
    key = attempt.key
    return {
        "interval": f"{key.interval_start:%Y-%m-%d %H:%M} to {key.interval_end:%Y-%m-%d %H:%M} UTC",
        "attempt": key.attempt,
        "state": attempt.state.value,
        "snapshot": str(attempt.snapshot_id) if attempt.snapshot_id is not None else None,
        "rows": dict(attempt.rows),
    }
