"""What Airflow's processes share, and the three that write heartbeats: scheduler, DAG processor and triggerer."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow

from sluice.stack.stack_plan import HEALTHY, Command, Health, Service, StackPlan
from sluice.stack.tcp_ports import LOOPBACK

_OLDEST_HEARTBEAT = timedelta(seconds=30)
"""Airflow's own threshold for the health of its jobs, `[scheduler] scheduler_health_check_threshold`."""

START_SECONDS = 240.0

RECOVERY_SECONDS = 20.0
"""More than the longest pause between two heartbeats, plus the time to reconnect to a restarted database."""


def airflow_folder(plan: StackPlan) -> Path:
    """AIRFLOW_HOME of the stack."""
    return plan.folder.data / "airflow"


def airflow_command(plan: StackPlan, *arguments: str) -> Command:
    """An `airflow` command."""
    return Command(
        argv=(str(plan.tools.python), "-m", "airflow", *arguments),
        working_folder=airflow_folder(plan),
        environment=plan.environment,
    )


def metadata_connection(plan: StackPlan) -> psycopg.Connection[TupleRow]:
    """A connection to Airflow's database."""
    return psycopg.connect(
        host=LOOPBACK,
        port=plan.ports["postgres"],
        user="airflow",
        password=plan.credentials.airflow_database_password,
        dbname="airflow",
        connect_timeout=3,
    )


def _probe_heartbeat(plan: StackPlan, since: datetime, *, job_type: str) -> Health:
    """Whether a job of Airflow has written a heartbeat lately.

    The heartbeats are read from the `job` table, as Airflow's own health page does it. So a scheduler can be judged
    before the api-server, which starts more slowly, answers.

    Parameters
    ----------
    plan: the stack.
    since: a heartbeat before this proves nothing.
    job_type: the job's name in that table.
    """
    query = (
        "SELECT max(latest_heartbeat) FILTER (WHERE state = 'running' AND latest_heartbeat > %s),"
        " now() FROM job WHERE job_type = %s"
    )
    try:
        with metadata_connection(plan) as connection:
            row = connection.execute(query, (since, job_type)).fetchone()
    except psycopg.Error as error:
        return Health(False, str(error).strip().splitlines()[-1])
    if row is None or row[0] is None:
        return Health(False, f"no heartbeat since {since:%H:%M:%S}")
    age = row[1] - row[0]
    return HEALTHY if age < _OLDEST_HEARTBEAT else Health(False, f"its last heartbeat is {age.seconds} seconds old")


def _component(name: str, title: str, *, job_type: str, arguments: tuple[str, ...]) -> Service:
    return Service(
        name=name,
        title=title,
        needs=("airflow-schema",),
        command=lambda plan: airflow_command(plan, *arguments),
        probe=partial(_probe_heartbeat, job_type=job_type),
        start_seconds=START_SECONDS,
        recovery_seconds=RECOVERY_SECONDS,
    )


# The api-server reads the logs of tasks and triggers from the disk, so neither component needs to serve them.
STEPS = (
    _component(
        "airflow-dag-processor", "Airflow DAG processor", job_type="DagProcessorJob", arguments=("dag-processor",)
    ),
    _component(
        "airflow-scheduler",
        "Airflow scheduler",
        job_type="SchedulerJob",
        arguments=("scheduler", "--skip-serve-logs"),
    ),
    _component(
        "airflow-triggerer",
        "Airflow triggerer",
        job_type="TriggererJob",
        arguments=("triggerer", "--skip-serve-logs"),
    ),
)
