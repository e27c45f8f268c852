"""The DAG of a continuous stream: one task that supervises its driver and waits beside it without a worker slot."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable

from sluice.declarations.load_declarations import LoadedStream
from sluice_airflow.dag_builders.assets import table_assets
from sluice_airflow.dag_builders.backfills import ALL_BUT_BACKFILLS
from sluice_airflow.dag_builders.documents import continuous_stream_document
from sluice_airflow.operators.stream_operator import StreamOperator

SUPERVISE_TASK = "supervise"
"""The one task of a continuous stream's DAG."""

EVERY_MINUTE = "* * * * *"
"""When the next run is due after one ended. Not `@continuous`: however fast runs end, there is at most one a minute."""

FAILED_RUNS_THAT_PAUSE = 1
"""A stream that was given up needs a person: Airflow pauses its DAG at the first red run, which so stays the newest."""

_RETRIES = 1000
"""Of the task, for what is not the stream's own failure: the ledger or Airflow away. One a minute: most of a day."""

_LONGEST_RETRY_DELAY = timedelta(minutes=1)
"""The delay grows with the tries of a DAG run that may last for months, so this is what a late hiccup costs."""


def continuous_stream_dag(loaded: LoadedStream) -> DAG:
    """Build the DAG of a continuous stream. Its id is the stream's name."""
    declaration = loaded.declaration
    with DAG(
        declaration.stream,
        description=declaration.description,
        doc_md=continuous_stream_document(loaded),
        # Without a start date `run_immediately` starts the first run as soon as the DAG is unpaused.
        schedule=CronTriggerTimetable(EVERY_MINUTE, timezone="UTC", run_immediately=True),
        catchup=False,
        allowed_run_types=ALL_BUT_BACKFILLS,
        max_active_runs=1,
        max_consecutive_failed_dag_runs=FAILED_RUNS_THAT_PAUSE,
        tags=[*declaration.tags, "continuous", "stream"],
        default_args={"owner": declaration.owner},
        auto_register=False,
    ) as dag:
        StreamOperator(
            task_id=SUPERVISE_TASK,
            stream=declaration.stream,
            retries=_RETRIES,
            retry_delay=timedelta(seconds=10),
            retry_exponential_backoff=2,
            max_retry_delay=_LONGEST_RETRY_DELAY,
            inlets=table_assets(declaration.tables_read),
        )
    return dag
