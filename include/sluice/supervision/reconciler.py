"""Brings the wanted and the seen together for streams that nobody else looks after; the reconciler does it each minute.

A stream's own task answers within seconds, but it is not always there: Airflow runs nothing of a paused DAG, a trigger
cannot ask whether its DAG is paused, a triggerer may be down, and nobody tells a task that its declaration has changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.desired_states import find_desired_state, resume, suspend
from sluice.ledger.records.desired_state import SuspensionCause
from sluice.supervision.progress_watch import watch_progress
from sluice.supervision.supervision_decision import SupervisionAction, SupervisionReason
from sluice.supervision.supervisor import Supervised, Supervisor, judge, supervise

LEFT_TO_ITS_TASK = timedelta(seconds=60)
"""How long after a run's end, or after it was asked for, the start of the next is left to the stream's own task."""

_DUE_AT_ONCE = frozenset(
    {SupervisionAction.CLOSE, SupervisionAction.STOP, SupervisionAction.TAKE_OVER, SupervisionAction.REPLACE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """What became of one stream.

    acted: whether anything was done. changed: what was noticed, a phrase each. alert: the sentence for a person when it
    has just become stalled or late; empty while it stays so.
    """

    stream: str
    supervised: Supervised
    acted: bool
    changed: tuple[str, ...] = ()
    alert: str = ""


def reconcile(supervisor: Supervisor, wanted: LoadedStream, *, is_paused: bool | None) -> Reconciled:
    """Look after one continuous stream.

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
    judged = judge(wanted, ledger=supervisor.ledger, launcher=supervisor.launcher)
    is_due = _is_due(judged, is_paused=is_paused)
    supervised = supervise(supervisor, wanted) if is_due else judged
    return Reconciled(stream=wanted.name, supervised=supervised, acted=is_due, changed=changed, alert=alert)


def note_pause(supervisor: Supervisor, stream: str, *, is_paused: bool) -> str | None:
    """Tell the ledger whether the DAG of a stream is paused. Returns what that changed, for a person.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    is_held = find_desired_state(supervisor.ledger, stream).suspension is SuspensionCause.PAUSED
    if is_paused and not is_held:
        suspend(supervisor.ledger, stream, SuspensionCause.PAUSED)
        return "its DAG was paused: the stream is to stop"
    if is_held and not is_paused:
        resume(supervisor.ledger, stream)
        return "its DAG was unpaused: the stream is to go on"
    return None


def _note_pause(supervisor: Supervisor, wanted: LoadedStream, *, is_paused: bool | None) -> tuple[str, ...]:
    if is_paused is None:
        return ()
    change = note_pause(supervisor, wanted.name, is_paused=is_paused)
    return () if change is None else (change,)


def _is_due(judged: Supervised, *, is_paused: bool | None) -> bool:
    """Whether something is to be done that the stream's own task has not done in its time."""
    decision, seen = judged.decision, judged.seen
    if decision.action in _DUE_AT_ONCE:
        return True
    is_start = decision.action is SupervisionAction.LAUNCH and decision.reason is not SupervisionReason.NEVER_STARTED
    if not is_start or is_paused is not False:
        return False
    ended_at = None if seen.newest_run is None else seen.newest_run.ended_at
    waiting_since = max((at for at in (ended_at, seen.desired.changed_at) if at is not None), default=None)
    return waiting_since is not None and seen.observed_at - waiting_since > LEFT_TO_ITS_TASK
