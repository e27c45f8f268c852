"""The DAG that looks after every continuous stream each minute: paused DAGs, changed declarations, what no task saw."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG, CronTriggerTimetable, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from sluice_airflow.adapters.paused_dags import paused_state

if TYPE_CHECKING:
    from sluice.declarations.loaded_declarations import LoadedStream
    from sluice.supervision.supervisor import Supervisor

_log = logging.getLogger(__name__)

DAG_ID = "stream_reconciler"
RECONCILE_TASK = "reconcile"

_DOCUMENT = """\
# stream_reconciler
Looks after every continuous stream, each minute, whatever its own DAG does.

- A stream whose DAG is **paused** stops after its batch, and goes on when the DAG is unpaused.
- A stream whose **declaration was edited** is restarted between two batches with the new one. When its checkpoint
  cannot follow, the old driver goes on and the reason stands here and in `sluice stream status`.
- A stream that becomes **stalled** (its sources have input and no batch comes) or **late** (beyond its `max_lag`) makes
  one run of this DAG red, the first that sees it, and is told by `sluice stream status` for as long as it stays so. It
  is restarted when its declaration says so.
- A driver that died or hangs while nobody looked (the triggerer was away) is replaced; one that lives is left alone.

## What to do when it is red
The end of the task's log names each stream that could not be looked after, or is stalled or late, and why. The others
were looked after. Clearing is always
safe. While this DAG is paused, pausing the DAG of a stream stops nothing.
"""


def stream_reconciler_dag() -> DAG:
    """Build the DAG with its one task. It reads the declarations when it runs, so new streams change nothing here."""
    with DAG(
        DAG_ID,
        description="Brings every continuous stream to what is wanted",
        doc_md=_DOCUMENT,
        schedule=CronTriggerTimetable("* * * * *", timezone="UTC", run_immediately=True),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        dagrun_timeout=timedelta(minutes=10),
        tags=["platform", "streams"],
        default_args={"owner": "sluice"},
        auto_register=False,
    ) as dag:

        @task(task_id=RECONCILE_TASK, retries=0)
        def reconcile() -> None:
            """Look after every continuous stream, and fail when one could not be looked after."""
            reconcile_streams(is_paused=paused_state(get_current_context()["ti"]))

        reconcile()
    return dag


def reconcile_streams(*, is_paused: Callable[[str], bool | None]) -> None:
    """Look after all continuous streams, one after the other.

    Parameters
    ----------
    is_paused: tells of a DAG whether it is paused; nothing of one that Airflow does not know.

    Raises
    ------
    AirflowFailException: when a stream could not be looked after; the others were.
    """
    from sluice.declarations.load_declarations import load_declarations
    from sluice_airflow.composition import load_deployment

    deployment = load_deployment()
    declarations = load_declarations(deployment.settings.pipelines)
    problems: list[str] = []
    with deployment.open_ledger() as ledger:
        supervisor = deployment.supervisor(ledger, launched_by=f"airflow: {DAG_ID}")
        for name in sorted(declarations.streams):
            stream = declarations.streams[name]
            if stream.declaration.mode == "continuous":
                problems.extend(_look_after(supervisor, stream, is_paused=is_paused(name)))
    if problems:
        raise AirflowFailException(" ".join(problems))


def _look_after(supervisor: Supervisor, stream: LoadedStream, *, is_paused: bool | None) -> list[str]:
    """Look after one stream. Returns what went wrong, so that one stream never keeps the others waiting."""
    from sluice.errors import SluiceError
    from sluice.supervision.reconciler import reconcile

    try:
        done = reconcile(supervisor, stream, is_paused=is_paused)
    except SluiceError as error:
        _log.error("stream=%s %s", stream.name, error)
        return [f"{stream.name}: {error}"]
    decision = done.supervised.decision
    for change in done.changed:
        _log.info("stream=%s %s", stream.name, change)
    tell = _log.info if decision.is_healthy or done.acted else _log.warning
    tell("stream=%s acted=%s reason=%s %s", stream.name, done.acted, decision.reason, decision.explanation)
    return [f"{stream.name}: {done.alert}"] if done.alert else []
