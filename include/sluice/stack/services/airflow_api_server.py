"""Airflow's api-server: the UI, the public API, and the Execution API that tasks and triggers use."""

from __future__ import annotations

import json
from datetime import datetime
from importlib.metadata import version
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from sluice.stack.airflow_settings import SPARK_POOL, SPARK_POOL_SLOTS
from sluice.stack.credentials import AIRFLOW_USER
from sluice.stack.folder import write_private
from sluice.stack.services.airflow_components import (
    RECOVERY_SECONDS,
    START_SECONDS,
    airflow_command,
    airflow_folder,
    metadata_connection,
)
from sluice.stack.stack_plan import HEALTHY, Command, Health, Preparation, RunTool, Service, StackPlan
from sluice.stack.tcp_ports import PortRequest

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


def _ensure_pool(plan: StackPlan, run_tool: RunTool) -> None:
    """Create the pool of bounded Spark jobs through the public API. A pool that a person has changed stays as it is."""
    del run_tool
    token = _call(plan, "/auth/token", {"username": AIRFLOW_USER, "password": plan.credentials.airflow_admin_password})
    pool = {
        "name": SPARK_POOL,
        "slots": SPARK_POOL_SLOTS,
        "description": "Bounded Spark jobs: increments, maintenance, quality",
        "include_deferred": False,
    }
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
        run=_ensure_pool,
    ),
)
