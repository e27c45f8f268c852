"""The results of one run of a backfill, for a person and for later tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sluice.backfill.intervals import of_publication_key
from sluice.ledger.backfill_attempts import BackfillAttemptObservation, BackfillState, attempts_launched_by
from sluice.ledger.connection import Ledger

RESULTS = "results"
"""The XCom of the results of a run's task."""


def results_of_run(ledger: Ledger, launched_by: str) -> dict[str, Any]:
    """The newest result of each stream that a run has replaced an interval of; `rows` are those of the balance."""
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


def sentences_of(result: Mapping[str, Any]) -> Iterator[str]:
    """A result of a job for a person: a sentence for its interval, and one for each stream that followed it."""
    stream, interval = of_publication_key(result["key"])
    rows, what = result["rows"], f"{stream}, {interval.spoken}"
    if result["state"] == BackfillState.UNCHANGED:
        yield f"{what}: unchanged, the table holds the {rows['published']:,} rows already{_resolved(rows)}."
    else:
        yield (
            f"{what}: {rows['published']:,} rows published in place of {rows['replaced']:,}, in snapshot "
            f"{result['snapshot_id']}; {rows['quarantined']:,} rejected, {rows['duplicate']:,} duplicate"
            f"{_elsewhere(rows)}{_resolved(rows)}."
        )
    for follower in result["followers"]:
        yield from sentences_of(follower)


def _elsewhere(rows: Mapping[str, int]) -> str:
    """What has left the interval."""
    return f", {rows['moved']:,} moved to other intervals, which are asked for too" if rows["moved"] else ""


def _resolved(rows: Mapping[str, int]) -> str:
    """What was open in the quarantine; an earlier version has not counted it."""
    count = rows.get("resolved", 0)
    return f"; {count:,} rows of the quarantine are resolved" if count else ""
