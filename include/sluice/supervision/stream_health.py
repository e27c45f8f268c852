"""The health of a stream: a state and a sentence, derived from an observation. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from sluice.failure_reasons import Failure, describe_failure, next_step
from sluice.failures.classification import failure_of_run
from sluice.ledger.airflow_owner import DagObservation
from sluice.ledger.desired_states import SuspensionCause
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.processes.process_identity import ProcessState
from sluice.supervision.progress_decision import ProgressJudgement, ProgressState
from sluice.supervision.stream_observation import StreamObservation
from sluice.supervision.supervision_decision import SupervisionDecision, SupervisionReason
from sluice.supervision.time_limits import HEARD_WITHIN


class StreamState(StrEnum):
    """The state of a stream, for a person. FINISHED and FAILED apply to incremental streams only.

    UNDECLARED, BROKEN and MODE_CHANGED are those of a run that fits no declaration (`undeclared_streams`).
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
    UNDECLARED = "undeclared"
    BROKEN = "declaration broken"
    MODE_CHANGED = "mode changed"


_STATES = {
    SupervisionReason.NEVER_STARTED: StreamState.NEVER_STARTED,
    SupervisionReason.WANTED_AGAIN: StreamState.TO_BE_STARTED,
    SupervisionReason.BACKING_OFF: StreamState.RESTARTING,
    SupervisionReason.RESTART_DUE: StreamState.RESTARTING,
    SupervisionReason.RESTART_BUDGET_SPENT: StreamState.GIVEN_UP,
    SupervisionReason.RESTART_WOULD_NOT_HELP: StreamState.GIVEN_UP,
    SupervisionReason.BREAKER_OPEN: StreamState.GIVEN_UP,
    SupervisionReason.STOPPED_AS_REQUESTED: StreamState.STOPPED,
    SupervisionReason.BEING_LAUNCHED: StreamState.STARTING,
    SupervisionReason.NEVER_LAUNCHED: StreamState.DRIVER_GONE,
    SupervisionReason.EXIT_LEFT_BEHIND: StreamState.DRIVER_GONE,
    SupervisionReason.DRIVER_GONE: StreamState.DRIVER_GONE,
    SupervisionReason.STOPPING: StreamState.STOPPING,
    SupervisionReason.STOP_OVERDUE: StreamState.STOPPING,
    SupervisionReason.STARTING: StreamState.STARTING,
    SupervisionReason.HEARTBEAT_FRESH: StreamState.RUNNING,
    SupervisionReason.HEARTBEAT_OVERDUE: StreamState.SILENT,
    SupervisionReason.AWAITS_CLUSTER: StreamState.QUEUED,
    SupervisionReason.DRIVER_UNKNOWN: StreamState.UNKNOWN,
    SupervisionReason.LEASE_OVER: StreamState.SILENT,
    SupervisionReason.DECLARATION_CHANGED: StreamState.RESTARTING,
    SupervisionReason.CHANGE_REFUSED: StreamState.CHANGE_REFUSED,
    SupervisionReason.FILES_DIFFER: StreamState.FILES_DIFFER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHealth:
    """The health of a stream. It is healthy when it has its desired state, or is on the way there.

    failure: the newest one that still counts; unset without one.
    """

    state: StreamState
    is_healthy: bool
    explanation: str
    failure: Failure | None = None


CRASH_LOOP_FAILURES = 3
"""How many failures in a row make a restarting stream crash looping: one or two may be bad luck."""

_BY_PROGRESS = {
    ProgressState.IDLE: StreamState.IDLE,
    ProgressState.LATE: StreamState.LATE,
    ProgressState.STALLED: StreamState.STALLED,
    ProgressState.UNOBSERVED: StreamState.SOURCES_UNOBSERVED,
}


def health_of_continuous(decision: SupervisionDecision, progress: ProgressJudgement | None = None) -> StreamHealth:
    """The health of a continuous stream, from the decision of its supervisor and, while it runs, from its progress.

    Parameters
    ----------
    progress: of its run; without one its heartbeat decides.
    """
    state = _STATES[decision.reason]
    if state is StreamState.RESTARTING and decision.failures >= CRASH_LOOP_FAILURES:
        state = StreamState.CRASH_LOOPING
    explanation, is_healthy = decision.explanation, decision.is_healthy
    if state is StreamState.RUNNING and progress is not None:
        state = _BY_PROGRESS.get(progress.state, state)
        explanation, is_healthy = f"{explanation} {progress.explanation}", progress.is_healthy
    return StreamHealth(state=state, is_healthy=is_healthy, explanation=explanation, failure=decision.failure)


def with_its_dag(health: StreamHealth, seen: StreamObservation, dag: DagObservation | None) -> StreamHealth:
    """The health of a continuous stream, when its DAG is looked at as well.

    A stream that a paused DAG stops is unhealthy while the newest run of that DAG has failed: a person may have
    unpaused the DAG while the ledger was away, and Airflow have paused it again for the failure.

    Parameters
    ----------
    dag: unset when Airflow does not know it.
    """
    is_doubtful = (
        health.state is StreamState.STOPPED
        and seen.desired.suspension is SuspensionCause.PAUSED
        and seen.desired.desired_state is DesiredState.RUNNING
        and dag is not None
        and dag.is_paused
        and dag.has_failed
    )
    if not is_doubtful:
        return health
    text = (
        f"{health.explanation} The newest run of the DAG has failed since, for which Airflow pauses it, too. Unpause "
        f"the DAG, or confirm the stop: `sluice stream stop {seen.stream}`."
    )
    return replace(health, is_healthy=False, explanation=text)


def health_of_increment(seen: StreamObservation, *, now: datetime) -> StreamHealth:
    """The health of an incremental stream. Between two runs its newest run decides.

    Parameters
    ----------
    now: the database's time.
    """
    run = seen.newest_run
    if run is not None and run.is_live:
        return _health_of_live_increment(seen, run, now)
    if seen.desired.effective_state is DesiredState.STOPPED:
        text = f"It is stopped, as requested{seen.desired.why_stopped}."
        return StreamHealth(state=StreamState.STOPPED, is_healthy=True, explanation=text)
    if run is None:
        text = "It has never run; it runs by its schedule."
        return StreamHealth(state=StreamState.NEVER_STARTED, is_healthy=True, explanation=text)
    reason = (run.reason or "without a reason").rstrip(".")
    if run.state is RunState.FINISHED:
        text = f"Its newest run ended: {reason}."
        return StreamHealth(state=StreamState.FINISHED, is_healthy=True, explanation=text)
    failure = failure_of_run(run)
    step = next_step(failure.reason, stream=run.stream)
    text = (
        f"Its newest run ended: {reason}. That is {describe_failure(failure)}. {step} Then clear its task in Airflow."
    )
    return StreamHealth(state=StreamState.FAILED, is_healthy=False, explanation=text, failure=failure)


def _health_of_live_increment(seen: StreamObservation, run: RunObservation, now: datetime) -> StreamHealth:
    if seen.process is ProcessState.GONE:
        text = f"The process of run {run.run_id} is gone; the next run takes its place."
        return StreamHealth(state=StreamState.DRIVER_GONE, is_healthy=False, explanation=text)
    silence = now - (run.heartbeat_at or run.launched_at)
    if silence <= HEARD_WITHIN:
        text = f"Run {run.run_id} was heard {silence.total_seconds():.0f} s ago."
        return StreamHealth(state=StreamState.RUNNING, is_healthy=True, explanation=text)
    state = StreamState.SILENT if seen.process is ProcessState.ALIVE else StreamState.UNKNOWN
    text = f"Run {run.run_id} has been silent for {silence.total_seconds():.0f} s."
    return StreamHealth(state=state, is_healthy=False, explanation=text)
