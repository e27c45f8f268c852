"""The DAG of the on-call: what the command line does to a stream, by a form in Airflow."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from sluice.declarations.loading import Declarations

if TYPE_CHECKING:
    from sluice.declarations.loaded import LoadedStream
    from sluice.stream_control import ControlPlan
    from sluice.supervision import Supervisor

_log = logging.getLogger(__name__)

DAG_ID = "stream_control"
PLAN_TASK, CARRY_OUT_TASK = "plan", "carry_out"


class ControlVerb(StrEnum):
    """What can be done to a stream; the same words as `sluice stream …`."""

    SHOW = "show"
    START = "start"
    STOP = "stop"
    RESTART = "restart"
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
| `reset-breaker` | forgives its failures, so that it is started again at once |

The task `plan` always tells first what will be done; with **dry_run** that is all. Nothing here rewinds a stream or
destroys anything. Clearing a task does its verb once more, which is safe.
"""


def stream_control_dag(declarations: Declarations) -> DAG:
    """Build the DAG: `plan`, then `carry_out`."""
    streams = sorted(declarations.streams)
    with DAG(
        DAG_ID,
        description="Shows, starts, stops and restarts a stream",
        doc_md=_DOCUMENT,
        schedule=None,
        catchup=False,
        is_paused_upon_creation=False,
        tags=["platform", "streams"],
        default_args={"owner": "sluice"},
        params=_params(streams),
        auto_register=False,
    ) as dag:

        @task(task_id=PLAN_TASK, retries=0)
        def plan(params: Mapping[str, Any] | None = None) -> None:
            """Tell what the verb will do. Nothing is changed."""
            tell_plan(params or {}, asked_by=_asked_by())

        @task(task_id=CARRY_OUT_TASK, retries=0)
        def carry_out(params: Mapping[str, Any] | None = None) -> None:
            """Do it, unless it is a dry run."""
            do_verb(params or {}, asked_by=_asked_by())

        plan() >> carry_out()
    return dag


def tell_plan(params: Mapping[str, Any], *, asked_by: str) -> None:
    """Write into the log, step by step, what the chosen verb will do to the chosen stream.

    Raises
    ------
    AirflowFailException: when the stream is not declared any more, or the ledger does not answer.
    """
    _with_stream(params, asked_by=asked_by, work=_tell)


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


def _with_stream(params: Mapping[str, Any], *, asked_by: str, work: Any) -> None:
    from sluice.declarations.loading import load_declarations
    from sluice.errors import SluiceError
    from sluice_airflow.composition import load_deployment

    deployment = load_deployment()
    try:
        name = params["stream"]
        stream = load_declarations(deployment.settings.pipelines, only=name).stream(name)
        with deployment.open_ledger() as ledger:
            work(deployment.supervisor(ledger, launched_by=asked_by), stream, ControlVerb(params["verb"]), asked_by)
    except SluiceError as error:
        raise AirflowFailException(str(error)) from error


def _tell(supervisor: Supervisor, stream: LoadedStream, verb: ControlVerb, _: str) -> None:
    for number, step in enumerate(_plan(supervisor, stream, verb).steps, start=1):
        _log.info("%s %s, step %d: %s", verb, stream.name, number, step.sentence)


def _plan(supervisor: Supervisor, stream: LoadedStream, verb: ControlVerb) -> ControlPlan:
    from sluice.stream_control import plan_reset, plan_restart, plan_show, plan_start, plan_stop

    plans = {
        ControlVerb.SHOW: plan_show,
        ControlVerb.START: plan_start,
        ControlVerb.STOP: plan_stop,
        ControlVerb.RESTART: plan_restart,
        ControlVerb.RESET_BREAKER: plan_reset,
    }
    return plans[verb](supervisor, stream)


def _do(supervisor: Supervisor, stream: LoadedStream, verb: ControlVerb, asked_by: str) -> None:
    from sluice.stream_control import reset_breaker, restart_stream, start_stream, stop_stream

    if verb is ControlVerb.START:
        start_stream(supervisor, stream, wished_by=asked_by)
    elif verb is ControlVerb.STOP:
        stop_stream(supervisor, stream, wished_by=asked_by, on_look=_log.info)
    elif verb is ControlVerb.RESTART:
        restart_stream(supervisor, stream, wished_by=asked_by, on_look=_log.info)
    elif verb is ControlVerb.RESET_BREAKER:
        reset_breaker(supervisor, stream, wished_by=asked_by)
    _tell(supervisor, stream, ControlVerb.SHOW, asked_by)


def _asked_by() -> str:
    """Who asked, in the words of the ledger."""
    context = get_current_context()
    person = getattr(context["dag_run"], "triggering_user_name", None) or "somebody"
    return f"airflow: {DAG_ID}, {person}"
