"""What Airflow's four processes have in common."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.stack.stack_plan import HEALTHY, Command, Health, StackPlan
from sluice.stack.tcp_ports import LOOPBACK

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

_OLDEST_HEARTBEAT = timedelta(seconds=30)
"""Airflow's own threshold for the health of its jobs, `[scheduler] scheduler_health_check_threshold`."""


RECOVERY_SECONDS = 20.0
"""More than the longest pause between two heartbeats, plus the time to reconnect to a database that was restarted."""


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
    import psycopg

    return psycopg.connect(
        host=LOOPBACK,
        port=plan.ports["postgres"],
        user="airflow",
        password=plan.credentials.airflow_database_password,
        dbname="airflow",
        connect_timeout=3,
    )


def probe_job(plan: StackPlan, job_type: str, since: datetime) -> Health:
    """Whether a job of Airflow has written a heartbeat lately.

    The heartbeats are read from the `job` table, as Airflow's own health page does: so a scheduler can be judged while
    the api-server, which starts slower, is not there yet.

    Parameters
    ----------
    plan: the stack.
    job_type: the job's name in that table.
    since: a heartbeat before this proves nothing.
    """
    import psycopg

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
