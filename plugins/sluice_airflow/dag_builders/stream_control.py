"""The DAG of the on-call: what the command line does to a stream, by a form in Airflow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from sluice.declarations.load_declarations import Declarations

if TYPE_CHECKING:
    from sluice.declarations.loaded_declarations import LoadedStream
    from sluice.ledger.connection import Ledger
    from sluice.supervision.stream_commands import ControlPlan
    from sluice.supervision.stream_reset import ResetPlan
    from sluice.supervision.supervisor import Supervisor
    from sluice_airflow.composition import Deployment

_log = logging.getLogger(__name__)

DAG_ID = "stream_control"
PLAN_TASK, CARRY_OUT_TASK = "plan", "carry_out"
APPROVE_TASK, CARRY_OUT_APPROVED_TASK = "approve", "carry_out_approved"
APPROVED_WITHIN = timedelta(days=1)
"""How long a person may take to answer; then it counts as rejected. A plan of yesterday is no plan for today."""

_PLAN, _LEAVES = "plan", "leaves"
"""What the task `plan` hands on: the plan's text, and the generation that a reset leaves behind."""


class ControlVerb(StrEnum):
    """What can be done to a stream; the same words as `sluice stream …`."""

    SHOW = "show"
    START = "start"
    STOP = "stop"
    RESTART = "restart"
    RESET = "reset"
    RESET_BREAKER = "reset-breaker"


_DOCUMENT = """\
# stream_control
Does to a stream what `sluice stream …` does, for a person who has Airflow and no terminal. **Trigger** it and choose.

| verb | what it does |
|---|---|
| `show` | tells how the stream is and what its supervisor would do now; changes nothing |
| `start` | asks that it runs, and forgives its failures. A stream whose DAG is paused is started by unpausing the DAG |
| `stop` | asks that it stops; it finishes its batch and stays stopped until somebody starts it |
| `restart` | ends its driver between two batches and starts it with its declaration as it is now |
| `reset` | leaves the checkpoint of a stopped stream behind: its next start reads anew from its declared beginning |
| `reset-breaker` | forgives its failures, so that it is started again at once |

The task `plan` always tells first what will be done; with **dry_run** that is all. A `reset` then waits at the task
`approve`, which shows the plan, until a person approves or rejects it under *Required Actions*; what nobody answers
within a day is rejected, and a rejected one changes nothing. The other verbs do not ask. Clearing a task does its verb
once more, which is safe: what was approved is done once.
"""


def stream_control_dag(declarations: Declarations) -> DAG:
    """Build the DAG: `plan`, then `carry_out`, or for what asks first `approve` and `carry_out_approved`."""
    from airflow.providers.standard.operators.hitl import ApprovalOperator

    streams = sorted(declarations.streams)
    with DAG(
        DAG_ID,
        description="Shows, starts, stops, restarts and resets a stream",
        doc_md=_DOCUMENT,
        schedule=None,
        catchup=False,
        is_paused_upon_creation=False,
        tags=["platform", "streams"],
        default_args={"owner": "sluice"},
        params=_params(streams),
        auto_register=False,
    ) as dag:

        @task.branch(task_id=PLAN_TASK, retries=0)
        def plan(params: Mapping[str, Any] | None = None) -> str:
            """Tell what the verb will do, and say whether it asks first. Nothing is changed."""
            return tell_plan(params or {}, asked_by=_asked_by())

        @task(task_id=CARRY_OUT_TASK, retries=0)
        def carry_out(params: Mapping[str, Any] | None = None) -> None:
            """Do it, unless it is a dry run."""
            do_verb(params or {}, asked_by=_asked_by())

        @task(task_id=CARRY_OUT_APPROVED_TASK, retries=0)
        def carry_out_approved(params: Mapping[str, Any] | None = None) -> None:
            """Do what was approved, once."""
            do_approved(params or {}, asked_by=f"{_asked_by()}, approved by {_approver()}")

        approve = ApprovalOperator(
            task_id=APPROVE_TASK,
            subject="{{ params.verb }} {{ params.stream }}?",
            body=f"{{{{ ti.xcom_pull(task_ids='{PLAN_TASK}', key='{_PLAN}') }}}}",
            defaults=ApprovalOperator.REJECT,
            response_timeout=APPROVED_WITHIN,
            retries=0,
        )
        planned = plan()
        planned >> carry_out()
        planned >> approve >> carry_out_approved()
    return dag


def tell_plan(params: Mapping[str, Any], *, asked_by: str) -> str:
    """Write into the log, step by step, what the chosen verb will do to the chosen stream.

    Returns
    -------
    The task that follows: a reset that is not a dry run asks first.

    Raises
    ------
    AirflowFailException: when the stream is not declared any more, the ledger does not answer, or a reset is refused.
    """
    if params["verb"] != ControlVerb.RESET:
        _with_stream(params, asked_by=asked_by, work=_tell)
        return CARRY_OUT_TASK
    _on_deployment(params, work=_tell_reset)
    return CARRY_OUT_TASK if params["dry_run"] else APPROVE_TASK


def do_approved(params: Mapping[str, Any], *, asked_by: str) -> None:
    """Carry an approved reset out, as it was planned: when the stream was reset meanwhile, nothing is done.

    Raises
    ------
    AirflowFailException: when it cannot be carried out; the message says why.
    """
    from sluice.supervision.stream_reset import reset_stream

    leaving = int(get_current_context()["ti"].xcom_pull(task_ids=PLAN_TASK, key=_LEAVES))

    def reset(deployment: Deployment, ledger: Ledger, stream: LoadedStream) -> None:
        opened = reset_stream(ledger, stream, deployment.settings, leaving=leaving, asked_by=asked_by)
        _log.info("generation %d of %s is open, checkpoint %s", opened.generation, stream.name, opened.checkpoint)

    _on_deployment(params, work=reset)


def do_verb(params: Mapping[str, Any], *, asked_by: str) -> None:
    """Carry the chosen verb out; a dry run and `show` change nothing.

    Raises
    ------
    AirflowFailException: when it cannot be carried out; the message says why.
    """
    if params["dry_run"] or params["verb"] == ControlVerb.SHOW:
        _log.info("Nothing was changed.")
        return
    _with_stream(params, asked_by=asked_by, work=_do)


def _params(streams: list[str]) -> dict[str, Param]:
    return {
        "stream": Param(None, type="string", enum=streams or [""], title="Stream", section="What"),
        "verb": Param(
            str(ControlVerb.SHOW), type="string", enum=[str(verb) for verb in ControlVerb], title="Verb", section="What"
        ),
        "dry_run": Param(True, type="boolean", title="Dry run", description_md="Only tell what would be done."),
    }


def _with_stream(
    params: Mapping[str, Any], *, asked_by: str, work: Callable[[Supervisor, LoadedStream, ControlVerb, str], None]
) -> None:
    def supervised(deployment: Deployment, ledger: Ledger, stream: LoadedStream) -> None:
        work(deployment.supervisor(ledger, launched_by=asked_by), stream, ControlVerb(params["verb"]), asked_by)

    _on_deployment(params, work=supervised)


def _on_deployment(params: Mapping[str, Any], *, work: Callable[[Deployment, Ledger, LoadedStream], None]) -> None:
    from sluice.declarations.load_declarations import load_declarations
    from sluice.errors import SluiceError
    from sluice_airflow.composition import load_deployment

    deployment = load_deployment()
    try:
        name = params["stream"]
        stream = load_declarations(deployment.settings.pipelines, only=name).stream(name)
        with deployment.open_ledger() as ledger:
            work(deployment, ledger, stream)
    except SluiceError as error:
        raise AirflowFailException(str(error)) from error


def _tell(supervisor: Supervisor, stream: LoadedStream, verb: ControlVerb, _: str) -> None:
    _log_steps(_plan(supervisor, stream, verb))


def _tell_reset(deployment: Deployment, ledger: Ledger, stream: LoadedStream) -> None:
    """Tell the plan of a reset, and hand it on to the task that shows it and to the one that carries it out."""
    from sluice.supervision.stream_reset import plan_reset

    plan = plan_reset(ledger, stream, deployment.settings)
    _log_steps(plan)
    task_instance = get_current_context()["ti"]
    task_instance.xcom_push(_PLAN, _as_markdown(plan))
    task_instance.xcom_push(_LEAVES, plan.leaves)


def _log_steps(plan: ControlPlan) -> None:
    for number, step in enumerate(plan.steps, start=1):
        _log.info("%s %s, step %d: %s", plan.verb, plan.stream, number, step.sentence)


def _as_markdown(plan: ResetPlan) -> str:
    return "\n".join(f"{number}. {step.sentence}" for number, step in enumerate(plan.steps, start=1))


def _plan(supervisor: Supervisor, stream: LoadedStream, verb: ControlVerb) -> ControlPlan:
    from sluice.supervision.stream_commands import plan_reset_breaker, plan_restart, plan_show, plan_start, plan_stop

    plans = {
        ControlVerb.SHOW: plan_show,
        ControlVerb.START: plan_start,
        ControlVerb.STOP: plan_stop,
        ControlVerb.RESTART: plan_restart,
        ControlVerb.RESET_BREAKER: plan_reset_breaker,
    }
    return plans[verb](supervisor, stream)


def _do(supervisor: Supervisor, stream: LoadedStream, verb: ControlVerb, asked_by: str) -> None:
    from sluice.supervision.stream_commands import reset_breaker, restart_stream, start_stream, stop_stream

    if verb is ControlVerb.START:
        start_stream(supervisor, stream, requested_by=asked_by)
    elif verb is ControlVerb.STOP:
        stop_stream(supervisor, stream, requested_by=asked_by, on_look=_log.info)
    elif verb is ControlVerb.RESTART:
        restart_stream(supervisor, stream, requested_by=asked_by, on_look=_log.info)
    elif verb is ControlVerb.RESET_BREAKER:
        reset_breaker(supervisor, stream, requested_by=asked_by)
    _tell(supervisor, stream, ControlVerb.SHOW, asked_by)


def _asked_by() -> str:
    """Who asked, in the words of the ledger."""
    context = get_current_context()
    person = getattr(context["dag_run"], "triggering_user_name", None) or "somebody"
    return f"airflow: {DAG_ID}, {person}"


def _approver() -> str:
    """Who answered, as Airflow knows them."""
    answer = get_current_context()["ti"].xcom_pull(task_ids=APPROVE_TASK) or {}
    user = answer.get("responded_by_user") or {}
    return str(user.get("name") or user.get("id") or "somebody")
