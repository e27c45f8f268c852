"""Ends a live run whose process is gone, for callers that may take its place without a supervisor."""

from __future__ import annotations

from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction, record_event
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.runs import record_end, take_over
from sluice.processes.driver_processes import observe_process
from sluice.processes.process_identity import ProcessState


def end_if_vacated(ledger: Ledger, live: RunObservation, *, launched_by: str) -> bool:
    """End a live run when its process is gone, or cannot be observed and its lease is over. Returns whether it ended.

    Parameters
    ----------
    launched_by: who takes its place, for the event.
    """
    seen = _observed(live)
    if seen is ProcessState.GONE:
        reason = "its driver is gone"
        event = _event(live, EventAction.CLOSE_RUN, "driver_vanished", reason, launched_by=launched_by)
        record_event(ledger, event)
        record_end(ledger, live.run_id, state=RunState.LOST, exit_code=None, reason=reason)
    elif seen is ProcessState.UNKNOWN:
        reason = "its driver fell silent, and its lease is over"
        event = _event(live, EventAction.TAKE_OVER, "lease_over", reason, launched_by=launched_by)
        return not take_over(ledger, live.run_id, reason=reason, event=event).is_live
    return seen is ProcessState.GONE


def is_vacated(live: RunObservation) -> bool:
    """Whether the process of a live run is gone, so that `end_if_vacated` ends it. Nothing is changed."""
    return _observed(live) is ProcessState.GONE


def _observed(live: RunObservation) -> ProcessState:
    return ProcessState.UNKNOWN if live.process is None else observe_process(live.process)


def _event(live: RunObservation, action: EventAction, reason: str, text: str, *, launched_by: str) -> Event:
    return Event(
        name=live.stream,
        actor=Actor.component(launched_by),
        action=action,
        reason=reason,
        explanation=f"Run {live.run_id} ends in favour of the next one: {text}.",
        run_id=live.run_id,
        evidence={"token": live.token, "heartbeat_at": live.heartbeat_at},
        occasion=f"{live.run_id}, {reason}",
    )
