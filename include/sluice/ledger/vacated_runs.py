"""Ends a live run whose process is gone, for callers that may take its place without a supervisor, and finds drivers
that live on behind the end of their runs."""

from __future__ import annotations

from datetime import datetime, timedelta

from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import Actor, Event, EventAction, record_event
from sluice.ledger.leases import LEASE_SECONDS
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.runs import recent_runs, record_end, take_over
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


_LOOKED_AT = 8
"""How many runs of a stream are looked at for a driver that lives on: more than one lease holds."""


def find_left_driver(ledger: Ledger, stream: str) -> RunObservation | None:
    """A run that others ended, and whose driver may still write: its process lives, or cannot be observed before its
    lease would be over. None otherwise."""
    lost = (run for run in recent_runs(ledger, stream, _LOOKED_AT) if run.state is RunState.LOST)
    now = database_time(ledger)
    return next((run for run in lost if _may_write(run, now)), None)


def _may_write(run: RunObservation, now: datetime) -> bool:
    seen = _observed(run)
    heard_at = run.heartbeat_at or run.launched_at
    is_in_lease = now - heard_at < timedelta(seconds=LEASE_SECONDS)
    return seen is ProcessState.ALIVE or (seen is ProcessState.UNKNOWN and is_in_lease)


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
