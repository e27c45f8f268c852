"""Reconciles continuous streams with their desired states when their own tasks do not; the DAG calls it each minute.

A stream's own task reacts within seconds, but it does not always run: Airflow runs no task of a paused DAG, a trigger
cannot find out whether its DAG is paused, a triggerer may be down, and no event reports a changed declaration.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.desired_states import find_desired_state, resume, suspend
from sluice.ledger.records.desired_state import SuspensionCause
from sluice.supervision.progress_watch import watch_progress
from sluice.supervision.supervision_decision import SupervisionAction, SupervisionReason
from sluice.supervision.supervisor import SupervisionResult, Supervisor, plan_supervision, supervise
from sluice.supervision.time_limits import LEFT_TO_ITS_TASK

_DUE_AT_ONCE = frozenset(
    {SupervisionAction.CLOSE, SupervisionAction.STOP, SupervisionAction.TAKE_OVER, SupervisionAction.REPLACE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The result for one stream.

    acted: whether `supervise` was called. changed: what was noticed, a phrase each.
    alert: the sentence for a person when the stream has just become stalled or late; empty while it stays so.
    """

    stream: str
    supervised: SupervisionResult
    acted: bool
    changed: tuple[str, ...] = ()
    alert: str = ""


def reconcile(supervisor: Supervisor, wanted: LoadedStream, *, is_paused: bool | None) -> Reconciliation:
    """Reconcile one continuous stream.

    Parameters
    ----------
    is_paused: whether its DAG is paused; unset when Airflow does not know the DAG yet.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    LaunchError: when a driver that must be stopped survives SIGKILL.
    """
    changed = _note_pause(supervisor, wanted, is_paused=is_paused)
    watched = None if supervisor.heads is None else watch_progress(supervisor.ledger, supervisor.heads, wanted)
    alert = watched.judgement.explanation if watched is not None and watched.is_new_trouble else ""
    planned = plan_supervision(wanted, ledger=supervisor.ledger, launcher=supervisor.launcher)
    is_due = _is_due(planned, is_paused=is_paused)
    supervised = supervise(supervisor, wanted) if is_due else planned
    return Reconciliation(stream=wanted.name, supervised=supervised, acted=is_due, changed=changed, alert=alert)


def note_pause(supervisor: Supervisor, stream: str, *, is_paused: bool) -> str | None:
    """Suspend or resume a stream as its DAG is paused or not.

    Returns
    -------
    What that changed, for a person; none when nothing changed.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    is_suspended = find_desired_state(supervisor.ledger, stream).suspension is SuspensionCause.PAUSED
    if is_paused and not is_suspended:
        suspend(supervisor.ledger, stream, SuspensionCause.PAUSED)
        return "its DAG was paused: the stream is to stop"
    if is_suspended and not is_paused:
        resume(supervisor.ledger, stream)
        return "its DAG was unpaused: the stream is to run again"
    return None


def _note_pause(supervisor: Supervisor, wanted: LoadedStream, *, is_paused: bool | None) -> tuple[str, ...]:
    if is_paused is None:
        return ()
    change = note_pause(supervisor, wanted.name, is_paused=is_paused)
    return () if change is None else (change,)


def _is_due(planned: SupervisionResult, *, is_paused: bool | None) -> bool:
    """Whether an action is due that the stream's own task has not taken in its time."""
    decision, seen = planned.decision, planned.seen
    if decision.action in _DUE_AT_ONCE:
        return True
    is_start = decision.action is SupervisionAction.LAUNCH and decision.reason is not SupervisionReason.NEVER_STARTED
    if not is_start or is_paused is not False:
        return False
    ended_at = None if seen.newest_run is None else seen.newest_run.ended_at
    waiting_since = max((at for at in (ended_at, seen.desired.changed_at) if at is not None), default=None)
    return waiting_since is not None and seen.observed_at - waiting_since > LEFT_TO_ITS_TASK
