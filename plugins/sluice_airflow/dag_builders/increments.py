"""The DAG of an incremental stream: every run reads what is new, writes it, and ends."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, AssetAll, AssetOrTimeSchedule, CronTriggerTimetable

from sluice.declarations.load_declarations import LoadedStream
from sluice.declarations.stream_declaration import ScheduleDeclaration
from sluice_airflow.dag_builders.assets import table_assets
from sluice_airflow.dag_builders.documents import incremental_stream_document
from sluice_airflow.dag_builders.run_types import ALL_BUT_BACKFILLS
from sluice_airflow.operators.increment_operator import IncrementOperator

RUN_TASK = "run"
"""The one task of an incremental stream's DAG."""

_RETRIES = 2
"""What a second try cannot repair, a third rarely does; the checkpoint makes any number of tries safe."""

_AHEAD_OF_MAINTENANCE = 10
"""The priority in the pool of Spark jobs: new data come before a compaction."""

Schedule = AssetAll | AssetOrTimeSchedule | CronTriggerTimetable


def incremental_stream_dag(loaded: LoadedStream) -> DAG:
    """Build the DAG of an incremental stream. Its id is the stream's name."""
    declaration = loaded.declaration
    if declaration.schedule is None:
        raise ValueError(f"{loaded.file}: an incremental stream has a schedule, {declaration.stream} has none")
    with DAG(
        declaration.stream,
        description=declaration.description,
        doc_md=incremental_stream_document(loaded),
        schedule=_schedule(declaration.schedule),
        catchup=False,
        allowed_run_types=ALL_BUT_BACKFILLS,
        max_active_runs=1,
        tags=[*declaration.tags, "incremental", "stream"],
        default_args={"owner": declaration.owner},
        auto_register=False,
    ) as dag:
        IncrementOperator(
            task_id=RUN_TASK,
            stream=declaration.stream,
            priority_weight=_AHEAD_OF_MAINTENANCE,
            retries=_RETRIES,
            retry_delay=timedelta(seconds=30),
            retry_exponential_backoff=2,
            inlets=table_assets(declaration.tables_read),
            outlets=table_assets(declaration.tables_written),
        )
    return dag


def _schedule(declared: ScheduleDeclaration) -> Schedule:
    """By the clock, by new rows in all of the tables, or by whichever comes first."""
    assets = AssetAll(*table_assets(declared.tables)) if declared.tables else None
    timetable = CronTriggerTimetable(declared.cron, timezone="UTC") if declared.cron else None
    if assets is not None and timetable is not None:
        return AssetOrTimeSchedule(timetable=timetable, assets=assets)
    scheduled = assets or timetable
    if scheduled is None:
        raise ValueError("a schedule names a cron, tables, or both")
    return scheduled
