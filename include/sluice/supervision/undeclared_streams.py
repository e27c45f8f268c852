"""Ends a run whose stream is not declared any more, is broken, has another mode, or has rejected too many rows.

A driver reads its declaration once. When the file is deleted, renamed or given another mode, the old driver would run
for ever beside its successor, and no task looks after it. The ledger knows it all the same.
"""

from __future__ import annotations

from datetime import timedelta

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.events import Actor, Event, EventAction
from sluice.ledger.run_values import DesiredState, RunObservation
from sluice.ledger.runs import ask_to_end, find_run, newest_run
from sluice.ledger.stream_records import StreamRecords, read_stream
from sluice.supervision.decide_supervision import decide_about_live_run
from sluice.supervision.limits import STOP_GRACE_SECONDS, STOPPED_WITHIN
from sluice.supervision.orphaned_runs import OrphanedRun, OrphanReason
from sluice.supervision.row_verdicts import STOPPED_BY_LIMIT, is_stopped_by_limit
from sluice.supervision.supervision_values import StreamState, StreamVerdict, command_event
from sluice.supervision.supervisor import SupervisionResult, Supervisor, act_on, has_ended_within, observe

ENDED_AFTER = timedelta(seconds=60)
"""How long a declaration must be missing before its run is asked to end: a folder that is being replaced, as by a git
checkout, is complete again within seconds."""

_MOST_STEPS = 3
"""Looks of one call: a driver that does not stop is ended, its run closed, and observed once more."""


_BECAUSE = {
    OrphanReason.UNDECLARED: "no file declares its stream any more",
    OrphanReason.BROKEN: "the declaration of its stream is broken",
    OrphanReason.MODE_CHANGED: "its stream is declared with another mode now",
}
"""Why a run is asked to end."""


def look_after_orphan(supervisor: Supervisor, orphan: OrphanedRun, *, missing_for: timedelta) -> None:
    """Ask a run to end when that is due, and end its driver when it does not in time. Called each minute.

    A run whose driver is gone is closed, whatever the reason: no task does it.

    Parameters
    ----------
    missing_for: how long the run is known to fit no declaration.

    Raises
    ------
    LaunchError: when a driver survives SIGKILL.
    """
    if orphan.may_end and missing_for >= ENDED_AFTER:
        because = _BECAUSE[orphan.reason]
        ask_to_end(supervisor.ledger, orphan.run.run_id, because=because, event=_event(supervisor, orphan))
    _turn(supervisor, orphan.stream)


def _event(supervisor: Supervisor, orphan: OrphanedRun) -> Event:
    return Event(
        name=orphan.stream,
        actor=Actor.component(supervisor.launched_by),
        action=EventAction.END_RUN,
        reason=str(orphan.reason).replace(" ", "_"),
        explanation=orphan.explanation,
    )


def stop_known_run(supervisor: Supervisor, stream: str, *, requested_by: str) -> RunObservation | None:
    """Stop a stream that only the ledger knows, and wait for its driver; one that does not obey in time is ended.

    Returns
    -------
    Its newest run; none when it never ran.

    Raises
    ------
    LaunchError: when a driver survives SIGKILL.
    """
    event = command_event(EventAction.STOP, stream, by=requested_by)
    set_desired_state(supervisor.ledger, stream, DesiredState.STOPPED, requested_by=requested_by, event=event)
    run = newest_run(supervisor.ledger, stream)
    if run is None or not run.is_live:
        return run
    if not has_ended_within(supervisor.ledger, run.run_id, STOPPED_WITHIN.total_seconds()):
        _turn(supervisor, stream)
        has_ended_within(supervisor.ledger, run.run_id, STOP_GRACE_SECONDS)
    return find_run(supervisor.ledger, run.run_id)


def _turn(supervisor: Supervisor, stream: str) -> None:
    """Observe, decide and act on the live run of a stream, without its declaration."""
    for _ in range(_MOST_STEPS):
        seen = observe(read_stream(supervisor.ledger, stream), supervisor.launcher)
        if seen.newest_run is None or not seen.newest_run.is_live:
            return
        decided = decide_about_live_run(seen, seen.newest_run, seen.observed_at)
        if not act_on(supervisor, SupervisionResult(decision=decided, seen=seen, run=seen.newest_run)):
            return


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
