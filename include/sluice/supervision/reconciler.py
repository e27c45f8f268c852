"""Reconciles continuous streams with their desired states when their own tasks do not; the DAG calls it each minute.

A stream's own task reacts within seconds, but it does not always run: Airflow runs no task of a paused DAG, a trigger
cannot find out whether its DAG is paused, a triggerer may be down, and no event reports a changed declaration.

    pauses of all streams ──► drivers, lag and health, a few streams at once ──► runs that fit no declaration

What the ledger knows is read for all streams at once, so a healthy stream costs a pass two statements: its newest
batch, against which its sources are read, and its sample.

One stream never keeps another one waiting: whatever its step raises is reported for that stream, a step that takes too
long is left behind and reported, and each pass begins with another stream, so that no pass leaves out the same ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.ledger.airflow_owner import (
    DagObservation,
    DagPause,
    find_dag_pause,
    find_dag_pauses,
    record_dag_pause,
    record_dag_pauses,
)
from sluice.ledger.connection import connection_use, database_time
from sluice.ledger.desired_states import (
    DesiredStateObservation,
    SuspensionCause,
    find_desired_state,
    find_desired_states,
    resume,
    suspend,
)
from sluice.ledger.events import Actor, Event, EventAction, record_event
from sluice.ledger.run_values import DesiredState
from sluice.ledger.runs import newest_runs
from sluice.ledger.stream_records import StreamRecords
from sluice.ledger.stream_troubles import all_troubles, clear_trouble, record_report, record_trouble
from sluice.processes.deadline import Deadline
from sluice.processes.worker_threads import NotDone, run_each
from sluice.supervision.alerts import Alert, is_alert_due, is_of_increment
from sluice.supervision.decide_about_pause import PauseEffect, decide_about_pause, is_news
from sluice.supervision.platform_troubles import note_paused_dags, subjects_beside_streams
from sluice.supervision.progress_decision import ProgressJudgement, judge_known
from sluice.supervision.progress_watch import sample_increments, watch_progress
from sluice.supervision.stream_verdict import (
    OrphanedRun,
    StreamState,
    StreamVerdict,
    find_orphaned_runs,
    verdict_of,
    with_its_dag,
    with_rejections,
)
from sluice.supervision.supervision_decision import SupervisionAction, SupervisionReason
from sluice.supervision.supervisor import (
    SupervisionResult,
    Supervisor,
    plan_from,
    plan_supervision,
    read_to_judge,
    supervise,
)
from sluice.supervision.time_limits import LEFT_TO_ITS_TASK
from sluice.supervision.undeclared_streams import look_after_orphan

_log = logging.getLogger(__name__)

AT_ONCE = 4
"""Streams in work at once: the pool of the ledger has one connection more."""

PASS_SECONDS = 50.0
"""How long a pass may take, so that the next minute's pass is not late."""

CONNECTIONS_SHARE = 0.8
"""Of the connections that the ledger's server allows; beyond it a person is alerted."""

ObserveDag = Callable[[str], DagObservation | None]

_DUE_AT_ONCE = frozenset(
    {
        SupervisionAction.CLOSE,
        SupervisionAction.STOP,
        SupervisionAction.TAKE_OVER,
        SupervisionAction.REVOKE,
        SupervisionAction.REPLACE,
    }
)


def reconcile_all(
    supervisor: Supervisor,
    declarations: Declarations,
    *,
    observe_dag: ObserveDag,
    number: int,
    pass_seconds: float = PASS_SECONDS,
) -> tuple[Alert, ...]:
    """Reconcile every continuous stream, and every run that fits no declaration.

    Parameters
    ----------
    observe_dag: asks Airflow about the DAG of a stream; it is called in the caller's thread only.
    number: of the pass, for example its minute; it decides with which stream the pass begins.
    pass_seconds: after which no stream is begun and none is waited for.

    Returns
    -------
    What a person is to look at, by stream.

    Raises
    ------
    LedgerError: when the ledger cannot be reached at the beginning.
    """
    deadline = Deadline.after(pass_seconds)
    orphans = find_orphaned_runs(declarations, newest_runs(supervisor.ledger))
    streams = _rotated(_continuous(declarations), number)
    problems: dict[str, Alert] = {}
    dags = _note_pauses(supervisor, streams, observe_dag, problems)
    known = read_to_judge(supervisor.ledger, streams, with_progress=True)
    steps = {
        stream.name: partial(_reconcile, supervisor, stream, known[stream.name], dags.get(stream.name))
        for stream in streams
    }
    steps |= {orphan.stream: partial(_look_after, supervisor, orphan) for orphan in orphans}
    done = run_each(steps, at_once=AT_ONCE, deadline=deadline)
    _clear_others(supervisor, declarations, steps)
    sample_increments(supervisor, declarations, at_once=AT_ONCE, deadline=deadline)
    note_paused_dags(supervisor.ledger, observe_dag, by=supervisor.launched_by)
    for name, result in done.items():
        alert = _problem(name, result) if isinstance(result, Exception) else result
        if alert is not None:
            problems[name] = alert
    alerts = [problems[name] for name in sorted(problems)]
    return (*alerts, *_connection_alerts(supervisor))


def _continuous(declarations: Declarations) -> list[LoadedStream]:
    by_name = sorted(declarations.streams.items())
    return [stream for _, stream in by_name if stream.declaration.mode == "continuous"]


def _rotated(streams: Sequence[LoadedStream], number: int) -> list[LoadedStream]:
    first = number % len(streams) if streams else 0
    return [*streams[first:], *streams[:first]]


def _note_pauses(
    supervisor: Supervisor, streams: Sequence[LoadedStream], observe_dag: ObserveDag, problems: dict[str, Alert]
) -> dict[str, DagObservation | None]:
    """Follow what people did to the DAGs of streams. Returns the DAGs; what one stream raises goes to `problems`."""
    ledger, names = supervisor.ledger, [stream.name for stream in streams]
    pauses, desired = find_dag_pauses(ledger, names), find_desired_states(ledger, names)
    read_at, read_at_seconds = database_time(ledger), time.monotonic()
    dags: dict[str, DagObservation | None] = {}
    seen: list[DagPause] = []
    for stream in streams:
        name, observed_at = stream.name, read_at + timedelta(seconds=time.monotonic() - read_at_seconds)
        try:
            dag = observe_dag(name)
            if dag is not None:
                change = follow_pause(supervisor, stream, dag, known=pauses.get(name), desired=desired[name])
                if change:
                    _log.info("stream=%s %s", name, change)
                seen.append(
                    DagPause(stream=name, airflow=dag.airflow, is_paused=dag.is_paused, observed_at=observed_at)
                )
            dags[name] = dag
        except Exception as error:  # noqa: BLE001  # whatever one stream raises keeps no other one waiting
            problems[name] = _problem(name, error)
    # Recorded last: a change whose effect was lost in between is noticed again.
    record_dag_pauses(ledger, seen)
    return dags


def _reconcile(
    supervisor: Supervisor, stream: LoadedStream, known: StreamRecords, dag: DagObservation | None
) -> Alert | None:
    """Reconcile one stream, and record whether it is healthy."""
    done = look_after(supervisor, stream, known, is_known=dag is not None)
    decision = done.supervised.decision
    log = _log.info if decision.is_healthy or done.acted else _log.warning
    log("stream=%s acted=%s reason=%s %s", stream.name, done.acted, decision.reason, decision.explanation)
    progress = None if done.acted else done.progress
    if progress is None:
        progress = judge_known(stream, _read(supervisor, stream) if done.acted else known)
    seen = done.supervised.seen
    verdict = with_rejections(with_its_dag(verdict_of(decision, progress), seen, dag), seen)
    if verdict.is_healthy and known.trouble is None:
        return None  # as nearly all streams in nearly all passes: there is nothing to record
    return _alert_of(supervisor, stream.name, verdict, dag)


def _read(supervisor: Supervisor, stream: LoadedStream) -> StreamRecords:
    return read_to_judge(supervisor.ledger, [stream], with_progress=True)[stream.name]


def _look_after(supervisor: Supervisor, orphan: OrphanedRun) -> Alert | None:
    """Report a run that fits no declaration, and end it where that is due."""
    desired = find_desired_state(supervisor.ledger, orphan.stream).effective_state
    if not orphan.run.is_live and desired is DesiredState.STOPPED:
        clear_trouble(supervisor.ledger, orphan.stream, by=supervisor.launched_by)
        return None
    verdict = StreamVerdict(state=StreamState(orphan.reason), is_healthy=False, explanation=orphan.explanation)
    trouble = record_trouble(supervisor.ledger, orphan.stream, reason=verdict.state, explanation=verdict.explanation)
    look_after_orphan(supervisor, orphan, missing_for=trouble.lasted)
    return _alert_of(supervisor, orphan.stream, verdict, None)


def _alert_of(supervisor: Supervisor, name: str, verdict: StreamVerdict, dag: DagObservation | None) -> Alert | None:
    """Record the health of a stream. Returns the alert when one is due."""
    ledger = supervisor.ledger
    if verdict.is_healthy:
        clear_trouble(ledger, name, by=supervisor.launched_by)
        return None
    trouble = record_trouble(ledger, name, reason=verdict.state, explanation=verdict.explanation)
    if not is_alert_due(trouble, dag):
        return None
    if trouble.reported_at is None:
        record_report(ledger, trouble, by=supervisor.launched_by)
    return Alert(stream=name, sentence=verdict.explanation, reason=verdict.state, is_new=trouble.reported_at is None)


def _clear_others(supervisor: Supervisor, declarations: Declarations, kept: Collection[str]) -> None:
    """Clear the troubles of streams that have none any more: neither declared as continuous nor with a run to end.

    That an increment is red is its own task's to clear, as long as its stream is declared; that a check of a table has
    failed is the next check's.
    """
    besides = subjects_beside_streams(declarations)
    for trouble in all_troubles(supervisor.ledger):
        is_left_to_task = is_of_increment(trouble) and trouble.stream in declarations.stream_names
        if trouble.stream not in kept and not is_left_to_task and trouble.stream not in besides:
            clear_trouble(supervisor.ledger, trouble.stream, by=supervisor.launched_by)


def _connection_alerts(supervisor: Supervisor) -> list[Alert]:
    """An alert while the server of the ledger has hardly a connection left: each driver holds two."""
    use = connection_use(supervisor.ledger)
    if use.used < use.allowed * CONNECTIONS_SHARE:
        return []
    sentence = (
        f"{use.used} of {use.allowed} connections of the ledger's PostgreSQL are in use; when none is left, drivers "
        "stop after two minutes. Raise its max_connections, or put a connection pooler in front of it."
    )
    return [Alert(stream="ledger", sentence=sentence)]


def _problem(stream: str, error: Exception) -> Alert:
    if isinstance(error, NotDone):
        _log.error("stream=%s %s", stream, error)
    else:
        _log.error("stream=%s could not be reconciled", stream, exc_info=error)
    return Alert(stream=stream, sentence=f"It could not be reconciled: {type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The result for one stream.

    acted: whether `supervise` was called.
    progress: as it was judged before; unset when nothing was observed.
    """

    supervised: SupervisionResult
    acted: bool
    progress: ProgressJudgement | None = None


def look_after(supervisor: Supervisor, wanted: LoadedStream, known: StreamRecords, *, is_known: bool) -> Reconciliation:
    """Reconcile the driver of a stream, then watch its progress.

    Parameters
    ----------
    known: its records, read a moment ago; what is due is decided again by newer ones.
    is_known: whether Airflow knows the DAG of the stream.

    Raises
    ------
    LaunchError: when a driver that must be stopped survives SIGKILL.
    """
    judged = None if supervisor.heads is None else watch_progress(supervisor.ledger, supervisor.heads, wanted, known)
    has_asked = judged is not None and judged.restarts
    planned = plan_from(_read(supervisor, wanted) if has_asked else known, wanted, launcher=supervisor.launcher)
    is_due = _is_due(planned, is_known=is_known)
    supervised = supervise(supervisor, wanted) if is_due else planned
    return Reconciliation(supervised=supervised, acted=is_due, progress=judged)


def note_pause(supervisor: Supervisor, wanted: LoadedStream, dag: DagObservation) -> str:
    """Suspend or resume a stream when a person has paused or unpaused its DAG (`decide_about_pause`).

    Returns
    -------
    What that changed, for a person; empty when nothing changed.
    """
    ledger, stream = supervisor.ledger, wanted.name
    known, desired = find_dag_pause(ledger, stream), find_desired_state(ledger, stream)
    effect = follow_pause(supervisor, wanted, dag, known=known, desired=desired)
    # Recorded last: a change whose effect was lost in between is noticed again.
    record_dag_pause(ledger, stream, airflow=dag.airflow, is_paused=dag.is_paused)
    return effect


def follow_pause(
    supervisor: Supervisor,
    wanted: LoadedStream,
    dag: DagObservation,
    *,
    known: DagPause | None,
    desired: DesiredStateObservation,
) -> str:
    """Suspend or resume a stream as `note_pause` does; the caller has read what is known, and records what it saw."""
    ledger = supervisor.ledger
    effect = decide_about_pause(
        dag,
        known=known,
        is_suspended=desired.suspension is SuspensionCause.PAUSED,
        is_given_up=dag.is_paused and is_news(dag, known) and _is_given_up(supervisor, wanted),
        started_at=desired.requested_at if desired.desired_state is DesiredState.RUNNING else None,
    )
    if effect is PauseEffect.SUSPEND:
        event = _pause_event(supervisor, wanted.name, EventAction.SUSPEND, "dag_paused", _EFFECTS[effect])
        suspend(ledger, wanted.name, SuspensionCause.PAUSED, event=event)
    elif effect is PauseEffect.RESUME:
        event = _pause_event(supervisor, wanted.name, EventAction.RESUME, "dag_unpaused", _EFFECTS[effect])
        resume(ledger, wanted.name, event=event)
    elif effect is PauseEffect.IGNORE:
        text = _EFFECTS[effect]
        record_event(ledger, _pause_event(supervisor, wanted.name, EventAction.IGNORE_PAUSE, "started_since", text))
    return _EFFECTS[effect]


_EFFECTS = {
    PauseEffect.SUSPEND: "its DAG was paused: the stream is to stop",
    PauseEffect.RESUME: "its DAG was unpaused: the stream is to run again",
    PauseEffect.IGNORE: (
        "its DAG is paused, and a person started the stream less than a minute before or after: it runs on. To stop "
        "it, run `sluice stream stop`, or unpause the DAG, wait a minute, and pause it"
    ),
    PauseEffect.NOTHING: "",
}


def _pause_event(supervisor: Supervisor, stream: str, action: EventAction, reason: str, text: str) -> Event:
    """What was noticed, as an event; Airflow does not say who paused the DAG."""
    actor = Actor.component(supervisor.launched_by)
    return Event(name=stream, actor=actor, action=action, reason=reason, explanation=f"{text[0].upper()}{text[1:]}.")


def _is_given_up(supervisor: Supervisor, wanted: LoadedStream) -> bool:
    planned = plan_supervision(wanted, ledger=supervisor.ledger, launcher=supervisor.launcher)
    return planned.decision.action is SupervisionAction.GIVE_UP


def _is_due(planned: SupervisionResult, *, is_known: bool) -> bool:
    """Whether an action is due that the stream's own task has not taken in its time.

    A paused DAG has no task that takes it. When a person paused it, the stream is suspended and no start is decided.

    Parameters
    ----------
    is_known: whether Airflow knows the DAG of the stream.
    """
    decision, seen = planned.decision, planned.seen
    if decision.action in _DUE_AT_ONCE:
        return True
    is_start = decision.action is SupervisionAction.LAUNCH and decision.reason is not SupervisionReason.NEVER_STARTED
    if not is_start or not is_known:
        return False
    ended_at = None if seen.newest_run is None else seen.newest_run.ended_at
    waiting_since = max((at for at in (ended_at, seen.desired.changed_at) if at is not None), default=None)
    return waiting_since is not None and seen.observed_at - waiting_since > LEFT_TO_ITS_TASK
