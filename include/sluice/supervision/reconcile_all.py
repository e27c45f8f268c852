"""Reconciles all streams in one pass: pauses first, then drivers, each stream bounded and on its own.

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
from datetime import timedelta
from functools import partial

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.ledger.airflow_owner import DagObservation, DagPause, find_dag_pauses, record_dag_pauses
from sluice.ledger.connection import connection_use, database_time
from sluice.ledger.desired_states import find_desired_state, find_desired_states
from sluice.ledger.run_values import DesiredState
from sluice.ledger.runs import newest_runs
from sluice.ledger.stream_records import StreamRecords, read_stream, read_streams
from sluice.ledger.stream_troubles import all_troubles, clear_trouble, record_report, record_trouble
from sluice.processes.deadline import Deadline
from sluice.processes.worker_threads import NotDone, run_each
from sluice.supervision.alert import Alert
from sluice.supervision.alert_decision import is_alert_due
from sluice.supervision.progress_watch import judge_known
from sluice.supervision.reconciler import follow_pause, look_after
from sluice.supervision.red_increments import is_of_increment
from sluice.supervision.stream_health import StreamHealth, StreamState, health_of_continuous, with_its_dag
from sluice.supervision.supervisor import Supervisor
from sluice.supervision.undeclared_streams import OrphanedRun, find_orphaned_runs, look_after_orphan

_log = logging.getLogger(__name__)

AT_ONCE = 4
"""Streams in work at once: the pool of the ledger has one connection more."""

PASS_SECONDS = 50.0
"""How long a pass may take, so that the next minute's pass is not late."""

CONNECTIONS_SHARE = 0.8
"""Of the connections that the ledger's server allows; beyond it a person is alerted."""

ObserveDag = Callable[[str], DagObservation | None]


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
    known = read_streams(supervisor.ledger, [stream.name for stream in streams])
    steps = {
        stream.name: partial(_reconcile, supervisor, stream, known[stream.name], dags.get(stream.name))
        for stream in streams
    }
    steps |= {orphan.stream: partial(_look_after, supervisor, orphan) for orphan in orphans}
    done = run_each(steps, at_once=AT_ONCE, deadline=deadline)
    _clear_others(supervisor, declarations, steps)
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
        progress = judge_known(stream, read_stream(supervisor.ledger, stream.name) if done.acted else known)
    health = with_its_dag(health_of_continuous(decision, progress), done.supervised.seen, dag)
    if health.is_healthy and known.trouble is None:
        return None  # as nearly all streams in nearly all passes: there is nothing to record
    return _alert_of(supervisor, stream.name, health, dag)


def _look_after(supervisor: Supervisor, orphan: OrphanedRun) -> Alert | None:
    """Report a run that fits no declaration, and end it where that is due."""
    desired = find_desired_state(supervisor.ledger, orphan.stream).effective_state
    if not orphan.run.is_live and desired is DesiredState.STOPPED:
        clear_trouble(supervisor.ledger, orphan.stream, by=supervisor.launched_by)
        return None
    health = StreamHealth(state=StreamState(orphan.reason), is_healthy=False, explanation=orphan.explanation)
    trouble = record_trouble(supervisor.ledger, orphan.stream, reason=health.state, explanation=health.explanation)
    look_after_orphan(supervisor, orphan, missing_for=trouble.lasted)
    return _alert_of(supervisor, orphan.stream, health, None)


def _alert_of(supervisor: Supervisor, name: str, health: StreamHealth, dag: DagObservation | None) -> Alert | None:
    """Record the health of a stream. Returns the alert when one is due."""
    ledger = supervisor.ledger
    if health.is_healthy:
        clear_trouble(ledger, name, by=supervisor.launched_by)
        return None
    trouble = record_trouble(ledger, name, reason=health.state, explanation=health.explanation)
    if not is_alert_due(trouble, dag):
        return None
    if trouble.reported_at is None:
        record_report(ledger, trouble, by=supervisor.launched_by)
    return Alert(stream=name, sentence=health.explanation, reason=health.state, is_new=trouble.reported_at is None)


def _clear_others(supervisor: Supervisor, declarations: Declarations, kept: Collection[str]) -> None:
    """Clear the troubles of streams that have none any more: neither declared as continuous nor with a run to end.

    That an increment is red is its own task's to clear, as long as its stream is declared.
    """
    for trouble in all_troubles(supervisor.ledger):
        is_left_to_task = is_of_increment(trouble) and trouble.stream in declarations.stream_names
        if trouble.stream not in kept and not is_left_to_task:
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
