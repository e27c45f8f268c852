"""Decides what to do about one continuous stream. Pure: time is an argument.

The whole table:

| desired | newest run | its process | and                          | action        | reason                 |
|---------|------------|-------------|------------------------------|---------------|------------------------|
| running | none       |             |                              | LAUNCH        | NEVER_STARTED          |
| running | ended      |             | as requested, or count reset | LAUNCH        | WANTED_AGAIN           |
| running | ended      |             | failed, delay not over       | RESTART_LATER | BACKING_OFF            |
| running | ended      |             | failed, delay over           | LAUNCH        | RESTART_DUE            |
| running | ended      |             | failed, host starts many now | RESTART_LATER | HOST_BUSY              |
| running | ended      |             | failed, budget spent         | GIVE_UP       | RESTART_BUDGET_SPENT   |
| running | ended      |             | the checkpoint cannot follow | GIVE_UP       | CHANGE_REFUSED         |
| running | ended      |             | failed, would only repeat    | GIVE_UP       | RESTART_WOULD_NOT_HELP |
| running | ended      |             | failed, breaker open         | GIVE_UP       | BREAKER_OPEN           |
| stopped | none, ended|             |                              | FINISH        | STOPPED_AS_REQUESTED   |
| any     | live       | none yet    | admitted a moment ago        | WAIT          | BEING_LAUNCHED         |
| any     | live       | none yet    | admitted long ago            | CLOSE         | NEVER_LAUNCHED         |
| any     | live       | any         | parent or cluster knows exit | CLOSE         | EXIT_LEFT_BEHIND       |
| any     | live       | gone        |                              | CLOSE         | DRIVER_GONE            |
| any     | live       | alive       | silent, its lease expired    | STOP          | LEASE_OVER             |
| any     | live       | ?           | silent, its lease expired    | TAKE_OVER     | LEASE_OVER             |
| stopped | live       | alive, ?    | requested a moment ago       | WAIT          | STOPPING               |
| stopped | live       | alive       | requested long ago           | STOP          | STOP_OVERDUE           |
| stopped | live       | ?           | requested long ago           | REVOKE        | STOP_OVERDUE           |
| running | live       | alive       | no heartbeat yet             | ADOPT         | STARTING               |
| running | live       | alive, ?    | heard, declaration changed   | REPLACE       | DECLARATION_CHANGED    |
| running | live       | alive, ?    | heard, and it cannot follow  | ADOPT         | CHANGE_REFUSED         |
| running | live       | alive, ?    | heard, hosts' files differ   | ADOPT         | FILES_DIFFER           |
| running | live       | alive, ?    | heard lately                 | ADOPT         | HEARTBEAT_FRESH        |
| running | live       | alive       | silent for long              | ADOPT         | HEARTBEAT_OVERDUE      |
| running | live       | queued      | never heard, for long        | WAIT          | AWAITS_CLUSTER         |
| running | live       | ?           | silent for long              | WAIT          | DRIVER_UNKNOWN         |

`?` is unknown: never treated as dead. Only when its lease has expired may another run take its place: by its own clock
the driver has stopped publishing then, and what it might still publish meets a higher token. A driver that its cluster
has queued counts as alive, and keeps its place however long it waits for one. "stopped" also covers a run that was
asked to end so that another one takes its place.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from sluice.checkpoints.compatibility import fingerprint_of, refused_changes, ways_out
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.failure_reasons import describe_failure, given_up_steps
from sluice.ledger.desired_states import SuspensionCause
from sluice.ledger.run_values import DesiredState, RunObservation, WatchedRun
from sluice.messages import in_words
from sluice.processes.process_identity import ProcessState
from sluice.supervision.limits import (
    AHEAD_AT_MOST,
    HEARD_WITHIN,
    LAUNCHED_WITHIN,
    LEAST_STARTS,
    LOOK_AGAIN_AFTER,
    STARTS_WITHIN,
    STOPPED_WITHIN,
    share_of,
    tries_of,
)
from sluice.supervision.restart_policy import RestartHistory, RestartVerdict, history_of, judge_restart, wait_after
from sluice.supervision.supervision_values import (
    StreamObservation,
    StreamState,
    SupervisionAction,
    SupervisionDecision,
    SupervisionReason,
    decision,
)


def decide(wanted: LoadedStream, seen: StreamObservation) -> SupervisionDecision:
    """Decide about a declared stream as it was observed, with as many of its runs as count."""
    differ = seen.trouble is not None and seen.trouble.reason == StreamState.FILES_DIFFER
    history = history_of(seen.runs, wanted, reset_at=seen.desired.changed_at, now=seen.observed_at, files_differ=differ)
    return decide_supervision(
        wanted=wanted.declaration, digest=wanted.digest, seen=seen, history=history, now=seen.observed_at
    )


def with_room(decided: SupervisionDecision, *, starting: int, cores: int, run_id: str) -> SupervisionDecision:
    """The decision, when the host that would start the driver has started others a moment ago.

    After a reboot the first restart of every stream is due at once; so many JVMs that start together take memory and
    time from each other, and from those that run.

    Parameters
    ----------
    starting: drivers that the host began to start within `STARTS_WITHIN`. cores: of the host.
    run_id: of the run that failed; each waits for another share of the time.
    """
    if decided.reason is not SupervisionReason.RESTART_DUE or starting < max(cores, LEAST_STARTS):
        return decided
    delay = STARTS_WITHIN * (1 + share_of(run_id)) / 2
    text = f"{decided.explanation} Its host starts {starting} others now; it is looked at again in {in_words(delay)}."
    later, why = SupervisionAction.RESTART_LATER, SupervisionReason.HOST_BUSY
    return replace(decided, action=later, reason=why, explanation=text, delay=delay)


def decide_supervision(
    *, wanted: StreamDeclaration, digest: str, seen: StreamObservation, history: RestartHistory, now: datetime
) -> SupervisionDecision:
    """Compare the declared stream with the observed one; the table above is the whole rule.

    Parameters
    ----------
    wanted: the declaration as it is now. digest: its digest; a run carries the digest of the declaration it was given.
    seen: the stream as it was observed.
    history: the failures that still count.
    now: the database's time.
    """
    decided = _decide(wanted=wanted, digest=digest, seen=seen, history=history, now=now)
    return replace(decided, crashes=history.crashes)


def _decide(
    *, wanted: StreamDeclaration, digest: str, seen: StreamObservation, history: RestartHistory, now: datetime
) -> SupervisionDecision:
    run = seen.newest_run
    refused = refused_changes(seen.fingerprint, fingerprint_of(wanted))
    if run is not None and run.is_live:
        decided = decide_about_live_run(seen, run, now)
        if decided.reason is not SupervisionReason.HEARTBEAT_FRESH:
            return decided
        if run.declaration_digest != digest and refused:
            text = f"Run {run.run_id} continues with its previous declaration. {_refusal(run.stream, refused)}"
            return decision(SupervisionAction.ADOPT, SupervisionReason.CHANGE_REFUSED, text, LOOK_AGAIN_AFTER)
        if history.is_back_and_forth:
            return _files_differ(seen, run)
        return decided if run.declaration_digest == digest else _replacement(run)
    if seen.desired.effective_state is DesiredState.STOPPED:
        return decision(SupervisionAction.FINISH, SupervisionReason.STOPPED_AS_REQUESTED, _stopped_text(seen))
    if refused:
        return decision(SupervisionAction.GIVE_UP, SupervisionReason.CHANGE_REFUSED, _refusal(wanted.stream, refused))
    return _decide_about_start(wanted, run, history, now)


def _files_differ(seen: StreamObservation, run: RunObservation) -> SupervisionDecision:
    text = (
        f"The declaration of {run.stream} was changed back and forth, and its run replaced each time: the hosts of "
        f"Airflow probably hold different files. Run {run.run_id} continues. Bring the same files to every host; "
        f"`sluice stream restart {run.stream}` then follows them at once."
    )
    decided = decision(SupervisionAction.ADOPT, SupervisionReason.FILES_DIFFER, text, LOOK_AGAIN_AFTER)
    asked_at = seen.desired.changed_at
    return replace(decided, occasion="" if asked_at is None else asked_at.isoformat())


def _replacement(run: RunObservation) -> SupervisionDecision:
    text = f"The declaration has changed since run {run.run_id} was started: it ends after its batch and is replaced."
    return decision(SupervisionAction.REPLACE, SupervisionReason.DECLARATION_CHANGED, text)


def _decide_about_start(
    wanted: StreamDeclaration, run: RunObservation | None, history: RestartHistory, now: datetime
) -> SupervisionDecision:
    if run is None:
        text = f"Stream {wanted.stream} has never run."
        return decision(SupervisionAction.LAUNCH, SupervisionReason.NEVER_STARTED, text, LOOK_AGAIN_AFTER)
    if history.failures == 0:
        why = (run.reason or "without a reason").rstrip(".")
        text = f"Run {run.run_id} ended ({why}), and the stream is to run again."
        return decision(SupervisionAction.LAUNCH, SupervisionReason.WANTED_AGAIN, text, LOOK_AGAIN_AFTER)
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
        return replace(decision(SupervisionAction.GIVE_UP, reason, text), occasion=run.run_id)
    tries = tries_of(wanted.supervision.restart, failure.failure_class)
    due = (history.newest_ended_at or now) + wait_after(wanted.supervision, history)
    counted = f"{failed}, {history.failures_of_class} of {tries} of its class that are restarted"
    if now < due:
        text = f"{counted}; the next start is due in {in_words(due - now)}."
        return decision(SupervisionAction.RESTART_LATER, SupervisionReason.BACKING_OFF, text, due - now)
    text = f"{counted}; the start is due."
    return decision(SupervisionAction.LAUNCH, SupervisionReason.RESTART_DUE, text, LOOK_AGAIN_AFTER)


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


def _refusal(stream: str, refused: tuple[str, ...]) -> str:
    return (
        f"The checkpoint of {stream} cannot follow a change of its declaration: {'; '.join(refused)}. "
        f"{ways_out(stream)}"
    )


def _stopped_text(seen: StreamObservation) -> str:
    if seen.desired.suspension is SuspensionCause.PAUSED:
        return (
            f"Stream {seen.stream} is stopped{seen.desired.why_stopped}. Unpausing the DAG, or "
            f"`sluice stream start {seen.stream}`, starts it again."
        )
    return (
        f"Stream {seen.stream} is stopped, as requested{seen.desired.why_stopped}. "
        f"`sluice stream start {seen.stream}` starts it again."
    )


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
    age = max(now - run.launched_at, timedelta(0))
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
    age = max(now - (run.end_asked_at or seen.desired.changed_at or run.launched_at), timedelta(0))
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
    silence = _silence(run, now)
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


def _silence(run: RunObservation, now: datetime) -> str:
    ahead = _last_sign(run) - now
    if ahead > AHEAD_AT_MOST:
        return f"Its newest sign is {in_words(ahead)} in the future: the clock of the ledger's server was set back."
    return f"It has been silent for {in_words(-ahead)}."


def _last_sign(run: RunObservation) -> datetime:
    return run.heartbeat_at or run.launched_at


def _is_heard(run: RunObservation, now: datetime) -> bool:
    """A driver without a heartbeat yet is given the time of its launch on top. A sign from the future is none: the
    database's clock was set back, and what was heard before then says nothing about now."""
    patience = HEARD_WITHIN if run.heartbeat_at is not None else HEARD_WITHIN + LAUNCHED_WITHIN
    return -AHEAD_AT_MOST <= now - _last_sign(run) <= patience


def _is_queued(seen: StreamObservation, run: RunObservation) -> bool:
    """Whether a cluster has not started the driver. YARN also says so of one that beats and has no session yet."""
    return seen.process is ProcessState.QUEUED and run.heartbeat_at is None
