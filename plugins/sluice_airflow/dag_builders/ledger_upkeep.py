"""The DAG that keeps the ledger and the logs small."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, task

from sluice.declarations.stream_declaration import SHORT_DAGS

DAG_ID = "ledger_upkeep"
TIDY_TASK = "tidy"

_DOCUMENT = """\
# ledger_upkeep
Keeps the ledger small. Batches older than `SLUICE_BATCHES_KEPT_DAYS` are forgotten: their sums stay, and so does the
newest batch of every generation, at whose offsets a rebuilt checkpoint starts. Runs that ended more than
`SLUICE_RUNS_KEPT_DAYS` ago go into the ledger's archive, all but the newest of each stream. Events older than
`SLUICE_EVENTS_KEPT_DAYS` are deleted. Logs of drivers older than `SLUICE_DRIVER_LOGS_KEPT_DAYS` are deleted on the host
where the task runs, but not that of a stream's newest run.

So are logs of Sluice's own tasks older than `SLUICE_AIRFLOW_LOGS_KEPT_DAYS`, but not those of streams.

Airflow's metadata database is not cleaned here, because tasks have no access to it. `sluice stack clean-airflow` does
it, on the host of the scheduler, for the DAGs of Sluice that end within minutes only; run it by cron. A plain
`airflow db clean` judges tasks by their beginning, and would delete the live task of a stream that runs for longer.

## How to operate it
- It runs every night. **Trigger** it to run now; the same from the command line: `sluice ledger tidy`, which has
  `--dry-run`.
- Clearing the task is always safe, also half-way: what is done is done, the rest is done again.

## What to do when it is red
The ledger did not answer: see that its PostgreSQL runs, then clear the task.
"""


def ledger_upkeep_dag() -> DAG:
    """Build the DAG with its one task."""
    with DAG(
        DAG_ID,
        description="Keeps the ledger and the logs small",
        doc_md=_DOCUMENT,
        schedule=CronTriggerTimetable("41 3 * * *", timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags=["platform"],
        default_args={"owner": "sluice"},
        auto_register=False,
    ) as dag:

        @task(task_id=TIDY_TASK, retries=2, retry_delay=timedelta(minutes=5))
        def tidy() -> None:
            """Forget, archive and delete what is older than it is kept."""
            from sluice_airflow.tasks.upkeep_task import tidy_ledger

            tidy_ledger(dags=SHORT_DAGS)

        tidy()
    return dag
