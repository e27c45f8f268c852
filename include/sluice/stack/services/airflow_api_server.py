"""Airflow's processes: the api-server, and the three that write heartbeats: scheduler, DAG processor and triggerer.

The api-server has the UI, the public API, and the Execution API that tasks and triggers use.

Old runs are deleted from here, because no DAG can do it: a task of Airflow 3 has no access to the metadata database.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import psycopg
from psycopg.rows import TupleRow

from sluice.errors import StackError, UsageError
from sluice.stack.credentials import AIRFLOW_USER
from sluice.stack.environment import (
    SPARK_POOL,
    SPARK_POOL_SLOTS,
    SUPERVISION_POOL,
    SUPERVISION_POOL_SLOTS,
)
from sluice.stack.folder import write_private
from sluice.stack.stack_plan import (
    HEALTHY,
    LOOPBACK,
    Command,
    Health,
    PortRequest,
    Preparation,
    RunTool,
    Service,
    StackPlan,
)

_OLDEST_HEARTBEAT = timedelta(seconds=30)
"""Airflow's own threshold for the health of its jobs, `[scheduler] scheduler_health_check_threshold`."""

START_SECONDS = 240.0

RECOVERY_SECONDS = 20.0
"""More than the longest pause between two heartbeats, plus the time to reconnect to a restarted database."""

DATABASE_SETTING = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"

_TABLES = ("dag_run", "log")
"""The deletion of a run deletes its tasks, their history and their XComs, too."""

_NOT_CLEANED = re.compile(r"did not clean them: \[(?P<tables>[^\]]*)\]")

_NEVER_CLEANED = "'deadline'"
"""Airflow 3.3 cleans it with the runs, by a column `dag_id` which that table does not have, so that it always fails
when DAGs are named. The short DAGs have no deadlines. Source: https://github.com/apache/airflow/issues/69030"""


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
_COMPONENTS = (
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


_ANSWER_SECONDS = 5.0


def _prepare(plan: StackPlan) -> None:
    folder = airflow_folder(plan)
    folder.mkdir(exist_ok=True)
    passwords = {AIRFLOW_USER: plan.credentials.airflow_admin_password}
    write_private(folder / "passwords.json", json.dumps(passwords) + "\n")


def _command(plan: StackPlan) -> Command:
    return airflow_command(plan, "api-server")


def _probe(plan: StackPlan, since: datetime) -> Health:
    del since  # it answers now or not at all
    try:
        with urlopen(f"{plan.url('airflow')}/api/v2/monitor/health", timeout=_ANSWER_SECONDS) as answer:  # noqa: S310  # ours
            database = json.loads(answer.read())["metadatabase"]["status"]
    except (URLError, OSError, ValueError, KeyError) as error:
        return Health(False, str(error))
    return HEALTHY if database == "healthy" else Health(False, f"its database is {database}")


def _migrate(plan: StackPlan, run_tool: RunTool) -> None:
    """Create or upgrade Airflow's tables, unless this version of Airflow has done so already."""
    airflow_folder(plan).mkdir(exist_ok=True)
    note = airflow_folder(plan) / "schema.json"
    if note.exists() and json.loads(note.read_text()) == _schema(plan):
        return
    run_tool("airflow-schema", airflow_command(plan, "db", "migrate"))
    write_private(note, json.dumps(_schema(plan)) + "\n")


def _schema(plan: StackPlan) -> dict[str, str]:
    """The installed version of Airflow, and the revision of its tables; an empty revision when there are none."""
    with metadata_connection(plan) as connection:
        row = connection.execute("SELECT to_regclass('alembic_version') IS NOT NULL").fetchone()
        revision = connection.execute("SELECT version_num FROM alembic_version").fetchone() if row and row[0] else None
    return {"airflow": version("apache-airflow-core"), "revision": str(revision[0]) if revision else ""}


_POOLS = (
    (SPARK_POOL, SPARK_POOL_SLOTS, "Bounded Spark jobs: increments, maintenance, quality"),
    (SUPERVISION_POOL, SUPERVISION_POOL_SLOTS, "What supervises streams: short tasks"),
)


def _ensure_pools(plan: StackPlan, run_tool: RunTool) -> None:
    """Create the pools of Sluice's tasks through the public API. A pool that a person has changed stays as it is."""
    del run_tool
    token = _call(plan, "/auth/token", {"username": AIRFLOW_USER, "password": plan.credentials.airflow_admin_password})
    for name, slots, description in _POOLS:
        pool = {"name": name, "slots": slots, "description": description, "include_deferred": False}
        try:
            _call(plan, "/api/v2/pools", pool, token=str(token["access_token"]))
        except HTTPError as error:
            if error.code != 409:  # it exists
                raise


def _call(plan: StackPlan, path: str, body: object, *, token: str = "") -> dict[str, object]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = Request(plan.url("airflow") + path, data=json.dumps(body).encode(), headers=headers)  # noqa: S310  # ours
    with urlopen(request, timeout=30) as answer:  # noqa: S310  # ours
        return dict(json.loads(answer.read()))


STEPS = (
    Preparation(name="airflow-schema", title="Airflow schema", needs=("databases",), run=_migrate),
    Service(
        name="airflow-api-server",
        title="Airflow API and UI",
        needs=("airflow-schema",),
        ports=(PortRequest(name="airflow", variable="SLUICE_AIRFLOW_PORT", preferred=8080),),
        prepare=_prepare,
        command=_command,
        probe=_probe,
        start_seconds=START_SECONDS,
        recovery_seconds=RECOVERY_SECONDS,
    ),
    Preparation(
        name="airflow-pool",
        title="Airflow pool",
        needs=("airflow-api-server",),
        completes="airflow-api-server",
        run=_ensure_pools,
    ),
    *_COMPONENTS,
)


def clean_airflow_history(
    environment: Mapping[str, str], *, dag_ids: Sequence[str], before: datetime, dry_run: bool
) -> str:
    """Delete the runs of some DAGs that began before a time, with all that belongs to them; Airflow keeps the newest
    scheduled run of each DAG.

    Parameters
    ----------
    dag_ids: DAGs whose tasks end within minutes.
    environment: of a process of Airflow that may write to the metadata database.
    dry_run: show only what would be deleted.

    Returns
    -------
    What Airflow reports.

    Raises
    ------
    UsageError: when the environment names no metadata database.
    StackError: when Airflow could not clean it.

    Source: https://airflow.apache.org/docs/apache-airflow/3.3.2/cli-and-env-variables-ref.html#clean
    """
    if DATABASE_SETTING not in environment:
        raise UsageError(
            f"Airflow's database is not known here: {DATABASE_SETTING} is not set.",
            next_step="Start the stack with `sluice stack up`, or run this where the scheduler runs.",
        )
    command = [sys.executable, "-m", "airflow", "db", "clean", "--yes", "--skip-archive", "--error-on-cleanup-failure"]
    command += ["--tables", ",".join(_TABLES), "--dag-ids", ",".join(dag_ids)]
    command += ["--clean-before-timestamp", before.isoformat(), *(["--dry-run"] if dry_run else [])]
    ended = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)  # noqa: S603  # our own
    not_cleaned = _NOT_CLEANED.search(ended.stderr)
    if ended.returncode != 0 and (not_cleaned is None or not_cleaned["tables"] != _NEVER_CLEANED):
        raise StackError(
            f"Airflow could not clean its database: it ended with {ended.returncode}.\n{ended.stderr[-2000:]}".rstrip(),
            next_step="See that its PostgreSQL runs, then run this again.",
        )
    return ended.stdout
