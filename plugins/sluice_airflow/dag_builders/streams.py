"""The DAG of a continuous stream: one task that supervises its driver and waits beside it without a worker slot."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator, CronTriggerTimetable

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice_airflow.dag_builders.broken_declarations import build_stream_dags
from sluice_airflow.dag_builders.documents import continuous_stream_document
from sluice_airflow.timetables.backfill_timetable import ALL_BUT_BACKFILLS
from sluice_airflow.triggers.publication_trigger import table_assets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

    from sluice_airflow.tasks.stream_task import StreamTask
    from sluice_airflow.triggers.ledger_trigger import LedgerTrigger

SUPERVISE_TASK = "supervise"
"""The one task of a continuous stream's DAG."""

SUPERVISION_POOL = "supervision"
"""The Airflow pool of what supervises streams: tasks of seconds, which no other task may keep waiting."""

URGENT = 1000
"""The weight of such a task: where workers are short, it goes before everything else."""

SUPERVISES_WITHIN = timedelta(minutes=10)
"""How long one such task may take. Named here, as every setting of Airflow that could pause or starve supervision: a
deployment may have other defaults for its own DAGs."""

EVERY_MINUTE = "* * * * *"
"""When the next run is due after one ended. Not `@continuous`: however fast runs end, there is at most one a minute."""

FAILED_RUNS_THAT_PAUSE = 1
"""A stream that was given up needs a person: Airflow pauses its DAG at the first red run, which so stays the newest."""

_RETRIES = 1000
"""Of the task, for what is not the stream's own failure: the ledger or Airflow away. One a minute: most of a day."""

_LONGEST_RETRY_DELAY = timedelta(minutes=1)
"""The delay grows with the tries of a DAG run that may last for months, so this is what a late hiccup costs."""

POLL_SECONDS = 2.0
"""Between two looks at the ledger: one small query, and the end of a driver is noticed within this time."""


def continuous_stream_dags(declarations: Declarations) -> dict[str, DAG]:
    """The DAGs of all continuous streams by their ids; one that cannot be made has a stand-in."""
    continuous = [stream for stream in declarations.streams.values() if stream.declaration.mode == "continuous"]
    return build_stream_dags(continuous, continuous_stream_dag)


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
        max_active_tasks=1,
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
            execution_timeout=SUPERVISES_WITHIN,
            depends_on_past=False,
            pool=SUPERVISION_POOL,
            priority_weight=URGENT,
            weight_rule="absolute",
            inlets=table_assets(declaration.tables_read),
        )
    return dag


class StreamOperator(BaseOperator):
    """Keep a continuous stream in its desired state: observe, decide, act, then wait without a worker slot.

    The driver is not a child of this task. Whichever task runs next (after a restart of Airflow, a retry, a cleared
    task, in another DAG run) finds the run in the ledger and adopts it. While there is nothing to do the task is
    deferred: the triggerer polls the ledger, and no worker slot is held.

    Parameters
    ----------
    stream: the stream's name; its declaration is read when the task runs.
    poll_seconds: between two looks at the ledger while the task is deferred.

    `sluice_airflow.tasks` is imported when the task runs: the DAG file that imports this module is parsed all the time.
    """

    ui_color = "#d8ecf3"

    def __init__(self, *, stream: str, poll_seconds: float = POLL_SECONDS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stream = stream
        self.poll_seconds = poll_seconds

    def execute(self, context: Context) -> None:
        """Begin to supervise; see `StreamTask.begin`."""
        self._wait(self._task(context).begin(retries=self.retries or 0))

    def look_again(self, context: Context, event: Mapping[str, Any] | None = None) -> None:
        """Continue after a trigger fired. Airflow's database holds this name for every deferred task."""
        self._wait(self._task(context).resume(event))

    def _task(self, context: Context) -> StreamTask:
        from sluice_airflow.tasks.stream_task import StreamTask

        return StreamTask(stream=self.stream, poll_seconds=self.poll_seconds, context=context)

    def _wait(self, trigger: LedgerTrigger | None) -> None:
        if trigger is not None:
            self.defer(trigger=trigger, method_name=self.look_again.__name__)
