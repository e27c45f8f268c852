"""An increment that is red, as an event in the ledger: the same alert that an unhealthy continuous stream leaves.

The task of the increment reports it, because no reconciler watches a stream that runs by a schedule. It stays reported
until an increment succeeds; further red ones leave no second alert.
"""

from __future__ import annotations

from sluice.ledger.connection import Ledger
from sluice.ledger.stream_troubles import StreamTrouble, clear_trouble, record_report, record_trouble
from sluice.supervision.stream_health import StreamState


def report_red_increment(ledger: Ledger, stream: str, *, sentence: str, by: str) -> None:
    """Record, with an event, that the last attempt of an increment failed.

    Parameters
    ----------
    sentence: why, and what to do. by: the task.
    """
    trouble = record_trouble(ledger, stream, reason=StreamState.FAILED, explanation=sentence)
    if trouble.reported_at is None:
        record_report(ledger, trouble, by=by)


def report_good_increment(ledger: Ledger, stream: str, *, by: str) -> None:
    """Record that an increment succeeded, with an event when the one before was red."""
    clear_trouble(ledger, stream, by=by)


def is_of_increment(trouble: StreamTrouble) -> bool:
    """Whether the task of an increment has reported it."""
    return trouble.reason == StreamState.FAILED
