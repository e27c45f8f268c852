"""What to do about one continuous stream now.

| asked   | newest run | its process | and                          | action        | reason               |
|---------|------------|-------------|------------------------------|---------------|----------------------|
| running | none       |             |                              | LAUNCH        | NEVER_STARTED        |
| running | ended      |             | as asked, or count reset     | LAUNCH        | WANTED_AGAIN         |
| running | ended      |             | unasked, delay not over      | RESTART_LATER | BACKING_OFF          |
| running | ended      |             | unasked, delay over          | LAUNCH        | RESTART_DUE          |
| running | ended      |             | unasked, budget spent        | GIVE_UP       | RESTART_BUDGET_SPENT |
| running | ended      |             | the checkpoint cannot follow | GIVE_UP       | CHANGE_REFUSED       |
| running | ended      |             | unasked, would only repeat   | GIVE_UP       | RESTART_WOULD_NOT_HELP |
| running | ended      |             | unasked, breaker open        | GIVE_UP       | BREAKER_OPEN         |
| stopped | none, ended|             |                              | FINISH        | STOPPED_AS_REQUESTED    |
| any     | live       | none yet    | admitted a moment ago        | WAIT          | BEING_LAUNCHED       |
| any     | live       | none yet    | admitted long ago            | CLOSE         | NEVER_LAUNCHED       |
| any     | live       | any         | its parent, cluster tells how| CLOSE         | EXIT_LEFT_BEHIND     |
| any     | live       | gone        |                              | CLOSE         | DRIVER_GONE      |
| any     | live       | alive       | silent, its lease ran out    | STOP          | LEASE_OVER           |
| any     | live       | ?           | silent, its lease ran out    | TAKE_OVER     | LEASE_OVER           |
| stopped | live       | alive, ?    | asked a moment ago           | WAIT          | STOPPING             |
| stopped | live       | alive       | asked long ago               | STOP          | STOP_OVERDUE         |
| stopped | live       | ?           | asked long ago               | WAIT          | DRIVER_UNKNOWN       |
| running | live       | alive       | not heard yet                | ADOPT         | STARTING             |
| running | live       | alive, ?    | heard, declaration changed   | REPLACE       | DECLARATION_CHANGED  |
| running | live       | alive, ?    | heard, and it cannot follow  | ADOPT         | CHANGE_REFUSED       |
| running | live       | alive, ?    | heard lately                 | ADOPT         | HEARTBEAT_FRESH      |
| running | live       | alive       | silent for long              | ADOPT         | HEARTBEAT_OVERDUE    |
| running | live       | queued      | never heard, for long        | WAIT          | AWAITS_CLUSTER       |
| running | live       | ?           | silent for long              | WAIT          | DRIVER_UNKNOWN       |

`?` is unknown: never treated as dead. Only when its lease has run out may another run take its place: the driver then
publishes nothing more by its own clock, and what it might still publish meets a higher token. A driver that is queued
by its cluster counts as alive, and keeps its place however long it waits for one. "stopped" is said of a
stream that is to be stopped, and of a run that was asked to end so that another one takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from sluice.checkpoints.compatibility import fingerprint_of, refused_changes, ways_out
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.failure_reasons import Failure, describe_failure, given_up_steps
from sluice.ledger.records.desired_state import SuspensionCause
from sluice.ledger.records.run import DesiredState, RunObservation, WatchedRun
from sluice.processes.process_identity import ProcessState
from sluice.supervision.restart_history import RestartHistory, RestartVerdict, judge_restart, wait_after
from sluice.supervision.restart_policy import tries_of
from sluice.supervision.stream_observation import StreamObservation

LAUNCHED_WITHIN = timedelta(seconds=90)
"""From admission to a recorded process. The driver's parent tries for 30 seconds to record it, and no driver begins
without: a run older than this without a process has no driver, and closing it makes sure that none begins."""

HEARD_WITHIN = timedelta(seconds=60)
"""How old a heartbeat may be. Drivers beat every few seconds; a long pause of a JVM on a full machine is shorter."""

STOPPED_WITHIN = timedelta(seconds=120)
"""From the request to the end of the driver, which finishes its batch first."""

LOOK_AGAIN_AFTER = timedelta(seconds=30)
"""How soon a stream is looked at again when nothing calls for it earlier."""


class SupervisionAction(StrEnum):
    """What to do. After LAUNCH, ADOPT and WAIT there is a run to watch; after CLOSE, TAKE_OVER, REPLACE and STOP, look
    again at once."""

    LAUNCH = "launch"
    ADOPT = "adopt"
    WAIT = "wait"
    CLOSE = "close"
    TAKE_OVER = "take_over"
    REPLACE = "replace"
    STOP = "stop"
    RESTART_LATER = "restart_later"
    GIVE_UP = "give_up"
    FINISH = "finish"


class SupervisionReason(StrEnum):
    """Why. The same word stands in logs, in the CLI's answers and in tests."""

    NEVER_STARTED = "never_started"
    WANTED_AGAIN = "wanted_again"
    BACKING_OFF = "backing_off"
    RESTART_DUE = "restart_due"
    RESTART_BUDGET_SPENT = "restart_budget_spent"
    RESTART_WOULD_NOT_HELP = "restart_would_not_help"
    BREAKER_OPEN = "breaker_open"
    STOPPED_AS_REQUESTED = "stopped_as_wished"
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
"""With one of these the stream is what was asked of it, or on the way there; `sluice stream status` ends with 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionDecision:
    """What to do about one stream now, and why. Carrying it out is the caller's work.

    explanation: the sentence for a person, with the next step where one is needed.
    delay: for RESTART_LATER how long until the launch is due; for LAUNCH, ADOPT and WAIT after how long to look again
        when nothing calls earlier; unset for the others.
    failure: the newest failure that still counts, for RESTART_LATER, GIVE_UP and a LAUNCH that follows one; failures:
        how many of them there were in a row.
    """

    action: SupervisionAction
    reason: SupervisionReason
    explanation: str
    delay: timedelta | None = None
    failure: Failure | None = None
    failures: int = 0

    @property
    def is_healthy(self) -> bool:
        """Whether the stream is what was asked of it."""
        return self.reason in HEALTHY_REASONS


def decide_supervision(
    *, wanted: StreamDeclaration, digest: str, seen: StreamObservation, history: RestartHistory, now: datetime
) -> SupervisionDecision:
    """Compare the wanted stream with the one seen; the table above is the whole rule.

    Parameters
    ----------
    wanted: the declaration as it is now. digest: its digest, which a run carries of the declaration it was given.
    seen: the stream as it was observed.
    history: the failures that still count.
    now: the database's time.
    """
    run = seen.newest_run
    refused = refused_changes(seen.fingerprint, fingerprint_of(wanted))
    if run is not None and run.is_live:
        decided = _decide_about_run(seen, run, now)
        is_changed = run.declaration_digest != digest and decided.reason is SupervisionReason.HEARTBEAT_FRESH
        return _decide_about_change(run, refused) if is_changed else decided
    if seen.desired.effective_state is DesiredState.STOPPED:
        return _decision(SupervisionAction.FINISH, SupervisionReason.STOPPED_AS_REQUESTED, _stopped_text(seen))
    if refused:
        return _decision(SupervisionAction.GIVE_UP, SupervisionReason.CHANGE_REFUSED, _refusal(wanted.stream, refused))
    return _decide_about_start(wanted, run, history, now)


def calls_for_supervisor(watched: WatchedRun) -> bool:
    """Whether a watched run shows anything that its supervisor should look at; what a trigger asks after each poll.

    True when the run ended, and also when it looks odd: not bound to a process in time, silent for too long. An odd run
    may stay odd for a while, so a trigger answers to it only after the decision's `delay`; to an ended one at once.
    """
    run, now = watched.run, watched.observed_at
    if not run.is_live:
        return True
    if run.process is None and run.heartbeat_at is None:
        return now - run.launched_at > LAUNCHED_WITHIN
    return not _is_heard(run, now) or run.desired_state is DesiredState.STOPPED


def _decide_about_run(seen: StreamObservation, run: RunObservation, now: datetime) -> SupervisionDecision:
    if seen.left_exit is not None:
        text = (
            f"The driver ended ({seen.left_exit.reason.rstrip('.')}) and could not tell the ledger; "
            "its parent or its cluster tells it now."
        )
        return _decision(SupervisionAction.CLOSE, SupervisionReason.EXIT_LEFT_BEHIND, text)
    if seen.process is None:
        return _decide_about_launch(run, now)
    if seen.process is ProcessState.GONE:
        text = f"The process of run {run.run_id} is gone and nobody recorded its end."
        return _decision(SupervisionAction.CLOSE, SupervisionReason.DRIVER_GONE, text)
    if seen.is_lease_over and not _is_heard(run, now) and not _is_queued(seen, run):
        return _decide_about_lease(seen.process, run, now)
    if seen.desired.effective_state is DesiredState.STOPPED or run.end_asked_at is not None:
        return _decide_about_stop(seen, run, now)
    return _decide_about_driver(seen, run, now)


def _decide_about_lease(process: ProcessState, run: RunObservation, now: datetime) -> SupervisionDecision:
    text = f"Run {run.run_id} has been silent for {_seconds(now - _last_sign(run))}, and its lease has run out"
    if process is ProcessState.UNKNOWN:
        told = f"{text}; nobody can tell whether its driver lives, and what it still publishes will be refused."
        return _decision(SupervisionAction.TAKE_OVER, SupervisionReason.LEASE_OVER, told)
    return _decision(SupervisionAction.STOP, SupervisionReason.LEASE_OVER, f"{text}; its driver is ended.")


def _decide_about_change(run: RunObservation, refused: tuple[str, ...]) -> SupervisionDecision:
    if refused:
        text = f"Run {run.run_id} goes on as it was declared before. {_refusal(run.stream, refused)}"
        return _decision(SupervisionAction.ADOPT, SupervisionReason.CHANGE_REFUSED, text, LOOK_AGAIN_AFTER)
    text = f"The declaration has changed since run {run.run_id} was started: it ends after its batch and is replaced."
    return _decision(SupervisionAction.REPLACE, SupervisionReason.DECLARATION_CHANGED, text)


def _refusal(stream: str, refused: tuple[str, ...]) -> str:
    return (
        f"The checkpoint of {stream} cannot follow a change of its declaration: {'; '.join(refused)}. "
        f"{ways_out(stream)}"
    )


def _decide_about_launch(run: RunObservation, now: datetime) -> SupervisionDecision:
    age = now - run.launched_at
    if age <= LAUNCHED_WITHIN:
        text = f"Run {run.run_id} was admitted {_seconds(age)} ago for {run.launched_by}; its driver is being started."
        return _decision(SupervisionAction.WAIT, SupervisionReason.BEING_LAUNCHED, text, LAUNCHED_WITHIN - age)
    text = f"Run {run.run_id} was admitted {_seconds(age)} ago and no driver was started for it."
    return _decision(SupervisionAction.CLOSE, SupervisionReason.NEVER_LAUNCHED, text)


def _decide_about_stop(seen: StreamObservation, run: RunObservation, now: datetime) -> SupervisionDecision:
    age = now - (run.end_asked_at or seen.desired.changed_at or run.launched_at)
    if age <= STOPPED_WITHIN:
        text = f"Run {run.run_id} was asked to stop {_seconds(age)} ago and finishes its batch."
        return _decision(SupervisionAction.WAIT, SupervisionReason.STOPPING, text, STOPPED_WITHIN - age)
    if seen.process is ProcessState.UNKNOWN:
        return _unknown(run, f"It was asked to stop {_seconds(age)} ago.")
    text = f"Run {run.run_id} was asked to stop {_seconds(age)} ago and did not; its driver is ended."
    return _decision(SupervisionAction.STOP, SupervisionReason.STOP_OVERDUE, text)


def _decide_about_driver(seen: StreamObservation, run: RunObservation, now: datetime) -> SupervisionDecision:
    if _is_heard(run, now):
        if run.heartbeat_at is None:
            text = f"The driver of run {run.run_id} lives and starts up."
            return _decision(SupervisionAction.ADOPT, SupervisionReason.STARTING, text, LOOK_AGAIN_AFTER)
        text = f"The driver of run {run.run_id} was heard {_seconds(now - run.heartbeat_at)} ago."
        return _decision(SupervisionAction.ADOPT, SupervisionReason.HEARTBEAT_FRESH, text, LOOK_AGAIN_AFTER)
    if _is_queued(seen, run):
        text = f"The cluster has had no place for the driver of run {run.run_id} for {_seconds(now - run.launched_at)}."
        return _decision(SupervisionAction.WAIT, SupervisionReason.AWAITS_CLUSTER, text, LOOK_AGAIN_AFTER)
    silence = f"It has been silent for {_seconds(now - _last_sign(run))}."
    if seen.process is ProcessState.UNKNOWN:
        return _unknown(run, silence)
    text = f"The driver of run {run.run_id} lives. {silence} See `sluice stream logs {run.stream}`."
    return _decision(SupervisionAction.ADOPT, SupervisionReason.HEARTBEAT_OVERDUE, text, LOOK_AGAIN_AFTER)


def _decide_about_start(
    wanted: StreamDeclaration, run: RunObservation | None, history: RestartHistory, now: datetime
) -> SupervisionDecision:
    if run is None:
        text = f"Stream {wanted.stream} has never run."
        return _decision(SupervisionAction.LAUNCH, SupervisionReason.NEVER_STARTED, text, LOOK_AGAIN_AFTER)
    if history.failures == 0:
        why = (run.reason or "without a reason").rstrip(".")
        text = f"Run {run.run_id} ended ({why}), and the stream is wanted again."
        return _decision(SupervisionAction.LAUNCH, SupervisionReason.WANTED_AGAIN, text, LOOK_AGAIN_AFTER)
    decided = _decide_about_restart(wanted, run, history, now)
    return replace(decided, failure=history.newest_failure, failures=history.failures)


def _decide_about_restart(
    wanted: StreamDeclaration, run: RunObservation, history: RestartHistory, now: datetime
) -> SupervisionDecision:
    failure = history.newest_failure
    failed = (
        f"Run {run.run_id} ended: {history.newest_reason}. That is {describe_failure(failure)}, "
        f"failure {history.failures} in a row"
    )
    verdict = judge_restart(wanted.supervision, history)
    if verdict is not RestartVerdict.RESTART:
        reason, because = _GIVEN_UP[verdict]
        text = f"{failed}{because} {given_up_steps(failure, stream=wanted.stream)}"
        return _decision(SupervisionAction.GIVE_UP, reason, text)
    tries = tries_of(wanted.supervision.restart, failure.failure_class)
    due = (history.newest_ended_at or now) + wait_after(wanted.supervision, history)
    counted = f"{failed}, {history.failures_of_class} of {tries} of its class that are restarted"
    if now < due:
        text = f"{counted}; the next start is due in {_seconds(due - now)}."
        return _decision(SupervisionAction.RESTART_LATER, SupervisionReason.BACKING_OFF, text, due - now)
    text = f"{counted}; the start is due."
    return _decision(SupervisionAction.LAUNCH, SupervisionReason.RESTART_DUE, text, LOOK_AGAIN_AFTER)


_GIVEN_UP = {
    RestartVerdict.WOULD_NOT_HELP: (
        SupervisionReason.RESTART_WOULD_NOT_HELP,
        ", and another start would only repeat it.",
    ),
    RestartVerdict.BREAKER_OPEN: (
        SupervisionReason.BREAKER_OPEN,
        ", and its breaker is open: too many within its window.",
    ),
    RestartVerdict.BUDGET_SPENT: (SupervisionReason.RESTART_BUDGET_SPENT, ", and no restart is left for this class."),
}


def _last_sign(run: RunObservation) -> datetime:
    return run.heartbeat_at or run.launched_at


def _is_heard(run: RunObservation, now: datetime) -> bool:
    """A driver that has not beaten yet is given the time of its launch on top."""
    patience = HEARD_WITHIN if run.heartbeat_at is not None else HEARD_WITHIN + LAUNCHED_WITHIN
    return now - _last_sign(run) <= patience


def _is_queued(seen: StreamObservation, run: RunObservation) -> bool:
    """Whether a cluster has not begun with the driver. YARN says so, too, of one that beats and has no session yet."""
    return seen.process is ProcessState.QUEUED and run.heartbeat_at is None


def _unknown(run: RunObservation, circumstance: str) -> SupervisionDecision:
    host = run.process.host if run.process is not None else "an unknown host"
    text = (
        f"Whether the driver of run {run.run_id} on {host} lives cannot be told from here. {circumstance} "
        f"Nothing is started beside it; look on {host}."
    )
    return _decision(SupervisionAction.WAIT, SupervisionReason.DRIVER_UNKNOWN, text, LOOK_AGAIN_AFTER)


def _stopped_text(seen: StreamObservation) -> str:
    if seen.desired.suspension is SuspensionCause.PAUSED:
        return f"Stream {seen.stream} is stopped{seen.desired.why_stopped}. Unpausing the DAG starts it again."
    return (
        f"Stream {seen.stream} is stopped, as asked{seen.desired.why_stopped}. "
        f"`sluice stream start {seen.stream}` starts it again."
    )


def _decision(
    action: SupervisionAction, reason: SupervisionReason, explanation: str, delay: timedelta | None = None
) -> SupervisionDecision:
    return SupervisionDecision(action=action, reason=reason, explanation=explanation, delay=delay)


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():.0f} s"
