"""Reconciles continuous streams with their desired states when their own tasks do not; the DAG calls it each minute.

Increments are started by Airflow alone. It looks at them all the same: an overdue one would stay unreported.

A stream's own task reacts within seconds, but it does not always run: Airflow runs no task of a paused DAG, a trigger
cannot find out whether its DAG is paused, a triggerer may be down, and no event reports a changed declaration.

    pauses of all streams ──► drivers, lag and health, a few streams at once ──► runs that fit no declaration

What the ledger knows is read for all streams at once, so a healthy stream costs a pass two statements: its newest
batch, against which its sources are read, and its sample.

One stream never keeps another one waiting: whatever its step raises is reported for that stream, a step that takes too
long is left behind and reported, and each pass begins with another stream, so that no pass leaves out the same ones.
Each part has its share of the pass, so that a slow Airflow leaves time for the drivers. The sources of increments come
last: nothing waits for them, and they may answer slowly for as long as they like.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.declarations.output_declaration import IcebergOutput
from sluice.errors import LedgerError, LedgerUnreachableError
from sluice.ledger.airflow_owner import (
    DagObservation,
)
from sluice.ledger.announcements import TableWriter, rows_since
from sluice.ledger.desired_states import (
    find_desired_state,
)
from sluice.ledger.run_values import DesiredState
from sluice.ledger.runs import newest_runs
from sluice.ledger.stream_records import StreamRecords
from sluice.ledger.stream_troubles import all_troubles, clear_trouble, record_report, record_trouble
from sluice.processes.deadline import Deadline, NotDone, run_each
from sluice.supervision.alerts import (
    Alert,
    clock_alerts,
    connection_alerts,
    is_alert_due,
    is_of_increment,
    report_at_once,
)
from sluice.supervision.followed_pauses import DagLooks, ObserveDag, follow_pauses, newest_look
from sluice.supervision.limits import LEFT_TO_ITS_TASK
from sluice.supervision.orphaned_runs import OrphanedRun, find_orphaned_runs
from sluice.supervision.platform_troubles import note_paused_dags, subjects_beside_streams, watch_schemas
from sluice.supervision.progress_decision import ProgressJudgement, judge_known
from sluice.supervision.row_verdicts import with_rows
from sluice.supervision.rows_watch import watch_rows
from sluice.supervision.source_watch import sample_increments, watch_progress
from sluice.supervision.stream_verdict import (
    StreamState,
    StreamVerdict,
    judge_increment,
    verdict_of,
    waiting_from,
    with_its_dag,
)
from sluice.supervision.supervision_values import SupervisionAction, SupervisionReason
from sluice.supervision.supervisor import (
    SupervisionResult,
    Supervisor,
    observe,
    plan_from,
    read_to_judge,
    save_decision,
    supervise,
)
from sluice.supervision.undeclared_streams import look_after_orphan, stop_beyond_limit

_log = logging.getLogger(__name__)

AT_ONCE = 4
"""Streams in work at once: the pool of the ledger has one connection more."""

PASS_SECONDS = 50.0
"""How long a pass may take, so that the next minute's pass is not late."""

ASKING_SHARE = 0.3
"""Of a pass, for asking Airflow about the DAGs; the rest of the DAGs count as they were last seen."""

REST_SHARE = 0.1
"""Of a pass, what is left for the DAGs of the platform, and as much again for the sources of increments."""

STEP_SHARE = 0.2
"""Of a pass, for one stream: one that takes longer keeps its thread, and another thread takes the others."""

_GOLDEN = 0.6180339887
"""The golden ratio: its multiples, without their whole part, leave no large gap anywhere."""


def _is_stream(subject: str) -> bool:
    """Whether a trouble is that of a stream: no name of one has a space."""
    return " " not in subject


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
    """Reconcile every continuous stream, every run that fits no declaration, and look at every increment.

    Parameters
    ----------
    observe_dag: asks Airflow about the DAG of a stream; it is called from one thread at a time.
    number: of the pass, for example its minute; it decides with which stream the pass begins.
    pass_seconds: how long the pass may take; no stream is begun and none is waited for in its last `REST_SHARE`.

    Returns
    -------
    What a person is to look at, by stream; of unusual rows and changed schemas only in the pass that finds them.

    Raises
    ------
    LedgerError: when the ledger cannot be reached at the beginning.
    """
    deadline = Deadline.after(pass_seconds)
    of_the_clock = clock_alerts(supervisor)
    orphans = find_orphaned_runs(declarations, newest_runs(supervisor.ledger))
    streams = _rotated([stream for _, stream in sorted(declarations.streams.items())], number)
    looks = follow_pauses(supervisor, streams, observe_dag, seconds=pass_seconds * ASKING_SHARE)
    known, unreadable = _read_each(supervisor, streams)
    writers = _writers(declarations)
    steps = {
        stream.name: _step(supervisor, stream, known[stream.name], looks, writers)
        for stream in streams
        if stream.name in known
    }
    steps |= {orphan.stream: partial(_look_after, supervisor, orphan) for orphan in orphans}
    step_seconds = pass_seconds * STEP_SHARE
    of_streams = Deadline(deadline.at - pass_seconds * REST_SHARE)
    done = run_each(steps, at_once=AT_ONCE, deadline=of_streams, step_seconds=step_seconds)
    _clear_others(supervisor, declarations, (*steps, *unreadable))
    note_paused_dags(supervisor.ledger, observe_dag, by=supervisor.launched_by, deadline=deadline)
    increments = [one for one in streams if one.declaration.mode == "incremental" and one.name in known]
    of_sources = max(deadline, Deadline.after(pass_seconds * REST_SHARE), key=lambda one: one.at)
    sample_increments(supervisor, increments, known, at_once=AT_ONCE, deadline=of_sources, step_seconds=step_seconds)
    problems: dict[str, Alert] = {}
    # One alert of a stream in a pass: a second one would no longer be new.
    found = {name: result for name, result in done.items() if result is not None}
    for name, result in {**looks.problems, **unreadable, **found}.items():
        alert = _problem(supervisor, name, result) if isinstance(result, Exception) else result
        if alert is not None:
            problems[name] = alert
    alerts = [problems[name] for name in sorted(problems)]
    of_rows = watch_rows(supervisor.ledger, declarations, number=number, by=supervisor.launched_by)
    of_schemas = watch_schemas(supervisor.ledger, declarations, number=number, by=supervisor.launched_by)
    return (*alerts, *of_rows, *of_schemas, *of_the_clock, *connection_alerts(supervisor))


def _read_each(
    supervisor: Supervisor, streams: Sequence[LoadedStream]
) -> tuple[Mapping[str, StreamRecords], Mapping[str, Exception]]:
    """The records of the streams, read at once. When one has a word that only a newer program knows, each is read
    alone: it keeps no other one from being supervised."""
    ledger, known, unreadable = supervisor.ledger, dict[str, StreamRecords](), dict[str, Exception]()
    try:
        return read_to_judge(ledger, streams, with_progress=True), unreadable
    except LedgerUnreachableError:
        raise
    except LedgerError as error:
        _log.error("The streams are read one by one: %s", error)
    for stream in streams:
        try:
            known |= read_to_judge(ledger, [stream], with_progress=True)
        except LedgerUnreachableError:
            raise
        except LedgerError as error:
            unreadable[stream.name] = error
    return known, unreadable


def _writers(declarations: Declarations) -> Mapping[str, list[TableWriter]]:
    """What writes each table."""
    writers: dict[str, list[TableWriter]] = {}
    for name, stream in declarations.streams.items():
        is_incremental = stream.declaration.mode == "incremental"
        for output, declared in stream.declaration.outputs.items():
            if isinstance(declared.output, IcebergOutput):
                writer = TableWriter(stream=name, output=output, is_incremental=is_incremental)
                writers.setdefault(declared.output.table, []).append(writer)
    return writers


def _rotated(streams: Sequence[LoadedStream], number: int) -> list[LoadedStream]:
    """Begin with another stream in each pass, spread over all of them: however few a pass comes to, none waits long."""
    first = int(number * _GOLDEN % 1 * len(streams))
    return [*streams[first:], *streams[:first]]


def _reconcile(supervisor: Supervisor, stream: LoadedStream, known: StreamRecords, looks: DagLooks) -> Alert | None:
    """Reconcile one stream, and record whether it is healthy; not when its DAG could not be looked at, which is a
    trouble of its own."""
    dag = looks.dags[stream.name]
    if stream.name not in looks.problems:  # of one with a problem nothing was recorded
        dag = newest_look(supervisor.ledger, stream.name, dag)
    done = look_after(supervisor, stream, known, dag=dag)
    decision = done.supervised.decision
    log = _log.info if decision.is_healthy or done.acted else _log.warning
    log("stream=%s acted=%s reason=%s %s", stream.name, done.acted, decision.reason, decision.explanation)
    progress = None if done.acted else done.progress
    if progress is None:
        progress = judge_known(stream, _read(supervisor, stream) if done.acted else known)
    seen = done.supervised.seen
    limit = stream.declaration.supervision.max_rejected
    verdict = with_rows(with_its_dag(verdict_of(decision, progress), seen, dag), seen, limit)
    if stream.name in looks.problems or (verdict.is_healthy and known.trouble is None):
        return None  # as nearly all streams in nearly all passes: there is nothing to record
    alert = _alert_of(supervisor, stream.name, verdict, dag)
    stop_beyond_limit(supervisor, stream, verdict, seen)
    return alert


def _step(
    supervisor: Supervisor,
    stream: LoadedStream,
    known: StreamRecords,
    looks: DagLooks,
    writers: Mapping[str, Sequence[TableWriter]],
) -> partial[Alert | None]:
    """What is done for one stream in a pass."""
    if stream.declaration.mode == "incremental":
        return partial(_look_at_increment, supervisor, stream, known, looks, writers)
    return partial(_reconcile, supervisor, stream, known, looks)


def _look_at_increment(
    supervisor: Supervisor,
    stream: LoadedStream,
    known: StreamRecords,
    looks: DagLooks,
    writers: Mapping[str, Sequence[TableWriter]],
) -> Alert | None:
    """Judge an incremental stream, which its DAG starts: the reconciler notices when it does not."""
    schedule, since = stream.declaration.schedule, waiting_from(known)
    tables = schedule.tables if schedule is not None else ()
    by_table = {table: writers.get(table, ()) for table in tables}
    new = None if since is None else rows_since(supervisor.ledger, by_table, since)
    seen = observe(known, supervisor.launcher)
    limit = stream.declaration.supervision.max_rejected
    verdict = with_rows(judge_increment(seen, schedule=schedule, rows_since=new), seen, limit)
    is_left_to_task = known.trouble is not None and is_of_increment(known.trouble) and known.trouble.by_its_task
    if stream.name in looks.problems or is_left_to_task or (verdict.is_healthy and known.trouble is None):
        return None
    alert = _alert_of(supervisor, stream.name, verdict, looks.dags[stream.name])
    stop_beyond_limit(supervisor, stream, verdict, seen)
    return alert


def _read(supervisor: Supervisor, stream: LoadedStream) -> StreamRecords:
    return read_to_judge(supervisor.ledger, [stream], with_progress=True)[stream.name]


def _look_after(supervisor: Supervisor, orphan: OrphanedRun) -> Alert | None:
    """Report a run that fits no declaration, and end it where that is due."""
    desired = find_desired_state(supervisor.ledger, orphan.stream).effective_state
    if not orphan.run.is_live and desired is DesiredState.STOPPED:
        clear_trouble(supervisor.ledger, orphan.stream, by=supervisor.launched_by)
        return None
    verdict = StreamVerdict(state=StreamState(orphan.reason), is_healthy=False, explanation=orphan.explanation)
    trouble = record_trouble(
        supervisor.ledger,
        orphan.stream,
        reason=verdict.state,
        explanation=verdict.explanation,
        by=supervisor.launched_by,
    )
    look_after_orphan(supervisor, orphan, missing_for=trouble.lasted)
    return _alert_of(supervisor, orphan.stream, verdict, None)


def _alert_of(supervisor: Supervisor, name: str, verdict: StreamVerdict, dag: DagObservation | None) -> Alert | None:
    """Record the health of a stream. Returns the alert when one is due."""
    ledger = supervisor.ledger
    if verdict.is_healthy:
        clear_trouble(ledger, name, by=supervisor.launched_by)
        return None
    trouble = record_trouble(
        ledger,
        name,
        reason=verdict.state,
        explanation=verdict.explanation,
        occasion=verdict.occasion,
        by=supervisor.launched_by,
    )
    if not is_alert_due(trouble, dag):
        return None
    is_new = record_report(ledger, trouble, by=supervisor.launched_by)
    return Alert(stream=name, sentence=verdict.explanation, reason=verdict.state, is_new=is_new)


def _clear_others(supervisor: Supervisor, declarations: Declarations, kept: Collection[str]) -> None:
    """Clear the troubles of streams that have none any more: neither declared as continuous nor with a run to end.

    That an increment is red is its own task's to clear, as long as its stream is declared; that a check of a table has
    failed is the next check's.
    """
    besides = subjects_beside_streams(declarations)
    for trouble in all_troubles(supervisor.ledger):
        is_left_to_task = is_of_increment(trouble) and trouble.stream in declarations.stream_names
        is_left = is_left_to_task or trouble.stream in besides
        if _is_stream(trouble.stream) and trouble.stream not in kept and not is_left:
            clear_trouble(supervisor.ledger, trouble.stream, by=supervisor.launched_by)


def _problem(supervisor: Supervisor, stream: str, error: Exception) -> Alert:
    if isinstance(error, NotDone):
        _log.error("stream=%s %s", stream, error)
    else:
        _log.error("stream=%s could not be reconciled", stream, exc_info=error)
    sentence = f"It could not be reconciled: {type(error).__name__}: {error}"
    return report_at_once(supervisor, stream, reason=StreamState.NOT_RECONCILED, sentence=sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The result for one stream.

    acted: whether `supervise` was called.
    progress: as it was judged before; unset when nothing was observed.
    """

    supervised: SupervisionResult
    acted: bool
    progress: ProgressJudgement | None = None


def look_after(
    supervisor: Supervisor, wanted: LoadedStream, known: StreamRecords, *, dag: DagObservation | None
) -> Reconciliation:
    """Reconcile the driver of a stream, then watch its progress.

    Parameters
    ----------
    known: its records, read a moment ago; what is due is decided again by newer ones.
    dag: the DAG of the stream; unset when Airflow does not know it.

    Raises
    ------
    LaunchError: when a driver that must be stopped survives SIGKILL.
    """
    judged = None if supervisor.heads is None else watch_progress(supervisor.ledger, supervisor.heads, wanted, known)
    has_asked = judged is not None and judged.restarts
    planned = plan_from(_read(supervisor, wanted) if has_asked else known, wanted, launcher=supervisor.launcher)
    is_due = _is_due(planned, dag)
    supervised = supervise(supervisor, wanted) if is_due else planned
    if not is_due and planned.decision.action is SupervisionAction.GIVE_UP:
        save_decision(supervisor, planned)  # its task may be unable to: a paused DAG has none
    return Reconciliation(supervised=supervised, acted=is_due, progress=judged)


def _is_due(planned: SupervisionResult, dag: DagObservation | None) -> bool:
    """Whether an action is due that the stream's own task has not taken in its time.

    A paused DAG has no task that takes it: only the command of a request is waited for. When a person paused it, the
    stream is suspended and no start is decided.

    Parameters
    ----------
    dag: the DAG of the stream; unset when Airflow does not know it.
    """
    decision, seen = planned.decision, planned.seen
    if decision.action in _DUE_AT_ONCE:
        return True
    is_start = decision.action is SupervisionAction.LAUNCH and decision.reason is not SupervisionReason.NEVER_STARTED
    if not is_start or dag is None:
        return False
    ended_at = None if seen.newest_run is None else seen.newest_run.ended_at
    times = (seen.desired.changed_at,) if dag.is_paused else (ended_at, seen.desired.changed_at)
    waiting_since = max((at for at in times if at is not None), default=None)
    if waiting_since is None:
        return dag.is_paused
    return seen.observed_at - waiting_since > LEFT_TO_ITS_TASK
