"""Decides what to do about the live run of a stream, by its process, its heartbeat and its lease. Pure.

The table of all rules is in `sluice.supervision.decide_supervision`.
"""

from __future__ import annotations

from datetime import datetime

from sluice.ledger.run_values import DesiredState, RunObservation, WatchedRun
from sluice.messages.durations import in_words
from sluice.processes.process_identity import ProcessState
from sluice.supervision.stream_observation import StreamObservation
from sluice.supervision.supervision_decision import (
    SupervisionAction,
    SupervisionDecision,
    SupervisionReason,
    decision,
)
from sluice.supervision.time_limits import HEARD_WITHIN, LAUNCHED_WITHIN, LOOK_AGAIN_AFTER, STOPPED_WITHIN


def calls_for_supervisor(watched: WatchedRun) -> bool:
    """Whether a watched run shows anything that its supervisor must look at; a trigger asks this after each poll.

    True when the run ended, and also when it looks odd: not bound to a process in time, silent for too long. An odd run
    may stay odd for a while, so a trigger fires for it only after the decision's `delay`; for an ended one at once.
    """
    run, now = watched.run, watched.observed_at
    if not run.is_live:
        return True
    if run.process is None and run.heartbeat_at is None:
        return now - run.launched_at > LAUNCHED_WITHIN
    return not _is_heard(run, now) or run.desired_state is DesiredState.STOPPED


def decide_about_live_run(seen: StreamObservation, run: RunObservation, now: datetime) -> SupervisionDecision:
    """Decide about a live run, whatever its declaration.

    Parameters
    ----------
    run: the newest run of the stream; it is live.
    now: the database's time.
    """
    if seen.left_exit is not None:
        text = (
            f"The driver ended ({seen.left_exit.reason.rstrip('.')}) and could not record that in the ledger; "
            "its parent or its cluster reports it."
        )
        return decision(SupervisionAction.CLOSE, SupervisionReason.EXIT_LEFT_BEHIND, text)
    if seen.process is None:
        return _decide_about_launch(run, now)
    if seen.process is ProcessState.GONE:
        text = f"The process of run {run.run_id} is gone without a recorded end."
        return decision(SupervisionAction.CLOSE, SupervisionReason.DRIVER_GONE, text)
    if seen.is_lease_over and not _is_heard(run, now) and not _is_queued(seen, run):
        return _decide_about_lease(seen.process, run, now)
    if seen.desired.effective_state is DesiredState.STOPPED or run.end_asked_at is not None:
        return _decide_about_stop(seen, run, now)
    return _decide_about_driver(seen, run, now)


def _decide_about_launch(run: RunObservation, now: datetime) -> SupervisionDecision:
    age = now - run.launched_at
    if age <= LAUNCHED_WITHIN:
        text = f"Run {run.run_id} was admitted {in_words(age)} ago for {run.launched_by}; its driver is being started."
        return decision(SupervisionAction.WAIT, SupervisionReason.BEING_LAUNCHED, text, LAUNCHED_WITHIN - age)
    text = f"Run {run.run_id} was admitted {in_words(age)} ago and no driver was started for it."
    return decision(SupervisionAction.CLOSE, SupervisionReason.NEVER_LAUNCHED, text)


def _decide_about_lease(process: ProcessState, run: RunObservation, now: datetime) -> SupervisionDecision:
    text = f"Run {run.run_id} has been silent for {in_words(now - _last_sign(run))}, and its lease has expired"
    if process is ProcessState.UNKNOWN:
        unknown = f"{text}; whether its driver lives is unknown, and what it still publishes will be refused."
        return decision(SupervisionAction.TAKE_OVER, SupervisionReason.LEASE_OVER, unknown)
    return decision(SupervisionAction.STOP, SupervisionReason.LEASE_OVER, f"{text}; its driver is ended.")


def _decide_about_stop(seen: StreamObservation, run: RunObservation, now: datetime) -> SupervisionDecision:
    age = now - (run.end_asked_at or seen.desired.changed_at or run.launched_at)
    if age <= STOPPED_WITHIN:
        text = f"Run {run.run_id} was asked to stop {in_words(age)} ago and finishes its batch."
        return decision(SupervisionAction.WAIT, SupervisionReason.STOPPING, text, STOPPED_WITHIN - age)
    if seen.process is ProcessState.UNKNOWN:
        unknown = (
            f"Run {run.run_id} was asked to stop {in_words(age)} ago and did not, and whether its driver lives is "
            "unknown: it loses its lease. It ends itself then, and what it still publishes will be refused."
        )
        return decision(SupervisionAction.REVOKE, SupervisionReason.STOP_OVERDUE, unknown)
    text = f"Run {run.run_id} was asked to stop {in_words(age)} ago and did not; its driver is ended."
    return decision(SupervisionAction.STOP, SupervisionReason.STOP_OVERDUE, text)


def _decide_about_driver(seen: StreamObservation, run: RunObservation, now: datetime) -> SupervisionDecision:
    if _is_heard(run, now):
        if run.heartbeat_at is None:
            text = f"The driver of run {run.run_id} is alive and starts up."
            return decision(SupervisionAction.ADOPT, SupervisionReason.STARTING, text, LOOK_AGAIN_AFTER)
        text = f"The driver of run {run.run_id} was heard {in_words(now - run.heartbeat_at)} ago."
        return decision(SupervisionAction.ADOPT, SupervisionReason.HEARTBEAT_FRESH, text, LOOK_AGAIN_AFTER)
    if _is_queued(seen, run):
        waiting = in_words(now - run.launched_at)
        text = f"The cluster has had no place for the driver of run {run.run_id} for {waiting}."
        return decision(SupervisionAction.WAIT, SupervisionReason.AWAITS_CLUSTER, text, LOOK_AGAIN_AFTER)
    silence = f"It has been silent for {in_words(now - _last_sign(run))}."
    if seen.process is ProcessState.UNKNOWN:
        return _unknown(run, silence)
    text = f"The driver of run {run.run_id} is alive. {silence} See `sluice stream logs {run.stream}`."
    return decision(SupervisionAction.ADOPT, SupervisionReason.HEARTBEAT_OVERDUE, text, LOOK_AGAIN_AFTER)


def _unknown(run: RunObservation, circumstance: str) -> SupervisionDecision:
    host = run.process.host if run.process is not None else "an unknown host"
    text = (
        f"Whether the driver of run {run.run_id} on {host} is alive cannot be observed from this host. {circumstance} "
        f"No second driver is started; look on {host}."
    )
    return decision(SupervisionAction.WAIT, SupervisionReason.DRIVER_UNKNOWN, text, LOOK_AGAIN_AFTER)


def _last_sign(run: RunObservation) -> datetime:
    return run.heartbeat_at or run.launched_at


def _is_heard(run: RunObservation, now: datetime) -> bool:
    """A driver without a heartbeat yet is given the time of its launch on top."""
    patience = HEARD_WITHIN if run.heartbeat_at is not None else HEARD_WITHIN + LAUNCHED_WITHIN
    return now - _last_sign(run) <= patience


def _is_queued(seen: StreamObservation, run: RunObservation) -> bool:
    """Whether a cluster has not started the driver. YARN also says so of one that beats and has no session yet."""
    return seen.process is ProcessState.QUEUED and run.heartbeat_at is None
