"""Reconciles continuous streams with their desired states when their own tasks do not; the DAG calls it each minute.

A stream's own task reacts within seconds, but it does not always run: Airflow runs no task of a paused DAG, a trigger
cannot find out whether its DAG is paused, a triggerer may be down, and no event reports a changed declaration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.airflow_owner import DagObservation, DagPause, find_dag_pause, record_dag_pause
from sluice.ledger.desired_states import DesiredStateObservation, SuspensionCause, find_desired_state, resume, suspend
from sluice.ledger.events import Actor, Event, EventAction, record_event
from sluice.ledger.run_values import DesiredState
from sluice.ledger.stream_records import StreamRecords, read_stream
from sluice.supervision.decide_about_pause import PauseEffect, decide_about_pause, is_news
from sluice.supervision.progress_decision import ProgressJudgement
from sluice.supervision.progress_watch import watch_progress
from sluice.supervision.supervision_decision import SupervisionAction, SupervisionReason
from sluice.supervision.supervisor import SupervisionResult, Supervisor, plan_from, plan_supervision, supervise
from sluice.supervision.time_limits import LEFT_TO_ITS_TASK

_DUE_AT_ONCE = frozenset(
    {
        SupervisionAction.CLOSE,
        SupervisionAction.STOP,
        SupervisionAction.TAKE_OVER,
        SupervisionAction.REVOKE,
        SupervisionAction.REPLACE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The result for one stream.

    acted: whether `supervise` was called. changed: what was noticed, a phrase each.
    alert: the sentence for a person when the stream has just become stalled or late; empty while it stays so.
    progress: as it was judged before; unset when nothing was observed.
    """

    stream: str
    supervised: SupervisionResult
    acted: bool
    changed: tuple[str, ...] = ()
    alert: str = ""
    progress: ProgressJudgement | None = None


def reconcile(supervisor: Supervisor, wanted: LoadedStream, *, dag: DagObservation | None) -> Reconciliation:
    """Reconcile one continuous stream.

    Parameters
    ----------
    dag: its DAG; unset when Airflow does not know it yet.

    Raises
    ------
    LaunchError: when a driver that must be stopped survives SIGKILL.
    """
    change = "" if dag is None else note_pause(supervisor, wanted, dag)
    known = read_stream(supervisor.ledger, wanted.name)
    done = look_after(supervisor, wanted, known, is_known=dag is not None)
    return replace(done, changed=(change,) if change else ())


def look_after(supervisor: Supervisor, wanted: LoadedStream, known: StreamRecords, *, is_known: bool) -> Reconciliation:
    """Reconcile the driver of a stream, then watch its progress.

    Parameters
    ----------
    known: its records, read a moment ago; what is due is decided again by newer ones.
    is_known: whether Airflow knows the DAG of the stream.

    Raises
    ------
    LedgerError, LaunchError: as `reconcile`.
    """
    ledger = supervisor.ledger
    watched = None if supervisor.heads is None else watch_progress(ledger, supervisor.heads, wanted, known)
    judged = None if watched is None else watched.judgement
    alert = watched.judgement.explanation if watched is not None and watched.is_new_trouble else ""
    has_asked = judged is not None and judged.restarts
    known = read_stream(ledger, wanted.name) if has_asked else known
    planned = plan_from(known, wanted, ledger=ledger, launcher=supervisor.launcher)
    is_due = _is_due(planned, is_known=is_known)
    supervised = supervise(supervisor, wanted) if is_due else planned
    return Reconciliation(stream=wanted.name, supervised=supervised, acted=is_due, alert=alert, progress=judged)


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
