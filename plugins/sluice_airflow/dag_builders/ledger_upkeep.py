"""The DAG that keeps the ledger small: old batches are forgotten, old runs are archived, old events are deleted."""

from __future__ import annotations

import logging
from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, task

_log = logging.getLogger(__name__)

DAG_ID = "ledger_upkeep"
TIDY_TASK = "tidy"

_DOCUMENT = """\
# ledger_upkeep
Keeps the ledger small. Batches older than `SLUICE_BATCHES_KEPT_DAYS` are forgotten: their sums stay, and so does the
newest batch of every generation, at whose offsets a rebuilt checkpoint starts. Runs that ended more than
`SLUICE_RUNS_KEPT_DAYS` ago go into the ledger's archive, all but the newest of each stream. Events older than
`SLUICE_EVENTS_KEPT_DAYS` are deleted.

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
        description="Keeps the ledger small",
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
            """Forget and archive what is older than it is kept."""
            from sluice.ledger.retention import apply_retention, retention_of
            from sluice_airflow.composition import load_deployment

            deployment = load_deployment()
            with deployment.open_ledger() as ledger:
                done = apply_retention(ledger, retention_of(deployment.settings))
            _log.info("%d batches forgotten, %d runs archived, %d events deleted", done.batches, done.runs, done.events)

        tidy()
    return dag
