"""The DAG of the on-call: what the command line does to a stream, by a form in Airflow.

Its tasks import `sluice_airflow.tasks` when they run, because this module is imported at every parse.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

from airflow.sdk import DAG, Param, task

from sluice.declarations.loaded_declarations import Declarations

DAG_ID = "stream_control"
PLAN_TASK, CARRY_OUT_TASK = "plan", "carry_out"
APPROVE_TASK, CARRY_OUT_APPROVED_TASK = "approve", "carry_out_approved"
APPROVED_WITHIN = timedelta(days=1)
"""How long a person may take to approve; then the plan counts as rejected, because it may be out of date."""


class ControlVerb(StrEnum):
    """What can be done to a stream; the verbs of `sluice stream …`, `sluice table adopt` and `sluice batch`."""

    SHOW = "show"
    START = "start"
    STOP = "stop"
    RESTART = "restart"
    RESET = "reset"
    REPAIR = "repair"
    REWIND = "rewind"
    ADOPT_UNDO = "adopt-undo"
    ADOPT_REREAD = "adopt-reread"
    ADOPT_ACCEPT = "adopt-accept"
    RESET_BREAKER = "reset-breaker"
    REJECT_BATCH = "reject-batch"
    RELEASE_BATCH = "release-batch"
    SEPARATE_BATCH = "separate-batch"


_DOCUMENT = """\
# stream_control
Does to a stream what `sluice stream …` does, for a person who has Airflow and no terminal. **Trigger** it and choose.

| verb | what it does |
|---|---|
| `show` | shows the stream's newest run and what its supervisor would do now; changes nothing |
| `start` | asks that it runs, and resets its failure count. Refused while its DAG is paused: unpause the DAG instead |
| `stop` | asks that it stops; it finishes its batch and stays stopped until it is started again |
| `restart` | ends its driver between two batches and starts it with its declaration as it is now |
| `reset` | leaves the checkpoint of a stopped stream: its next start rereads its inputs from their declared beginning |
| `repair` | writes back what was lost or damaged of a stopped stream: its checkpoint, or what the ledger knew of it |
| `rewind` | takes a stopped stream and its tables back to the batch in the field *batch*; the rest is read again |
| `adopt-undo` | sets a table of it that was rolled back behind its mark forward again |
| `adopt-reread` | keeps such a table as it is; after a `repair` the stream reads again what was taken out |
| `adopt-accept` | keeps a table that was rolled back or created again as it is, without the rows that are gone |
| `reset-breaker` | resets its failure count, so that it is started again at once |
| `reject-batch` | discards a held batch, or the next staged one of a stopped stream: its rows are never published |
| `release-batch` | publishes a batch that a rule holds, and those behind it up to the next one that is held |
| `separate-batch` | the same without the rows that break the rule: they go to the quarantine |

The task `plan` always shows first what will be done; with **dry_run** that is all. A `reset`, a `repair`, a `rewind`
or the adoption of a table then waits at the task `approve`, which shows the plan, until a person approves or rejects
it under *Required Actions*; without an answer within a day it is rejected, and what is rejected changes nothing. With
`SLUICE_APPROVAL_BY_ANOTHER` the person who approves must not be the one who triggered it, and what is done to a batch
waits for an approval as well. The other verbs need none. A run does its verb once, within an hour of its trigger: one
that is cleared does nothing, and neither does one that was not triggered through Airflow's API server, as the pages
and the form do it. Trigger it again instead. What is approved is the plan that was shown; if it has changed meanwhile,
nothing is done.

Who may trigger it for a stream, clear or approve such a run: who may edit the stream's own DAG, as on the stream's
page. The API server refuses everybody else, whatever they may do with this DAG, and requests about several runs at
once. A command of the terminal is not bound by that.
"""


def stream_control_dag(declarations: Declarations) -> DAG:
    """Build the DAG: `plan`, then `carry_out`, or for what needs an approval `approve` and `carry_out_approved`."""
    from airflow.providers.standard.operators.hitl import ApprovalOperator

    with DAG(
        DAG_ID,
        description="Shows, starts, stops, restarts and resets a stream",
        doc_md=_DOCUMENT,
        schedule=None,
        catchup=False,
        is_paused_upon_creation=False,
        tags=["platform", "streams"],
        default_args={"owner": "sluice"},
        params=_params(sorted(declarations.streams)),
        auto_register=False,
    ) as dag:
        planned = _plan_task()
        approve = ApprovalOperator(
            task_id=APPROVE_TASK,
            subject="{{ params.verb }} {{ params.stream }}?",
            body=f"{{{{ ti.xcom_pull(task_ids='{PLAN_TASK}', key='plan') }}}}",
            defaults=ApprovalOperator.REJECT,
            response_timeout=APPROVED_WITHIN,
            retries=0,
        )
        planned >> _carry_out_task()
        planned >> approve >> _carry_out_approved_task()
    return dag


def _plan_task() -> Any:
    @task.branch(task_id=PLAN_TASK, retries=0)
    def plan(params: Mapping[str, Any] | None = None) -> str:
        """Show what the verb will do, and choose the next task: a reset that is not a dry run needs approval."""
        from sluice_airflow.tasks.control_task import needs_approval, show_plan

        chosen = params or {}
        show_plan(chosen, dag_id=DAG_ID)
        return APPROVE_TASK if needs_approval(chosen) else CARRY_OUT_TASK

    return plan()


def _carry_out_task() -> Any:
    @task(task_id=CARRY_OUT_TASK, retries=0)
    def carry_out(params: Mapping[str, Any] | None = None) -> None:
        """Carry the verb out, unless it is a dry run."""
        from sluice_airflow.tasks import control_task

        control_task.carry_out(params or {}, dag_id=DAG_ID, plan_task=PLAN_TASK)

    return carry_out()


def _carry_out_approved_task() -> Any:
    @task(task_id=CARRY_OUT_APPROVED_TASK, retries=0)
    def carry_out_approved(params: Mapping[str, Any] | None = None) -> None:
        """Carry out what was approved, once."""
        from sluice_airflow.tasks import control_task

        control_task.carry_out_approved(params or {}, dag_id=DAG_ID)

    return carry_out_approved()


def _params(streams: list[str]) -> dict[str, Param]:
    return {
        "stream": Param(None, type="string", enum=streams or [""], title="Stream", section="What"),
        "verb": Param(
            str(ControlVerb.SHOW), type="string", enum=[str(verb) for verb in ControlVerb], title="Verb", section="What"
        ),
        "dry_run": Param(True, type="boolean", title="Dry run", description_md="Only show what would be done."),
        "batch": Param(
            None,
            type=["integer", "null"],
            minimum=0,
            title="Batch",
            section="For reject-batch",
            description_md="Its number in the current generation; empty: the next one. A rewind goes back to it.",
        ),
        "plan_digest": Param(
            None,
            type=["string", "null"],
            maxLength=64,
            title="Plan",
            section="For reject-batch",
            description_md="What a page has shown; another batch is then refused. Leave it empty.",
        ),
    }
