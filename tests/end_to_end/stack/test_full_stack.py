"""The whole stack, Airflow included."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import psycopg
import pytest
from tests.fixtures.drill import sampled
from tests.fixtures.drivers import await_condition
from tests.fixtures.stack import Stack
from tests.fixtures.strangers import ONLY_ROOT, ask_http, stranger
from tests.integration.stack.traces import (
    asked_of_processes,
    listening_addresses,
    listening_ports,
    processes_of,
    umask_of,
)

from sluice.stack.stack_plan import GRPC_OFFSET
from sluice.stack.stack_records import read_ports

AIRFLOW = ("airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")
FOUNDATION = ("postgres", "seaweedfs", "kafka")
SERVICES = (*FOUNDATION, *AIRFLOW)

IDLE_PSS_BYTES = 3 * 1024**3
"""What the idle stack may take of the 10 GB that all of the demo may take."""


class AirflowUi:
    """Airflow over HTTP, as a browser or a program meets it."""

    def __init__(self, stack: Stack) -> None:
        self._url = stack.environment()["AIRFLOW__API__BASE_URL"]
        self._password = json.loads((stack.data / "airflow" / "passwords.json").read_text())["admin"]

    def call(self, path: str, body: object = None, *, token: str = "") -> tuple[int, Any]:
        """A request: the status of the answer and its content."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(Request(self._url + path, data=data, headers=headers), timeout=30) as answer:  # noqa: S310
                content = answer.read()
                return answer.status, json.loads(content) if content[:1] in b"{[" else content
        except HTTPError as error:
            with error:
                return error.code, None

    def log_in(self, password: str | None = None) -> tuple[int, Any]:
        """Ask for a token with the user's password."""
        return self.call("/auth/token", {"username": "admin", "password": password or self._password})

    def token(self) -> str:
        """A token."""
        return str(self.log_in()[1]["access_token"])


@pytest.fixture
def airflow(full_stack: Stack) -> AirflowUi:
    """Airflow of the shared stack."""
    return AirflowUi(full_stack)


def test_every_service_is_healthy(full_stack: Stack) -> None:
    seen = full_stack.status()

    assert set(seen) == set(SERVICES)
    assert [name for name, service in seen.items() if not (service["running"] and service["healthy"])] == []


@pytest.mark.parametrize("path", ["/api/v2/dags", "/api/v2/pools", "/api/v2/connections", "/ui/config"])
def test_nothing_is_shown_without_a_login(airflow: AirflowUi, path: str) -> None:
    assert airflow.call(path)[0] == 401


@ONLY_ROOT
def test_another_user_and_a_web_page_see_nothing_of_airflow(full_stack: Stack) -> None:
    port = read_ports(full_stack.data / "ports.json")["airflow"]
    paths = ("/api/v2/dags", "/api/v2/dagRuns", "/api/v2/config", "/api/v2/variables", "/execution/variables/x")

    with stranger() as other_user:
        answers = other_user.submit(ask_http, port, paths, host="page.example").result()

    assert [(answer.question, answer.status) for answer in answers if 200 <= answer.status < 400] == []
    assert [answer.question for answer in answers if answer.allowed_origin] == []


def test_airflow_listens_on_its_one_port_and_creates_private_files(full_stack: Stack) -> None:
    """The scheduler and the triggerer of Airflow can serve logs too, and need not."""
    ports = read_ports(full_stack.data / "ports.json")
    known = {port + distance for port in ports.values() for distance in (0, GRPC_OFFSET)}

    assert {*chain.from_iterable(asked_of_processes(full_stack, listening_ports))} <= known
    assert {*asked_of_processes(full_stack, umask_of)} == {"0077"}


def test_the_login_takes_the_generated_password_only(airflow: AirflowUi) -> None:
    assert airflow.call("/auth/login")[0] == 200
    assert airflow.log_in("admin")[0] == 401
    assert airflow.log_in()[0] == 201


def test_the_start_page_leads_to_the_ui(airflow: AirflowUi) -> None:
    status, page = airflow.call("/")

    assert status == 200
    assert b"<title>" in page


def test_no_token_without_a_password(airflow: AirflowUi) -> None:
    """SimpleAuthManager gives a token to every caller when all are admins; this stack has no such setting."""
    assert airflow.call("/auth/token")[0] == 403


def test_the_pool_of_spark_jobs(airflow: AirflowUi) -> None:
    status, pool = airflow.call("/api/v2/pools/spark", token=airflow.token())

    assert (status, pool["slots"], pool["include_deferred"]) == (200, 2, False)


def test_airflow_itself_says_that_it_is_healthy(airflow: AirflowUi) -> None:
    _, health = airflow.call("/api/v2/monitor/health")

    assert {name: part["status"] for name, part in health.items()} == {
        "metadatabase": "healthy",
        "scheduler": "healthy",
        "triggerer": "healthy",
        "dag_processor": "healthy",
    }


def test_everything_listens_on_loopback_only(full_stack: Stack) -> None:
    assert {*chain.from_iterable(asked_of_processes(full_stack, listening_addresses))} == {"127.0.0.1"}


def test_each_role_sees_its_own_database_only(full_stack: Stack) -> None:
    url = full_stack.environment()["SLUICE_LEDGER_URL"].replace("+psycopg", "")

    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url.replace("//sluice:", "//sluice:wrong"))

    assert row == ("sluice", False)


def test_the_idle_stack_fits_on_a_laptop(full_stack: Stack) -> None:
    pss_bytes = sum(asked_of_processes(full_stack, lambda process: int(process.memory_full_info().pss)))

    assert pss_bytes < IDLE_PSS_BYTES


def test_another_terminal_takes_nothing_from_a_running_stack(full_stack: Stack, tmp_path: Path) -> None:
    before, running = full_stack.environment(), full_stack.status()
    other = replace(full_stack, variables={"SLUICE_PIPELINES": str(tmp_path), "AIRFLOW_VAR_TEAM": "other"})

    refused = other.run("up")

    assert refused.exit_code == 1
    assert f"The declarations in {before['SLUICE_PIPELINES']} are replaced by those in {tmp_path}." in refused.errors
    assert full_stack.environment() == before
    assert {name: one["pid"] for name, one in full_stack.status().items()} == {
        name: one["pid"] for name, one in running.items()
    }


KILLED = ({"kafka", "airflow-scheduler", "airflow-triggerer"}, {"airflow-api-server", "airflow-dag-processor"})


@pytest.mark.parametrize(
    "killed", sampled(KILLED, KILLED[:1], full=KILLED), ids=("kafka and what starts tasks", "the rest of Airflow")
)
def test_up_brings_back_what_was_killed(full_stack: Stack, killed: set[str]) -> None:
    before = full_stack.status()
    for victim in killed:
        os.kill(before[victim]["pid"], signal.SIGKILL)
    await_condition(
        lambda: killed.isdisjoint(process_name(full_stack, process) for process in processes_of(full_stack))
    )

    broken = full_stack.status()
    full_stack.up()
    after = full_stack.status()

    assert {name for name, service in broken.items() if not service["running"]} == killed
    assert {name: service["detail"] for name, service in after.items() if not service["healthy"]} == {}
    assert {name for name in SERVICES if after[name]["pid"] != before[name]["pid"]} == killed


def process_name(stack: Stack, process: psutil.Process) -> str:
    """The service whose first process this is."""
    records = [json.loads(path.read_text()) for path in (stack.data / "run").glob("*.json")]
    return next((record["service"] for record in records if record["pid"] == process.pid), "")
