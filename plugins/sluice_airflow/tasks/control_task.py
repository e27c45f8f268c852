"""What the tasks of the DAG `stream_control` do when they run: show a plan, carry a command out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import SluiceError, UsageError
from sluice.ledger.connection import Ledger
from sluice.operations import OperationPlan, OperationVerb
from sluice.publication.batch_rejection import plan_rejection, reject
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
from sluice_airflow.composition import Deployment, load_deployment

_log = logging.getLogger(__name__)

PLAN_TEXT, BATCH, DIGEST = "plan", "batch", "digest"
"""The XComs of the task `plan`: the text of a reset or a rejection, the batch that a rejection is of, and the digest of
that plan."""

UNKNOWN_PERSON = "somebody"
"""Whom Airflow does not name."""

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

    The plan of a reset or a rejection also goes to the task that shows it for approval, and to the one that carries it
    out.

    Raises
    ------
    AirflowFailException: when the stream is not declared any more, the ledger does not answer, or the verb is refused.
    """

    def show(deployment: Deployment, ledger: Ledger, stream: LoadedStream) -> None:
        if params["verb"] == "reset":
            _show_reset(deployment, ledger, stream)
        elif params["verb"] == OperationVerb.REJECT_BATCH:
            _show_rejection(deployment, ledger, stream, params)
        else:
            supervisor = deployment.supervisor(ledger, launched_by=requesting_user(dag_id))
            plan = _PLANS[params["verb"]](supervisor, stream)
            is_start = params["verb"] == "start"
            _log_steps(with_beginning(plan, ledger, stream, deployment.settings) if is_start else plan)

    _with_stream(params, show)


def needs_approval(params: Mapping[str, Any]) -> bool:
    """Whether the chosen verb waits for the answer of a person: a reset, and a rejection where another must approve."""
    if params["dry_run"]:
        return False
    is_rejection = params["verb"] == OperationVerb.REJECT_BATCH
    return params["verb"] == "reset" or (is_rejection and load_deployment().settings.approval_by_another)


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
        person = requesting_user(dag_id)
        supervisor = deployment.supervisor(ledger, launched_by=person)
        if params["verb"] == OperationVerb.REJECT_BATCH:
            reject_as_planned(deployment, ledger, stream, plan_task=plan_task, asked_by=person)
        if (command := _COMMANDS.get(params["verb"])) is not None:  # a reset is carried out by `carry_out_reset` only
            command(supervisor, stream, person)
        _log_steps(plan_show(supervisor, stream))

    _with_stream(params, act)


def carry_out_approved(params: Mapping[str, Any], *, dag_id: str, plan_task: str, approve_task: str) -> None:
    """Carry an approved reset or rejection out as it was planned: when that is out of date, nothing is done.

    Raises
    ------
    AirflowFailException: when it cannot be carried out; the message says why.
    """
    approver = _approver(approve_task)
    if approver is None:
        raise AirflowFailException("There is no approval: the task was marked. Trigger it again.")
    persons = f"{requesting_user(dag_id)}, approved by {approver}"

    def act(deployment: Deployment, ledger: Ledger, stream: LoadedStream) -> None:
        if deployment.settings.approval_by_another:
            require_another_person(requested_by=_triggering_user(), approved_by=approver)
        if params["verb"] == OperationVerb.REJECT_BATCH:
            reject_as_planned(deployment, ledger, stream, plan_task=plan_task, asked_by=persons, is_approved=True)
            return
        planned = str(_of_plan(plan_task, DIGEST))
        opened = reset_stream(ledger, stream, deployment.settings, planned=planned, asked_by=persons)
        _log.info("generation %d of %s is open, checkpoint %s", opened.generation, stream.name, opened.checkpoint)

    _with_stream(params, act)


def requesting_user(dag_id: str) -> str:
    """The person who triggered the DAG run, as the ledger names them."""
    return f"airflow: {dag_id}, {_triggering_user() or UNKNOWN_PERSON}"


def require_another_person(*, requested_by: str | None, approved_by: str) -> None:
    """Require that two persons agreed; one that Airflow does not name may be the same one.

    Raises
    ------
    UsageError: when they are one person, or unknown.
    """
    if UNKNOWN_PERSON in (requested_by or UNKNOWN_PERSON, approved_by) or requested_by == approved_by:
        raise UsageError(
            f"It was requested by {requested_by or UNKNOWN_PERSON} and approved by {approved_by}, "
            "and this deployment needs the approval of another person (SLUICE_APPROVAL_BY_ANOTHER).",
            next_step="Trigger it again, and let another person approve it.",
        )


def _triggering_user() -> str | None:
    """The person who triggered the DAG run; unset when Airflow does not name one."""
    return getattr(get_current_context()["dag_run"], "triggering_user_name", None) or None


def _approver(approve_task: str) -> str | None:
    """The person who approved, as Airflow names them; unset without an answer, as when the task was marked."""
    answer = get_current_context()["ti"].xcom_pull(task_ids=approve_task) or {}
    if "Approve" not in answer.get("chosen_options", ()):
        return None
    user = answer.get("responded_by_user") or {}
    return str(user.get("name") or user.get("id") or UNKNOWN_PERSON)


def _with_stream(params: Mapping[str, Any], work: Callable[[Deployment, Ledger, LoadedStream], None]) -> None:
    deployment = load_deployment()
    try:
        name = params["stream"]
        stream = load_declarations(deployment.settings.pipelines, only=name).stream(name)
        with deployment.open_owned_ledger() as ledger:
            work(deployment, ledger, stream)
    except SluiceError as error:
        raise AirflowFailException(str(error)) from error


def _show_reset(deployment: Deployment, ledger: Ledger, stream: LoadedStream) -> None:
    plan = plan_reset(ledger, stream, deployment.settings)
    _log_steps(plan)
    task_instance = get_current_context()["ti"]
    task_instance.xcom_push(PLAN_TEXT, _as_markdown(plan))
    task_instance.xcom_push(DIGEST, plan.digest)


def _show_rejection(deployment: Deployment, ledger: Ledger, stream: LoadedStream, params: Mapping[str, Any]) -> None:
    catalog = open_catalog(deployment.settings)
    plan = plan_rejection(catalog, ledger, stream.declaration, number=params.get("batch"))
    plan.require_same(params.get("plan_digest"))
    _log_steps(plan)
    task_instance = get_current_context()["ti"]
    task_instance.xcom_push(PLAN_TEXT, _as_markdown(plan))
    task_instance.xcom_push(BATCH, plan.seen.key.batch)
    task_instance.xcom_push(DIGEST, plan.digest)


def reject_as_planned(
    deployment: Deployment,
    ledger: Ledger,
    stream: LoadedStream,
    *,
    plan_task: str,
    asked_by: str,
    is_approved: bool = False,
) -> None:
    """Reject the batch that the task `plan` has shown.

    Parameters
    ----------
    is_approved: whether another person has approved it.

    Raises
    ------
    UsageError: when this deployment asks for an approval and there is none, or the plan is out of date.
    SluiceError: as `reject` does.
    """
    if deployment.settings.approval_by_another and not is_approved:
        raise UsageError(
            "This deployment needs the approval of another person for a rejection (SLUICE_APPROVAL_BY_ANOTHER).",
            next_step="Trigger it again, and let another person approve it.",
        )
    done = reject(
        open_catalog(deployment.settings),
        ledger,
        stream.declaration,
        number=int(_of_plan(plan_task, BATCH)),
        requested_by=asked_by,
        planned=str(_of_plan(plan_task, DIGEST)),
    )
    _log.info("%s", done.sentence(is_done=True))


def _of_plan(plan_task: str, key: str) -> Any:
    return get_current_context()["ti"].xcom_pull(task_ids=plan_task, key=key)


def _log_steps(plan: OperationPlan[Any]) -> None:
    for number, sentence in enumerate(plan.sentences(), start=1):
        _log.info("%s, step %d: %s", plan.title, number, sentence)


def _as_markdown(plan: OperationPlan[Any]) -> str:
    return "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(plan.sentences(), start=1))
