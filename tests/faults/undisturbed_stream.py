"""What must stop no stream: the ledger refuses writes for a while, a second Airflow runs on the same ledger."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from sqlalchemy.engine import URL, make_url
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.airflow_components import Components
from tests.fixtures.ledger import administer

from sluice.ledger.desired_states import find_desired_state
from sluice.ledger.runs import newest_run

RECONCILER = "stream_reconciler"
HEALTHY = "healthy"
"""A stream that nothing befalls."""


def ledger_is_read_only(airflow: RunningAirflow, *, seconds: float) -> str:
    """Let the ledger refuse writes for a while, as while it fails over. Returns what stopped; empty: nothing."""
    run = newest_run(airflow.ledger, HEALTHY)
    url = airflow.ledger.engine.url
    administrator = url.set(database="postgres")
    for statement in (
        f"ALTER DATABASE {url.database} SET default_transaction_read_only = on",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{url.database}'",  # noqa: S608  # ours
    ):
        administer(administrator, statement)
    time.sleep(seconds)  # the outage itself is what is tested
    for statement in (
        f"ALTER DATABASE {url.database} RESET default_transaction_read_only",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{url.database}'",  # noqa: S608  # ours
    ):
        administer(administrator, statement)
    return _what_stopped(airflow, run, seconds=30)


def second_airflow(airflow: RunningAirflow, postgres_url: URL, folder: Path) -> str:
    """Let a second Airflow with an empty metadata database run on the same ledger. Returns what it changed."""
    run = newest_run(airflow.ledger, HEALTHY)
    desired = find_desired_state(airflow.ledger, HEALTHY)
    name = f"second_{secrets.token_hex(4)}"
    administer(postgres_url, f"CREATE DATABASE {name}")
    environment = {**airflow.environment, "AIRFLOW_HOME": str(folder)}
    for setting in ("SQL_ALCHEMY_CONN", "SQL_ALCHEMY_CONN_ASYNC"):
        url = make_url(environment[f"AIRFLOW__DATABASE__{setting}"]).set(database=name)
        environment[f"AIRFLOW__DATABASE__{setting}"] = url.render_as_string(hide_password=False)
    port = "18793"
    environment |= {
        "AIRFLOW__API__PORT": port,
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(folder / "logs"),
    }
    subprocess.run(  # ours
        [sys.executable, "-m", "airflow", "db", "migrate"], env=environment, check=True, capture_output=True
    )
    subprocess.run(  # ours
        [sys.executable, "-m", "airflow", "pools", "set", "supervision", "16", "What supervises streams"],
        env=environment,
        check=True,
        capture_output=True,
    )
    second = Components(folder, environment)
    refused = "This ledger belongs to Airflow"
    try:
        for component in ("api-server", "scheduler", "dag-processor"):
            second.start(component)
        logs = folder / "logs" / f"dag_id={RECONCILER}"
        airflow.wait(
            lambda: any(refused in log.read_text() for log in logs.glob("*/*/*.log")),
            within_seconds=300,
            what=lambda: f"no log in {logs} has {refused!r}",
        )
    except AssertionError as error:  # a row like the others, so that the others are shown
        return f"it was not refused: {error}"
    finally:
        second.end()
    if find_desired_state(airflow.ledger, HEALTHY) != desired:
        return "the desired state has changed"
    return _what_stopped(airflow, run, seconds=5)


def _what_stopped(airflow: RunningAirflow, run: object, *, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.5)  # nothing may happen in this time
        try:
            newest = newest_run(airflow.ledger, HEALTHY)
        except Exception as error:  # noqa: BLE001  # the connections were ended under it
            Console(stderr=True).print(f"the ledger was away for a moment: {error}")
            continue
        if newest is None or not newest.is_live or newest.run_id != getattr(run, "run_id", ""):
            return f"{HEALTHY} has stopped: {newest}"
    return ""
