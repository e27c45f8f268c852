"""Runs whose stream is not declared any more, is broken, or has another mode: seen, reported, and ended where due.

A driver reads its declaration once. When the file is deleted, renamed or given another mode, the old driver would run
for ever beside its successor, and no task looks after it. The ledger knows it all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from sluice.declarations.loaded_declarations import STREAM_SUFFIX, Declarations
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.events import Actor, Event, EventAction
from sluice.ledger.run_values import DesiredState, RunObservation
from sluice.ledger.runs import ask_to_end, find_run, newest_run
from sluice.supervision.decide_live_run import decide_about_live_run
from sluice.supervision.stream_observer import observe_stream
from sluice.supervision.supervision_events import command_event
from sluice.supervision.supervisor import SupervisionResult, Supervisor, act_on, has_ended_within
from sluice.supervision.time_limits import STOP_GRACE_SECONDS, STOPPED_WITHIN

ENDED_AFTER = timedelta(seconds=60)
"""How long a declaration must be missing before its run is asked to end: a folder that is being replaced, as by a git
checkout, is complete again within seconds."""

_MOST_STEPS = 3
"""Looks of one call: a driver that does not stop is ended, its run closed, and observed once more."""


class OrphanReason(StrEnum):
    """Why a run does not fit what is declared."""

    UNDECLARED = "undeclared"
    BROKEN = "declaration broken"
    MODE_CHANGED = "mode changed"


_BECAUSE = {
    OrphanReason.UNDECLARED: "no file declares its stream any more",
    OrphanReason.BROKEN: "the declaration of its stream is broken",
    OrphanReason.MODE_CHANGED: "its stream is declared with another mode now",
}
"""Why a run is asked to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedRun:
    """The newest run of a stream that does not fit what is declared.

    may_end: whether it is to end; a run whose file is broken continues until the file is corrected or deleted.
    """

    run: RunObservation
    reason: OrphanReason
    explanation: str
    may_end: bool

    @property
    def stream(self) -> str:
        """The name of the stream in the ledger."""
        return self.run.stream


def find_orphaned_runs(declarations: Declarations, newest: Iterable[RunObservation]) -> tuple[OrphanedRun, ...]:
    """The newest runs that do not fit what is declared now. Pure.

    While a folder holds no declaration at all, nothing is known about what is declared, and no run is to end.

    Parameters
    ----------
    newest: the newest run of every stream that ever ran.
    """
    is_known = bool(declarations.stream_names)
    return tuple(orphan for run in newest if (orphan := _orphan_of(declarations, run, is_known=is_known)) is not None)


def _orphan_of(declarations: Declarations, run: RunObservation, *, is_known: bool) -> OrphanedRun | None:
    name = run.stream
    declared = declarations.streams.get(name)
    if declared is None and name in declarations.stream_names:
        return _broken(declarations, run)
    if not run.is_live:
        return None
    lives = f"run {run.run_id} of the {run.mode} stream {name} still lives"
    if declared is None:
        text = (
            f"No file in {declarations.folder} declares {name} any more, and {lives}. It ends after its batch; to keep "
            "it, restore its declaration."
        )
        return OrphanedRun(run=run, reason=OrphanReason.UNDECLARED, explanation=text, may_end=is_known)
    if run.mode == declared.declaration.mode or run.mode != "continuous":
        return None  # the supervision of a continuous stream replaces a run of an increment itself
    text = f"{name} is declared {declared.declaration.mode} now, and {lives}. It ends after its batch."
    return OrphanedRun(run=run, reason=OrphanReason.MODE_CHANGED, explanation=text, may_end=True)


def _broken(declarations: Declarations, run: RunObservation) -> OrphanedRun:
    file_name = f"{run.stream}{STREAM_SUFFIX}"
    problems = [problem for problem in declarations.problems if problem.location.file.name == file_name]
    state = "continues with its previous declaration" if run.is_live else "has ended, and none is started"
    why = str(problems[0]).replace("\n", " ") if problems else "another declaration contradicts it"
    text = f"The declaration of {run.stream} is broken; run {run.run_id} {state}: {why}"
    return OrphanedRun(run=run, reason=OrphanReason.BROKEN, explanation=text, may_end=False)


def look_after_orphan(supervisor: Supervisor, orphan: OrphanedRun, *, missing_for: timedelta) -> None:
    """Ask a run to end when that is due, and end its driver when it does not in time. Called each minute.

    A run whose driver is gone is closed, whatever the reason: no task does it.

    Parameters
    ----------
    missing_for: how long the run is known to fit no declaration.

    Raises
    ------
    LaunchError: when a driver survives SIGKILL.
    """
    if orphan.may_end and missing_for >= ENDED_AFTER:
        because = _BECAUSE[orphan.reason]
        ask_to_end(supervisor.ledger, orphan.run.run_id, because=because, event=_event(supervisor, orphan))
    _turn(supervisor, orphan.stream)


def _event(supervisor: Supervisor, orphan: OrphanedRun) -> Event:
    return Event(
        name=orphan.stream,
        actor=Actor.component(supervisor.launched_by),
        action=EventAction.END_RUN,
        reason=str(orphan.reason).replace(" ", "_"),
        explanation=orphan.explanation,
    )


def stop_known_run(supervisor: Supervisor, stream: str, *, requested_by: str) -> RunObservation | None:
    """Stop a stream that only the ledger knows, and wait for its driver; one that does not obey in time is ended.

    Returns
    -------
    Its newest run; none when it never ran.

    Raises
    ------
    LaunchError: when a driver survives SIGKILL.
    """
    event = command_event(EventAction.STOP, stream, by=requested_by)
    set_desired_state(supervisor.ledger, stream, DesiredState.STOPPED, requested_by=requested_by, event=event)
    run = newest_run(supervisor.ledger, stream)
    if run is None or not run.is_live:
        return run
    if not has_ended_within(supervisor.ledger, run.run_id, STOPPED_WITHIN.total_seconds()):
        _turn(supervisor, stream)
        has_ended_within(supervisor.ledger, run.run_id, STOP_GRACE_SECONDS)
    return find_run(supervisor.ledger, run.run_id)


def _turn(supervisor: Supervisor, stream: str) -> None:
    """Observe, decide and act on the live run of a stream, without its declaration."""
    for _ in range(_MOST_STEPS):
        seen = observe_stream(supervisor.ledger, supervisor.launcher, stream)
        if seen.newest_run is None or not seen.newest_run.is_live:
            return
        decided = decide_about_live_run(seen, seen.newest_run, seen.observed_at)
        if not act_on(supervisor, SupervisionResult(decision=decided, seen=seen, run=seen.newest_run)):
            return
