"""The DAG that reconciles every continuous stream each minute: paused DAGs, changed declarations, lost drivers.

Its task imports `sluice_airflow.tasks` when it runs, because this module is imported at every parse.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, task

DAG_ID = "stream_reconciler"
RECONCILE_TASK = "reconcile"

_DOCUMENT = """\
# stream_reconciler
Reconciles every continuous stream with its desired state, each minute, whatever its own DAG does.

- A stream whose DAG a person has **paused** stops after its batch, and continues when the DAG is unpaused. A DAG that
  Airflow paused itself, because its run failed or it is new, stops nothing.
- A stream whose **declaration was edited** is restarted between two batches with the new one. When its checkpoint
  cannot follow, the old driver continues; the log of this task and `sluice stream status` show the reason.
- A stream that becomes **stalled** (its sources have input and no batch is recorded) or **late** (beyond its `max_lag`)
  fails one run of this DAG, the first that finds it so; `sluice stream status` shows it as long as it stays so. It is
  restarted when its declaration says so.
- A driver that died or hangs while no trigger watched it (the triggerer was down) is replaced; a live one continues.

## What to do when it is red
The end of the task's log names each stream that could not be reconciled, or is stalled or late, and why. The others
were reconciled. When the ledger belongs to another Airflow, nothing is done; the log shows the command that gives it to
this one. Clearing is always safe. While this DAG is paused, pausing the DAG of a stream stops nothing.
"""


def stream_reconciler_dag() -> DAG:
    """Build the DAG with its one task. It reads the declarations when it runs, so new streams do not change the DAG."""
    with DAG(
        DAG_ID,
        description="Brings every continuous stream to its desired state",
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
            """Reconcile every continuous stream, and fail when one could not be reconciled."""
            from sluice_airflow.tasks.reconcile_task import reconcile_streams

            reconcile_streams(launched_by=f"airflow: {DAG_ID}")

        reconcile()
    return dag
