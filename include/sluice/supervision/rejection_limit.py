"""Stops a stream that has rejected more rows than `max_rejected`, where its declaration says so."""

from __future__ import annotations

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.events import Actor, Event, EventAction
from sluice.ledger.run_values import DesiredState
from sluice.ledger.stream_records import StreamRecords
from sluice.supervision.row_verdicts import STOPPED_BY_LIMIT, is_stopped_by_limit
from sluice.supervision.stream_states import StreamState, StreamVerdict
from sluice.supervision.supervisor import Supervisor


def stop_beyond_limit(
    supervisor: Supervisor, wanted: LoadedStream, verdict: StreamVerdict, seen: StreamRecords
) -> None:
    """Ask that a stream stops which has rejected too many rows. What a person has asked since it was seen stays.

    The stream stays stopped, and unhealthy, until a person starts it.
    """
    limit = wanted.declaration.supervision.max_rejected
    is_beyond = verdict.state is StreamState.MANY_REJECTED and limit is not None and limit.action == "stop"
    if not is_beyond or is_stopped_by_limit(seen.desired):
        return
    event = Event(
        name=wanted.name,
        actor=Actor.component(supervisor.launched_by),
        action=EventAction.STOP,
        reason=str(StreamState.MANY_REJECTED).replace(" ", "_"),
        explanation=verdict.explanation,
    )
    set_desired_state(
        supervisor.ledger,
        wanted.name,
        DesiredState.STOPPED,
        requested_by=STOPPED_BY_LIMIT,
        decided_on=seen.desired,
        event=event,
    )
