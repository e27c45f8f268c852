"""The verbs of a person over a stream, each as a plan that can be shown before it is carried out.

The command line and the DAG `stream_control` both call them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UnhealthyError
from sluice.ledger.desired_states import find_desired_state, set_desired_state
from sluice.ledger.records.desired_state import DesiredStateObservation, SuspensionCause
from sluice.ledger.records.run import DesiredState, RunObservation, RunState
from sluice.ledger.runs import ask_to_end, find_run, newest_run
from sluice.supervision.supervision_decision import STOPPED_WITHIN, SupervisionAction, SupervisionReason
from sluice.supervision.supervisor import STOP_GRACE_SECONDS, Supervised, Supervisor, judge, supervise

PLANNED_RUN_ID = "<run id>"
"""What a plan shows in the place of the id that the ledger will give."""

_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One thing that will be done: a sentence, and the argv when a program is started."""

    sentence: str
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlan:
    """What a verb will do to a stream, in order."""

    verb: str
    stream: str
    steps: tuple[PlannedStep, ...]


def plan_start(supervisor: Supervisor, wanted: LoadedStream) -> ControlPlan:
    """What `start_stream` would do now. Nothing is changed.

    Raises
    ------
    LaunchError: when the driver could not be started, because `spark-submit` is not found.
    LedgerError: when the ledger cannot be reached.
    """
    steps = [PlannedStep(sentence=f"Ask that {wanted.name} runs; failures before that are forgiven.")]
    if wanted.declaration.mode == "incremental":
        steps.append(PlannedStep(sentence="It is incremental: its DAG starts the next run when its schedule says."))
    else:
        foreseen = judge(wanted, ledger=supervisor.ledger, launcher=supervisor.launcher, asked=DesiredState.RUNNING)
        is_launch = foreseen.decision.action is SupervisionAction.LAUNCH
        command = (
            supervisor.request_for(wanted, _planned_run(supervisor, wanted, foreseen)).command if is_launch else ()
        )
        sentence = f"{foreseen.decision.action.capitalize()}: {foreseen.decision.explanation}"
        steps.append(PlannedStep(sentence=sentence, command=command))
    return ControlPlan(verb="start", stream=wanted.name, steps=tuple(steps))


def plan_stop(supervisor: Supervisor, wanted: LoadedStream) -> ControlPlan:
    """What `stop_stream` would do now. Nothing is changed.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    steps = [PlannedStep(sentence=f"Ask that {wanted.name} stops; it stays stopped until somebody starts it.")]
    run = newest_run(supervisor.ledger, wanted.name)
    if run is None or not run.is_live:
        steps.append(PlannedStep(sentence="No run is live: there is nothing to wait for."))
        return ControlPlan(verb="stop", stream=wanted.name, steps=tuple(steps))
    seconds = f"{STOPPED_WITHIN.total_seconds():.0f}"
    steps.append(PlannedStep(sentence=f"Wait up to {seconds} s for run {run.run_id}, which finishes its batch."))
    if wanted.declaration.mode == "continuous":
        sentence = f"If it lives then: SIGTERM to its driver, after {STOP_GRACE_SECONDS:.0f} s more SIGKILL."
        steps.append(PlannedStep(sentence=sentence))
    return ControlPlan(verb="stop", stream=wanted.name, steps=tuple(steps))


def plan_show(supervisor: Supervisor, wanted: LoadedStream) -> ControlPlan:
    """How the stream is, and what its supervisor would do now. Nothing is changed.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    run = newest_run(supervisor.ledger, wanted.name)
    told = (
        f"Run {run.run_id}, token {run.token}: {run.state}, launched by {run.launched_by}, log {run.log_file}."
        if run is not None
        else "No run so far."
    )
    if wanted.declaration.mode == "incremental":
        return ControlPlan(verb="show", stream=wanted.name, steps=(PlannedStep(sentence=told),))
    decision = judge(wanted, ledger=supervisor.ledger, launcher=supervisor.launcher).decision
    sentence = f"{decision.action.capitalize()}, {decision.reason}: {decision.explanation}"
    return ControlPlan(
        verb="show", stream=wanted.name, steps=(PlannedStep(sentence=told), PlannedStep(sentence=sentence))
    )


def plan_restart(supervisor: Supervisor, wanted: LoadedStream) -> ControlPlan:
    """What `restart_stream` would do now. Nothing is changed.

    Raises
    ------
    LaunchError: when the driver could not be started, because `spark-submit` is not found.
    LedgerError: when the ledger cannot be reached.
    """
    run = newest_run(supervisor.ledger, wanted.name)
    started = plan_start(supervisor, wanted)
    if run is None or not run.is_live:
        return ControlPlan(verb="restart", stream=wanted.name, steps=started.steps)
    seconds = f"{STOPPED_WITHIN.total_seconds():.0f}"
    steps = (
        PlannedStep(sentence=f"Ask run {run.run_id} to end after its batch; {wanted.name} stays wanted."),
        PlannedStep(sentence=f"Wait up to {seconds} s for it; a driver that lives then is ended."),
        PlannedStep(sentence="Start the stream again, with its declaration as it is now."),
    )
    return ControlPlan(verb="restart", stream=wanted.name, steps=steps)


def plan_reset_breaker(supervisor: Supervisor, wanted: LoadedStream) -> ControlPlan:
    """What `reset_breaker` would do now. Nothing is changed.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    judged = judge(wanted, ledger=supervisor.ledger, launcher=supervisor.launcher)
    steps = (
        PlannedStep(sentence=f"Forgive the failures of {wanted.name} so far. Now: {judged.decision.explanation}"),
        PlannedStep(sentence="Its task starts it at once when it waits for a delay; a paused DAG must be unpaused."),
    )
    return ControlPlan(verb="reset-breaker", stream=wanted.name, steps=steps)


def start_stream(supervisor: Supervisor, wanted: LoadedStream, *, requested_by: str) -> Supervised | None:
    """Ask that a stream runs, and start a continuous one when no driver of it lives.

    Returns
    -------
    Where that left the stream; none for an incremental one, which its DAG runs.

    Raises
    ------
    UnhealthyError: when no driver could be started, or the stream's DAG is paused: that stops it again at once.
    LedgerError: when the ledger cannot be reached.
    """
    if find_desired_state(supervisor.ledger, wanted.name).suspension is SuspensionCause.PAUSED:
        raise UnhealthyError(
            f"Stream {wanted.name} is stopped because its DAG is paused in Airflow.",
            next_step=f"Unpause the DAG {wanted.name}: that starts the stream.",
        )
    set_desired_state(supervisor.ledger, wanted.name, DesiredState.RUNNING, requested_by=requested_by)
    if wanted.declaration.mode == "incremental":
        return None
    supervised = supervise(supervisor, wanted)
    if supervised.run is None:
        raise UnhealthyError(supervised.decision.explanation)
    return supervised


def restart_stream(
    supervisor: Supervisor, wanted: LoadedStream, *, requested_by: str, on_look: Callable[[str], None]
) -> Supervised | None:
    """End the live run between two batches and start the stream anew, with its declaration as it is now.

    The stream stays wanted all the time: whoever dies in between leaves a stream that is started again. An incremental
    stream's run is only ended; its DAG starts the next.

    Returns
    -------
    Where that left the stream; none for an incremental one.

    Raises
    ------
    UnhealthyError: as `start_stream` and `stop_stream` raise it.
    LedgerError: when the ledger cannot be reached.
    """
    run = newest_run(supervisor.ledger, wanted.name)
    if run is not None and run.is_live:
        ask_to_end(supervisor.ledger, run.run_id, because=f"restarted by {requested_by}")
        if wanted.declaration.mode == "incremental":
            _await_increment(supervisor, wanted, on_look=on_look)
        else:
            _await_end_of(supervisor, wanted, run, on_look=on_look)
    return start_stream(supervisor, wanted, requested_by=requested_by)


def reset_breaker(supervisor: Supervisor, wanted: LoadedStream, *, requested_by: str) -> DesiredStateObservation:
    """Forgive a stream's failures: its restarts are counted anew. What was asked of it stays.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    asked = find_desired_state(supervisor.ledger, wanted.name)
    return set_desired_state(supervisor.ledger, wanted.name, asked.desired_state, requested_by=requested_by)


def stop_stream(
    supervisor: Supervisor, wanted: LoadedStream, *, requested_by: str, on_look: Callable[[str], None]
) -> RunObservation | None:
    """Ask that a stream stops, and wait until its run has ended; a driver that does not obey in time is ended.

    The run of an incremental stream is only waited for: it belongs to the Airflow task that started it.

    Parameters
    ----------
    on_look: is told now and then what is waited for.

    Returns
    -------
    The newest run, ended; none when the stream never ran.

    Raises
    ------
    UnhealthyError: when the run does not end, or nobody can tell whether its driver lives.
    LedgerError: when the ledger cannot be reached.
    """
    set_desired_state(supervisor.ledger, wanted.name, DesiredState.STOPPED, requested_by=requested_by)
    if wanted.declaration.mode == "incremental":
        _await_increment(supervisor, wanted, on_look=on_look)
    else:
        _await_driver(supervisor, wanted, on_look=on_look)
    return newest_run(supervisor.ledger, wanted.name)


def _await_driver(supervisor: Supervisor, wanted: LoadedStream, *, on_look: Callable[[str], None]) -> None:
    while True:
        supervised = supervise(supervisor, wanted)
        if supervised.decision.action is SupervisionAction.FINISH:
            return
        if supervised.decision.reason is SupervisionReason.DRIVER_UNKNOWN or supervised.run is None:
            raise UnhealthyError(supervised.decision.explanation)
        on_look(supervised.decision.explanation)
        _has_ended_within(supervisor, supervised.run, supervised.decision.delay or timedelta(seconds=_LOOK_SECONDS))


def _await_end_of(
    supervisor: Supervisor, wanted: LoadedStream, run: RunObservation, *, on_look: Callable[[str], None]
) -> None:
    """Wait until a run that was asked to end has ended; somebody else may have started the next one by then."""
    while find_run(supervisor.ledger, run.run_id).is_live:
        supervised = supervise(supervisor, wanted)
        if supervised.decision.reason is SupervisionReason.DRIVER_UNKNOWN:
            raise UnhealthyError(supervised.decision.explanation)
        on_look(supervised.decision.explanation)
        _has_ended_within(supervisor, run, supervised.decision.delay or timedelta(seconds=_LOOK_SECONDS))


def _await_increment(supervisor: Supervisor, wanted: LoadedStream, *, on_look: Callable[[str], None]) -> None:
    run = newest_run(supervisor.ledger, wanted.name)
    if run is None or not run.is_live:
        return
    on_look(f"Run {run.run_id} was asked to stop and finishes its batch.")
    if not _has_ended_within(supervisor, run, STOPPED_WITHIN):
        raise UnhealthyError(
            f"Run {run.run_id} of {wanted.name} was asked to stop and has not ended; launched by {run.launched_by}.",
            next_step="See its task in Airflow.",
        )


def _has_ended_within(supervisor: Supervisor, run: RunObservation, patience: timedelta) -> bool:
    deadline = time.monotonic() + patience.total_seconds()
    while find_run(supervisor.ledger, run.run_id).is_live:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _planned_run(supervisor: Supervisor, wanted: LoadedStream, foreseen: Supervised) -> RunObservation:
    """The run as it would be admitted."""
    return RunObservation(
        token=1,
        run_id=PLANNED_RUN_ID,
        stream=wanted.name,
        generation=1,
        mode=wanted.declaration.mode,
        state=RunState.LAUNCHING,
        desired_state=DesiredState.RUNNING,
        launched_at=foreseen.seen.observed_at,
        launched_by=supervisor.launched_by,
        declaration_digest=wanted.digest,
    )
