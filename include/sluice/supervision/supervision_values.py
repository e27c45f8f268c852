"""Supervision as values: a stream as observed, the verdict on it, the decision, and its events in the ledger. Pure.

`supervise` saves a decision when it acts on it, so a pass that changes nothing leaves no event. Two decisions change
nothing in the ledger themselves and are saved all the same, once on each occasion: that a stream is given up, and that
another task than the one that launched a run has adopted it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from sluice.failure_reasons import Failure
from sluice.ledger.events import REQUESTED, Actor, Event, EventAction
from sluice.ledger.run_values import DriverExit
from sluice.ledger.stream_records import StreamRecords
from sluice.processes.process_identity import ProcessState


class SupervisionAction(StrEnum):
    """What to do. After LAUNCH, ADOPT and WAIT there is a run to watch; after CLOSE, TAKE_OVER, REVOKE, REPLACE and
    STOP the stream is observed again at once."""

    LAUNCH = "launch"
    ADOPT = "adopt"
    WAIT = "wait"
    CLOSE = "close"
    TAKE_OVER = "take_over"
    REVOKE = "revoke"
    REPLACE = "replace"
    STOP = "stop"
    RESTART_LATER = "restart_later"
    GIVE_UP = "give_up"
    FINISH = "finish"


_ACTIONS: Mapping[SupervisionAction, EventAction] = {
    SupervisionAction.LAUNCH: EventAction.LAUNCH,
    SupervisionAction.ADOPT: EventAction.ADOPT,
    SupervisionAction.CLOSE: EventAction.CLOSE_RUN,
    SupervisionAction.TAKE_OVER: EventAction.TAKE_OVER,
    SupervisionAction.REVOKE: EventAction.REVOKE,
    SupervisionAction.REPLACE: EventAction.REPLACE,
    SupervisionAction.STOP: EventAction.END_DRIVER,
    SupervisionAction.GIVE_UP: EventAction.GIVE_UP,
}
"""The decisions that are saved. WAIT, RESTART_LATER and FINISH change nothing."""


class StreamState(StrEnum):
    """The state of a stream, for a person. FINISHED and FAILED apply to incremental streams only. ALL_REJECTED: it does
    well, but no row of its newest batch with rows was good, or none of a file. MANY_REJECTED: it
    does well, and has rejected more than its limit. HELD: a batch waits for a person, and all behind it.

    UNDECLARED, BROKEN and MODE_CHANGED are those of a run that fits no declaration (`find_orphaned_runs`).
    PAUSE_UNCLEAR: it runs although its DAG is paused, and no person is known to have paused that.
    NOT_RECONCILED is no look's own: a pass of the reconciler failed for the stream, or had no time for it.
    """

    NEVER_STARTED = "never started"
    TO_BE_STARTED = "to be started"
    STARTING = "starting"
    QUEUED = "queued"
    RUNNING = "running"
    IDLE = "idle"
    LATE = "late"
    STALLED = "stalled"
    SOURCES_UNOBSERVED = "sources unobserved"
    CRASH_LOOPING = "crash looping"
    SILENT = "silent"
    UNKNOWN = "unknown"
    CHANGE_REFUSED = "change refused"
    FILES_DIFFER = "files differ"
    STOPPING = "stopping"
    STOPPED = "stopped"
    RESTARTING = "restarting"
    GIVEN_UP = "given up"
    DRIVER_GONE = "driver gone"
    FINISHED = "finished"
    FAILED = "failed"
    ALL_REJECTED = "all rejected"
    MANY_REJECTED = "many rejected"
    HELD = "held"
    UNDECLARED = "undeclared"
    BROKEN = "declaration broken"
    MODE_CHANGED = "mode changed"
    PAUSE_UNCLEAR = "pause unclear"
    NOT_RECONCILED = "not reconciled"


DOES_WELL = frozenset({StreamState.RUNNING, StreamState.IDLE, StreamState.FINISHED})
"""The states of a stream that does well. What becomes of its rows may still be wrong."""

SETTLED_BY_START = frozenset({StreamState.ALL_REJECTED, StreamState.MANY_REJECTED})
"""What a person settles by asking for a start, also of a stream that runs or waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamVerdict:
    """The state of a stream. It is healthy when it has its desired state, or is on the way there.

    explanation: the sentence for a person.
    failure: the newest one that still counts; unset without one. next_step: what to do about it; empty without one.
    occasion: what it is about, where the same state may come again for another cause (`StreamTrouble`).
    """

    state: StreamState
    is_healthy: bool
    explanation: str
    failure: Failure | None = None
    next_step: str = ""
    occasion: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamObservation(StreamRecords):
    """The records of a stream, and what was seen of the driver of its newest run.

    process: whether it is alive; unset when the run has ended or has no process yet.
    left_exit: how it ended, when its parent could not record that in the ledger and left a note.
    """

    process: ProcessState | None = None
    left_exit: DriverExit | None = None


class SupervisionReason(StrEnum):
    """Why. The values appear in logs, in Airflow's task state and in the CLI's JSON; two are older than their names."""

    NEVER_STARTED = "never_started"
    WANTED_AGAIN = "wanted_again"
    BACKING_OFF = "backing_off"
    RESTART_DUE = "restart_due"
    HOST_BUSY = "host_busy"
    RESTART_BUDGET_SPENT = "restart_budget_spent"
    RESTART_WOULD_NOT_HELP = "restart_would_not_help"
    BREAKER_OPEN = "breaker_open"
    STOPPED_AS_REQUESTED = "stopped_as_requested"
    BEING_LAUNCHED = "being_launched"
    NEVER_LAUNCHED = "never_launched"
    EXIT_LEFT_BEHIND = "exit_left_behind"
    DRIVER_GONE = "driver_vanished"
    STOPPING = "stopping"
    STOP_OVERDUE = "stop_overdue"
    STARTING = "starting"
    HEARTBEAT_FRESH = "heartbeat_fresh"
    HEARTBEAT_OVERDUE = "heartbeat_overdue"
    AWAITS_CLUSTER = "awaits_cluster"
    DRIVER_UNKNOWN = "driver_unknown"
    LEASE_OVER = "lease_over"
    DECLARATION_CHANGED = "declaration_changed"
    CHANGE_REFUSED = "change_refused"
    FILES_DIFFER = "files_differ"


HEALTHY_REASONS = frozenset(
    {
        SupervisionReason.BEING_LAUNCHED,
        SupervisionReason.STARTING,
        SupervisionReason.HEARTBEAT_FRESH,
        SupervisionReason.STOPPING,
        SupervisionReason.STOPPED_AS_REQUESTED,
        SupervisionReason.DECLARATION_CHANGED,
    }
)
"""With one of these the stream has its desired state, or is on the way there; `sluice stream status` exits with 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionDecision:
    """What to do about one stream now, and why. `sluice.supervision.supervisor` carries it out.

    explanation: the sentence for a person, with the next step where one is needed.
    delay: for RESTART_LATER the time until the launch is due; for LAUNCH, ADOPT and WAIT the time after which the
        stream is observed again when no event calls for it earlier; unset for the others.
    failure: the newest failure that still counts, for RESTART_LATER, GIVE_UP and a LAUNCH that follows one.
    failures: how many of them there were in a row.
    crashes: as `RestartHistory`: how many failures make the stream crash looping; 0 when it is not.
    occasion: for GIVE_UP the run that it is about: a stream may be given up again, for another one. For FILES_DIFFER
        when a person last asked something of the stream, which starts the count again.
    """

    action: SupervisionAction
    reason: SupervisionReason
    explanation: str
    delay: timedelta | None = None
    failure: Failure | None = None
    failures: int = 0
    crashes: int = 0
    occasion: str = ""

    @property
    def is_healthy(self) -> bool:
        """Whether the stream has its desired state."""
        return self.reason in HEALTHY_REASONS


def decision(
    action: SupervisionAction, reason: SupervisionReason, explanation: str, delay: timedelta | None = None
) -> SupervisionDecision:
    """A decision without a failure."""
    return SupervisionDecision(action=action, reason=reason, explanation=explanation, delay=delay)


def command_event(
    action: EventAction,
    stream: str,
    *,
    by: str,
    explanation: str = "",
    run_id: str | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> Event:
    """The command of a person as an event.

    Parameters
    ----------
    by: the person, as the ledger names them: `command line: ann@host`, `airflow: stream_control, ann`.
    """
    return Event(
        name=stream,
        actor=Actor.person(by),
        action=action,
        reason=REQUESTED,
        explanation=explanation,
        run_id=run_id,
        evidence=evidence or {},
    )


def decision_event(decision: SupervisionDecision, seen: StreamObservation, *, by: str) -> Event:
    """A decision of supervision as an event.

    Parameters
    ----------
    seen: the observation on which it was made.
    by: the task or command that supervises.
    """
    return Event(
        name=seen.stream,
        actor=Actor.component(by),
        action=_ACTIONS[decision.action],
        reason=str(decision.reason),
        explanation=decision.explanation,
        run_id=None if seen.newest_run is None else seen.newest_run.run_id,
        evidence=_evidence(decision, seen),
        occasion=_occasion(decision, seen, by=by),
    )


def _occasion(decision: SupervisionDecision, seen: StreamObservation, *, by: str) -> str | None:
    """What may be decided on several passes and is saved once; none where the ledger's change itself happens once."""
    run_id = "" if seen.newest_run is None else seen.newest_run.run_id
    match decision.action:
        case SupervisionAction.ADOPT:
            return f"{run_id}, {by}"
        case SupervisionAction.CLOSE | SupervisionAction.STOP:
            return f"{run_id}, {decision.reason}"
        case SupervisionAction.GIVE_UP:
            return f"{run_id}, {decision.reason}, {seen.desired.changed_at}"
        case _:
            return None


def _evidence(decision: SupervisionDecision, seen: StreamObservation) -> dict[str, Any]:
    """The facts of the observation, without those that are unset."""
    run, lease, failure = seen.newest_run, seen.lease, decision.failure
    facts = {
        "desired_state": seen.desired.effective_state,
        "suspension": seen.desired.suspension,
        "run_state": None if run is None else run.state,
        "token": None if run is None else run.token,
        "heartbeat_at": None if run is None else run.heartbeat_at,
        "process": seen.process,
        "lease_expires_at": None if lease is None else lease.expires_at,
        "exit_code": None if seen.left_exit is None else seen.left_exit.exit_code,
        "failure_class": None if failure is None else failure.failure_class,
        "failure_reason": None if failure is None else str(failure.reason),
        "failures": decision.failures or None,
        "newest_batch": None if seen.current_batch is None else str(seen.current_batch.key),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}
