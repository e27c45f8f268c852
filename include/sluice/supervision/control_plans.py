"""What a person's commands over a stream would do: plans, shown by `--dry-run` and by the DAG `stream_control`."""

from __future__ import annotations

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.batches import newest_batch
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.desired_states import find_desired_state
from sluice.ledger.generations import find_generation
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.runs import newest_run
from sluice.ledger.stream_records import StreamRecords
from sluice.operations import OperationPlan, OperationVerb, PlannedStep, steps_of
from sluice.settings import Settings
from sluice.sources.table_starts import observe_starts
from sluice.supervision.limits import STOP_GRACE_SECONDS, STOPPED_WITHIN
from sluice.supervision.reset_effects import describe_inputs
from sluice.supervision.supervision_values import SupervisionAction
from sluice.supervision.supervisor import SupervisionResult, Supervisor, plan_supervision

PLANNED_RUN_ID = "<run id>"
"""Stands in a plan for the id that the ledger will assign."""


ControlPlan = OperationPlan[None]
"""Of a command that only asks something of a supervisor: nothing is at stake."""


def plan_start(supervisor: Supervisor, wanted: LoadedStream, *, shows_command: bool = True) -> ControlPlan:
    """What `start_stream` would do now. Nothing is changed.

    Parameters
    ----------
    shows_command: whether the driver's command line is part of the plan. It needs what starts drivers to be installed
        in this process.

    Raises
    ------
    LaunchError: when the driver could not be started, because `spark-submit` is not found.
    """
    steps = [PlannedStep(sentence=f"Ask that {wanted.name} runs; this resets its failure count.")]
    if wanted.declaration.mode == "incremental":
        steps.append(PlannedStep(sentence="It is incremental: its DAG starts the next run when its schedule says."))
    else:
        foreseen = plan_supervision(
            wanted, ledger=supervisor.ledger, launcher=supervisor.launcher, requested=DesiredState.RUNNING
        )
        is_launch = shows_command and foreseen.decision.action is SupervisionAction.LAUNCH
        command = (
            supervisor.request_for(wanted, _planned_run(supervisor, wanted, foreseen)).command if is_launch else ()
        )
        sentence = f"{foreseen.decision.action.capitalize()}: {foreseen.decision.explanation}"
        steps.append(PlannedStep(sentence=sentence, command=command))
        steps.extend(steps_of(note) if (note := note_of_paused_dag(foreseen.seen)) else ())
    return _plan(supervisor.ledger, OperationVerb.START, wanted.name, *steps)


def note_of_paused_dag(seen: StreamRecords, *, runs_by_schedule: bool = False) -> str:
    """What a person who starts a stream should know when its DAG is paused; empty when it was not when last seen."""
    if seen.dag_pause is None or not seen.dag_pause.is_paused:
        return ""
    if runs_by_schedule:
        return f"The DAG of {seen.stream} is paused in Airflow, so nothing runs it. Unpause it."
    return (
        f"The DAG of {seen.stream} is paused in Airflow: only the reconciler restarts the stream, within a minute or "
        "two, and the DAG has no run that could be red. Unpause it."
    )


def with_beginning(plan: ControlPlan, ledger: Ledger, wanted: LoadedStream, settings: Settings) -> ControlPlan:
    """A plan of a start, with what is read if it is the first one: where each input begins, and how much that is."""
    generation = find_generation(ledger, wanted.name)
    if generation is not None and newest_batch(ledger, wanted.name, generation=generation.generation) is not None:
        return plan
    observed = observe_starts(wanted.declaration, settings, now=database_time(ledger))
    return plan.followed_by(*describe_inputs(wanted.declaration, observed))


def plan_stop(supervisor: Supervisor, name: str, *, mode: str | None) -> ControlPlan:
    """What `stop_stream` or `stop_known_run` would do now. Nothing is changed.

    Parameters
    ----------
    mode: as the stream is declared; unset: only the ledger knows it.
    """
    sentences = [f"Ask that {name} stops; it stays stopped until it is started again."]
    run = newest_run(supervisor.ledger, name)
    if run is None or not run.is_live:
        sentences.append("No run is live: there is nothing to wait for.")
        return _plan(supervisor.ledger, OperationVerb.STOP, name, *steps_of(*sentences))
    seconds = f"{STOPPED_WITHIN.total_seconds():.0f}"
    sentences.append(f"Wait up to {seconds} s for run {run.run_id}, which finishes its batch.")
    if mode != "incremental":
        sentences.append(
            f"If it is still alive then: SIGTERM to its driver, after {STOP_GRACE_SECONDS:.0f} s more SIGKILL."
        )
    return _plan(supervisor.ledger, OperationVerb.STOP, name, *steps_of(*sentences))


def plan_show(supervisor: Supervisor, wanted: LoadedStream) -> ControlPlan:
    """The newest run of the stream, and what its supervisor would do now. Nothing is changed."""
    run = newest_run(supervisor.ledger, wanted.name)
    newest = (
        f"Run {run.run_id}, token {run.token}: {run.state}, launched by {run.launched_by} with Sluice "
        f"{run.version or 'of an unknown version'}, log {run.log_file}."
        if run is not None
        else "No run so far."
    )
    if wanted.declaration.mode == "incremental":
        return _plan(supervisor.ledger, OperationVerb.SHOW, wanted.name, *steps_of(newest))
    decision = plan_supervision(wanted, ledger=supervisor.ledger, launcher=supervisor.launcher).decision
    sentence = f"{decision.action.capitalize()}, {decision.reason}: {decision.explanation}"
    return _plan(supervisor.ledger, OperationVerb.SHOW, wanted.name, *steps_of(newest, sentence))


def plan_restart(supervisor: Supervisor, wanted: LoadedStream, *, shows_command: bool = True) -> ControlPlan:
    """What `restart_stream` would do now. Nothing is changed.

    Parameters
    ----------
    shows_command: as `plan_start`.

    Raises
    ------
    LaunchError: when the driver could not be started, because `spark-submit` is not found.
    """
    run = newest_run(supervisor.ledger, wanted.name)
    started = plan_start(supervisor, wanted, shows_command=shows_command)
    if run is None or not run.is_live:
        return _plan(supervisor.ledger, OperationVerb.RESTART, wanted.name, *started.steps)
    seconds = f"{STOPPED_WITHIN.total_seconds():.0f}"
    steps = steps_of(
        f"Ask run {run.run_id} to end after its batch; the desired state of {wanted.name} stays.",
        f"Wait up to {seconds} s for it; a driver that is still alive then is ended.",
        "Start the stream again, with its declaration as it is now.",
    )
    return _plan(supervisor.ledger, OperationVerb.RESTART, wanted.name, *steps)


def plan_reset_breaker(supervisor: Supervisor, wanted: LoadedStream) -> ControlPlan:
    """What `reset_breaker` would do now. Nothing is changed."""
    planned = plan_supervision(wanted, ledger=supervisor.ledger, launcher=supervisor.launcher)
    steps = steps_of(
        f"Reset the failure count of {wanted.name}. Now: {planned.decision.explanation}",
        "Its task starts it at once when it waits for a delay; a paused DAG must be unpaused.",
    )
    return _plan(supervisor.ledger, OperationVerb.RESET_BREAKER, wanted.name, *steps)


def _plan(ledger: Ledger, verb: OperationVerb, stream: str, *steps: PlannedStep) -> ControlPlan:
    """The plan, which is another one when somebody has asked something of the stream since. What its driver does
    meanwhile makes no other plan: one that crashes each minute can still be stopped."""
    desired = find_desired_state(ledger, stream)
    evidence = {"desired_state": str(desired.effective_state), "changed_at": desired.changed_at}
    return OperationPlan(verb=verb, subject=stream, seen=None, steps=steps, evidence=evidence)


def _planned_run(supervisor: Supervisor, wanted: LoadedStream, foreseen: SupervisionResult) -> RunObservation:
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
