"""What the tasks of the DAG `stream_control` do when they run: show a plan, carry a command out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import SluiceError, UsageError
from sluice.ledger.connection import Ledger
from sluice.ledger.control_requests import find_control_request, use_control_request
from sluice.ledger.control_values import ControlRequest
from sluice.ledger.held_batches import HeldBatch
from sluice.operations import OperationPlan, OperationVerb
from sluice.positions.repair_stream import plan_repair, repair_stream
from sluice.processes.deadline import wait_until
from sluice.publication.batch_rejection import Rejection, reject
from sluice.publication.held_decisions import (
    BATCH_VERBS,
    RELEASES,
    decide,
    holds_batch,
    plan_about_batch,
    plan_decision,
)
from sluice.supervision.control_plans import (
    ControlPlan,
    plan_reset_breaker,
    plan_restart,
    plan_show,
    plan_start,
    plan_stop,
    with_beginning,
)
from sluice.supervision.stream_commands import reset_breaker, restart_stream, start_stream, stop_stream
from sluice.supervision.stream_reset import plan_reset, reset_stream
from sluice.supervision.supervisor import Supervisor
from sluice.tables.catalog import open_catalog
from sluice_airflow.adapters.control_routes import with_digest
from sluice_airflow.composition import Deployment, load_deployment
from sluice_airflow.tasks.control_positions import ADOPTIONS, adopt_for, plan_back, plan_for, take_back

_log = logging.getLogger(__name__)

PLAN_TEXT, BATCH, DIGEST = "plan", "batch", "digest"
"""The XComs of the task `plan`: the text of what is approved, the batch that a rejection is of, and the digest of
that plan."""

UNKNOWN_PERSON = "somebody"
"""Whom Airflow does not name."""

REQUEST_LIVES = timedelta(hours=1)
"""How long after it was triggered a request is carried out: a run may wait in a queue, and a plan gets out of date."""

ANSWER_LIVES = timedelta(days=1, hours=1)
"""The same for what a person has to approve, for which the DAG gives them a day."""

_RECORDED_WITHIN_SECONDS = 30.0
"""How much later than Airflow's own the ledger may have an answer; it takes milliseconds."""

_PLANS: Mapping[str, Callable[[Supervisor, LoadedStream], ControlPlan]] = {
    "show": plan_show,
    "start": plan_start,
    "stop": lambda supervisor, stream: plan_stop(supervisor, stream.name, mode=stream.declaration.mode),
    "restart": plan_restart,
    "reset-breaker": plan_reset_breaker,
}

_COMMANDS: Mapping[str, Callable[[Supervisor, LoadedStream, str], object]] = {
    "start": lambda supervisor, stream, person: start_stream(supervisor, stream, requested_by=person),
    "stop": lambda supervisor, stream, person: stop_stream(supervisor, stream, requested_by=person, on_look=_log.info),
    "restart": lambda supervisor, stream, person: restart_stream(
        supervisor, stream, requested_by=person, on_look=_log.info
    ),
    "reset-breaker": lambda supervisor, stream, person: reset_breaker(supervisor, stream, requested_by=person),
}


def show_plan(params: Mapping[str, Any], *, dag_id: str) -> None:
    """Write into the log, step by step, what the chosen verb will do to the chosen stream.

    The plan of a reset, repair, rewind, adoption or rejection also goes to the task that shows it for approval.

    Raises
    ------
    AirflowFailException: when the stream is not declared any more, the ledger does not answer, or the verb is refused.
    """

    def show(deployment: Deployment, ledger: Ledger, stream: LoadedStream) -> None:
        if params["verb"] in _APPROVED:
            _show_approved(_APPROVED[params["verb"]](deployment, ledger, stream))
        elif params["verb"] == OperationVerb.REWIND:
            _show_approved(plan_back(deployment, ledger, stream, params.get("batch")))
        elif params["verb"] in BATCH_VERBS:
            _show_batch_plan(deployment, ledger, stream, params)
        else:
            supervisor = deployment.supervisor(ledger, launched_by=requesting_user(dag_id))
            plan = _PLANS[params["verb"]](supervisor, stream)
            is_start = params["verb"] == "start"
            _log_steps(with_beginning(plan, ledger, stream, deployment.settings) if is_start else plan)

    _with_stream(params, show)


def needs_approval(params: Mapping[str, Any]) -> bool:
    """Whether the chosen verb waits for the answer of a person: a reset, a repair, a rewind, the adoption of a table,
    and a rejection where another must approve."""
    if params["dry_run"]:
        return False
    is_about_rows = params["verb"] in BATCH_VERBS
    is_of_a_position = params["verb"] in _APPROVED or params["verb"] == OperationVerb.REWIND
    return is_of_a_position or (is_about_rows and load_deployment().settings.approval_by_another)


def carry_out(params: Mapping[str, Any], *, dag_id: str, plan_task: str) -> None:
    """Carry the chosen verb out; a dry run and `show` change nothing.

    Raises
    ------
    AirflowFailException: when it cannot be carried out; the message says why.
    """
    if params["dry_run"] or params["verb"] == "show":
        _log.info("Nothing was changed.")
        return

    def act(deployment: Deployment, ledger: Ledger, stream: LoadedStream) -> None:
        if params["verb"] in BATCH_VERBS and deployment.settings.approval_by_another:
            raise UsageError(
                "This deployment needs the approval of another person for that (SLUICE_APPROVAL_BY_ANOTHER).",
                next_step="Trigger it again, and let another person approve it.",
            )
        request = _taken(ledger, params, within=REQUEST_LIVES)
        person = _named(dag_id, request.person)
        supervisor = deployment.supervisor(ledger, launched_by=person)
        if params["verb"] in BATCH_VERBS:
            number = int(_of_plan(plan_task, BATCH)) if request.batch is None else request.batch
            planned = request.plan_digest or str(_of_plan(plan_task, DIGEST))
            _settle_batch(deployment, ledger, stream, request, number=number, planned=planned, asked_by=person)
        if (command := _COMMANDS.get(params["verb"])) is not None:  # others are carried out once approved
            command(supervisor, stream, person)
        _log_steps(plan_show(supervisor, stream))

    _with_stream(params, act)


def carry_out_approved(params: Mapping[str, Any], *, dag_id: str) -> None:
    """Carry out as it was shown what was approved: a reset, repair, rewind, adoption or rejection. Nothing is done when
    it is out of date.

    Raises
    ------
    AirflowFailException: when it cannot be carried out; the message says why.
    """

    def act(deployment: Deployment, ledger: Ledger, stream: LoadedStream) -> None:
        _await_answer(ledger)
        request = _taken(ledger, params, within=ANSWER_LIVES, must_be_approved=True)
        if deployment.settings.approval_by_another:
            require_another_person(request)
        persons = f"{_named(dag_id, request.person)}, approved by {request.approver}"
        if params["verb"] in BATCH_VERBS:
            plan = _batch_plan(deployment, ledger, stream, params["verb"], request.batch)
            plan.require_same(request.approved_digest)
            number = plan.seen.key.batch
            _settle_batch(deployment, ledger, stream, request, number=number, planned=plan.digest, asked_by=persons)
            return
        planned = request.approved_digest
        if params["verb"] == OperationVerb.REPAIR:
            catalog = open_catalog(deployment.settings)
            _log_steps(repair_stream(ledger, catalog, stream, deployment.settings, planned=planned, asked_by=persons))
            return
        if params["verb"] == OperationVerb.REWIND:
            _log_steps(take_back(deployment, ledger, stream, request.batch, planned=planned, asked_by=persons))
            return
        if params["verb"] in ADOPTIONS:
            way = ADOPTIONS[params["verb"]]
            _log_steps(adopt_for(deployment, ledger, stream, way, planned=planned, asked_by=persons))
            return
        opened = reset_stream(ledger, stream, deployment.settings, planned=planned, asked_by=persons)
        _log.info("generation %d of %s is open, checkpoint %s", opened.generation, stream.name, opened.checkpoint)

    _with_stream(params, act)


def _run_id() -> str:
    return str(get_current_context()["dag_run"].run_id)


def _taken(
    ledger: Ledger, params: Mapping[str, Any], *, within: timedelta, must_be_approved: bool = False
) -> ControlRequest:
    """The request of this run, which is used from now on."""
    return use_control_request(
        ledger,
        _run_id(),
        stream=params["stream"],
        verb=params["verb"],
        within=within,
        must_be_approved=must_be_approved,
    )


def _await_answer(ledger: Ledger) -> None:
    """Wait for the answer that the API server records while Airflow already continues; without one nothing is taken."""
    run_id = _run_id()
    wait_until(
        lambda: find_control_request(ledger, run_id),
        lambda request: request is None or request.answered_at is not None,
        seconds=_RECORDED_WITHIN_SECONDS,
        poll_seconds=0.5,
    )


def requesting_user(dag_id: str) -> str:
    """The person who triggered the DAG run first, as Airflow names them: for what changes nothing."""
    name = getattr(get_current_context()["dag_run"], "triggering_user_name", None)
    return _named(dag_id, name or UNKNOWN_PERSON)


def _named(dag_id: str, person: str) -> str:
    """A person as the ledger names them."""
    return f"airflow: {dag_id}, {person}"


def require_another_person(request: ControlRequest) -> None:
    """Require that two persons agreed.

    Raises
    ------
    UsageError: when they are one person.
    """
    if request.approver_id in (None, request.person_id):
        raise UsageError(
            f"It was requested by {request.person} and approved by {request.approver or UNKNOWN_PERSON}, "
            "and this deployment needs the approval of another person (SLUICE_APPROVAL_BY_ANOTHER).",
            next_step="Trigger it again, and let another person approve it.",
        )


def _with_stream(params: Mapping[str, Any], work: Callable[[Deployment, Ledger, LoadedStream], None]) -> None:
    deployment = load_deployment()
    try:
        name = params["stream"]
        stream = load_declarations(deployment.settings.pipelines, only=name).stream(name)
        with deployment.open_owned_ledger() as ledger:
            work(deployment, ledger, stream)
    except SluiceError as error:
        raise AirflowFailException(str(error)) from error


def _plan_reset(deployment: Deployment, ledger: Ledger, stream: LoadedStream) -> OperationPlan[Any]:
    return plan_reset(ledger, stream, deployment.settings)


def _plan_repair(deployment: Deployment, ledger: Ledger, stream: LoadedStream) -> OperationPlan[Any]:
    plan = plan_repair(ledger, open_catalog(deployment.settings), stream, deployment.settings)
    plan.require_unrefused()
    return plan


_WHERE_ROWS_ARE = "The plan on the page of the stream shows rows that break its rules, to whoever may see them."
"""Rows are data, which neither a log nor an XCom has."""

_APPROVED: Mapping[str, Callable[[Deployment, Ledger, LoadedStream], OperationPlan[Any]]] = {
    "reset": _plan_reset,
    "repair": _plan_repair,
    **{verb: partial(plan_for, way=way) for verb, way in ADOPTIONS.items()},
}
"""What changes a checkpoint, the ledger's record of it, or a table: a person approves the plan that was shown."""


def _show_approved(plan: OperationPlan[Any]) -> None:
    _log_steps(plan)
    task_instance = get_current_context()["ti"]
    task_instance.xcom_push(PLAN_TEXT, _as_markdown(plan))
    task_instance.xcom_push(DIGEST, plan.digest)


def _batch_plan(
    deployment: Deployment, ledger: Ledger, stream: LoadedStream, verb: str, number: int | None
) -> OperationPlan[HeldBatch] | OperationPlan[Rejection]:
    opened = partial(open_catalog, deployment.settings)
    return plan_about_batch(ledger, stream, OperationVerb(verb), open_tables=opened, number=number)


def _show_batch_plan(deployment: Deployment, ledger: Ledger, stream: LoadedStream, params: Mapping[str, Any]) -> None:
    plan = _batch_plan(deployment, ledger, stream, params["verb"], params.get("batch"))
    plan.require_same(params.get("plan_digest"))
    _log_steps(plan)
    task_instance = get_current_context()["ti"]
    task_instance.xcom_push(PLAN_TEXT, _as_markdown(plan.followed_by(_WHERE_ROWS_ARE)))
    task_instance.xcom_push(BATCH, plan.seen.key.batch)
    task_instance.xcom_push(DIGEST, plan.digest)


def _settle_batch(
    deployment: Deployment,
    ledger: Ledger,
    stream: LoadedStream,
    request: ControlRequest,
    *,
    number: int,
    planned: str,
    asked_by: str,
) -> None:
    if request.verb in RELEASES or holds_batch(ledger, stream.name, number):
        plan = plan_decision(ledger, stream, OperationVerb(request.verb), number=number)
        decide(ledger, plan, requested_by=asked_by, planned=planned)
        _log_steps(plan)
        return
    done = reject(
        open_catalog(deployment.settings),
        ledger,
        stream.declaration,
        number=number,
        requested_by=asked_by,
        planned=planned,
    )
    _log.info("%s", done.sentence(is_done=True))


def _of_plan(plan_task: str, key: str) -> Any:
    return get_current_context()["ti"].xcom_pull(task_ids=plan_task, key=key)


def _log_steps(plan: OperationPlan[Any]) -> None:
    for number, sentence in enumerate(plan.sentences(), start=1):
        _log.info("%s, step %d: %s", plan.title, number, sentence)


def _as_markdown(plan: OperationPlan[Any]) -> str:
    steps = "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(plan.sentences(), start=1))
    return with_digest(steps, plan.digest)
