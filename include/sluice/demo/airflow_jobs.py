"""The bounded jobs of the demo, each started through Airflow: the weather, maintenance, quality, checkpoint health."""

from __future__ import annotations

from datetime import datetime

from sluice.demo.airflow_api import DagRunObservation
from sluice.demo.demo_progress import DemoStep, StepLog
from sluice.demo.local_platform import LocalPlatform
from sluice.demo.stream_watch import STREAMS
from sluice.demo.weather_files import drop_weather, open_landing_folder

BRONZE_WEATHER, GOLD_BY_WEATHER = "bronze_weather", "gold_delays_by_weather"
MAINTENANCE, QUALITY, CHECKPOINT_HEALTH = "table_maintenance", "data_quality", "checkpoint_health"

MAINTAINED_TABLES = ("bronze.flights", "silver.flights")
"""The tables that the continuous streams fill with small files. The hourly run of the DAG takes all tables."""

CHECKED_TABLES = ("silver.flights", "gold.delays_by_carrier_hour")
"""Two of the tables that people read: each takes a Spark application of its own. The scheduled run of the DAG
takes all tables."""

_DAG_SECONDS = 120.0
_JOB_SECONDS = 300.0


def unpause_streams(platform: LocalPlatform) -> None:
    """Unpause the DAGs of the continuous streams.

    Raises
    ------
    DemonstrationError: when Airflow has not parsed them in time.
    """
    for stream in STREAMS:
        platform.airflow.await_known(stream, deadline_seconds=_DAG_SECONDS)
        platform.airflow.unpause(stream)


def run_weather(platform: LocalPlatform, log: StepLog, *, flights_until: datetime) -> None:
    """Write weather files, read them with one incremental run, and wait for the run that its new rows trigger. A demo
    that continues an interrupted one may find all of them written, and read: then there is nothing to trigger one.

    Parameters
    ----------
    log: records how long it took.
    flights_until: all flights that departed earlier are in `silver.flights`.

    Raises
    ------
    DemonstrationError: when a job fails or takes too long.
    """
    with log.step(DemoStep.WEATHER):
        platform.airflow.await_known(GOLD_BY_WEATHER, deadline_seconds=_DAG_SECONDS)
        platform.airflow.unpause(GOLD_BY_WEATHER)
        known = _runs(platform, GOLD_BY_WEATHER)
        written = drop_weather(open_landing_folder(platform.settings), ends_at=flights_until)
        run = _run(platform, BRONZE_WEATHER)
        if written or platform.airflow.has_raised_asset_events(run):
            platform.airflow.await_new_run(GOLD_BY_WEATHER, known=known, deadline_seconds=_DAG_SECONDS)
        for triggered in platform.airflow.runs(GOLD_BY_WEATHER):
            if triggered.run_id not in known or not triggered.has_ended:
                platform.airflow.await_success(triggered, deadline_seconds=_JOB_SECONDS)


def run_maintenance_jobs(platform: LocalPlatform, log: StepLog) -> None:
    """Run the maintenance, the quality checks and the checkpoint checks, one after the other.

    Parameters
    ----------
    log: records how long each took.

    Raises
    ------
    DemonstrationError: when a job fails or takes too long.
    """
    with log.step(DemoStep.MAINTENANCE):
        _run(platform, MAINTENANCE, tables=MAINTAINED_TABLES)
    with log.step(DemoStep.QUALITY):
        _run(platform, QUALITY, tables=CHECKED_TABLES)
    with log.step(DemoStep.HEALTH):
        _run(platform, CHECKPOINT_HEALTH)


def _run(platform: LocalPlatform, dag_id: str, *, tables: tuple[str, ...] = ()) -> DagRunObservation:
    airflow = platform.airflow
    airflow.await_known(dag_id, deadline_seconds=_DAG_SECONDS)
    known = _runs(platform, dag_id)
    airflow.unpause(dag_id)
    conf = {"tables": list(tables)} if tables else {}
    run = airflow.run_now(dag_id, conf=conf, known=known, deadline_seconds=_DAG_SECONDS)
    return airflow.await_success(run, deadline_seconds=_JOB_SECONDS * max(1, len(tables)))


def _runs(platform: LocalPlatform, dag_id: str) -> frozenset[str]:
    return frozenset(run.run_id for run in platform.airflow.runs(dag_id))
