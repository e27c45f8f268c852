"""Every address of the installed Airflow that may reach a run of `stream_control`, asked by every kind of person.

The run is about the stream `weather`. What counts is who may edit the DAG `weather`, whichever auth manager answers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool
from tests.fixtures.airflow import PASSWORDS, prepare_airflow
from tests.fixtures.airflow_components import AIRFLOW, Components
from tests.fixtures.drivers import await_condition
from tests.fixtures.fab_persons import EDITS
from tests.fixtures.sample_declarations import write_refusing_stream, write_table
from tests.orchestration.plugins.test_control_permission import PASSING, REACHING

pytestmark = [
    pytest.mark.full,  # every test run asks the middleware about each of the routes
    pytest.mark.timeout(1800),  # two API servers and their databases, on a machine that may be busy
]

FAB = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
FAB_PASSWORDS = {name: f"{name}-of-tests" for name in ("admin", "viewer", *EDITS)}
SIMPLE_PASSWORDS = PASSWORDS | {"user": "user-of-tests", "op": "op-of-tests"}
CHANGES = ("post", "patch", "put", "delete")
STOP = {"stream": "weather", "verb": "stop", "dry_run": False}
ANY = {"dag_id": "stream_control", "dag_run_id": "{run}"}
BODIES: Mapping[str, object] = {
    "POST dags/{dag_id}/dagRuns": {"logical_date": None, "conf": STOP},
    "PATCH dags/{dag_id}/dagRuns": {"actions": [{"action": "delete", "entities": [ANY]}]},
    "POST dags/{dag_id}/clearDagRuns": {"dry_run": False, "dag_runs": [ANY]},
    "POST dags/{dag_id}/clearTaskInstances": {"dry_run": False, "only_failed": False, "dag_run_id": "{run}"},
    "POST dags/{dag_id}/dagRuns/{dag_run_id}/clear": {"dry_run": False},
    "PATCH dags/{dag_id}/dagRuns/{dag_run_id}": {"state": "success"},
    "HITL": {"chosen_options": ["Approve"], "params_input": {}},
    "TASK": {"new_state": "success"},
    "XCOM": {"key": "return_value", "value": "forged"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An address of Airflow's API. path: with the names of its parameters. dag: what stands for the DAG's id."""

    method: str
    path: str
    dag: str

    def url(self, run: str) -> str:
        """The address about a run and its first task."""
        given = {"dag_id": self.dag, "dag_run_id": run, "task_id": "plan", "map_index": "-1", "xcom_key:path": "digest"}
        return "/api/v2/" + re.sub(r"\{([^}]*)\}", lambda found: given.get(found[1], "x"), self.path)

    def body(self, run: str) -> Any:
        """What is sent there, as whoever wants to do harm would send it."""
        end = self.path.rpartition("taskInstances/{task_id}")[2]
        kind = "HITL" if "hitl" in end else "XCOM" if "xcom" in end else "TASK" if "task_id" in self.path else ""
        chosen = BODIES.get(f"{self.method} {self.path}", BODIES.get(kind, ANY))
        return json.loads(json.dumps(chosen).replace("{run}", run))


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """An API server with a run about `weather`, and what each person was answered."""

    address: str
    passwords: Mapping[str, str]
    metadata_url: str
    ledger_url: str
    clients: dict[str, httpx.Client] = field(default_factory=dict)

    def client(self, person: str) -> httpx.Client:
        """The client of a person who is logged in."""
        if person not in self.clients:
            client = httpx.Client(base_url=self.address, timeout=60)
            login = {"username": person, "password": self.passwords[person]}
            token = client.post("/auth/token", json=login).raise_for_status().json()["access_token"]
            client.headers["Authorization"] = f"Bearer {token}"
            client.cookies.set("_token", token)
            self.clients[person] = client
        return self.clients[person]

    def trigger(self) -> str:
        """A new run about `weather`, of the administrator."""
        body = {"logical_date": None, "conf": STOP}
        answer = self.client("admin").post("/api/v2/dags/stream_control/dagRuns", json=body)
        return str(answer.raise_for_status().json()["dag_run_id"])

    def ask(self, person: str, asked: Asked, run: str) -> httpx.Response:
        """What a person is answered."""
        return self.client(person).request(asked.method, asked.url(run), json=asked.body(run))

    def asked(self) -> list[Asked]:
        """Every address that may change something of a DAG or its backfills, also under `~`."""
        found: dict[str, dict[str, Any]] = self.client("admin").get("/openapi.json").raise_for_status().json()["paths"]
        routes = [
            (method.upper(), path.removeprefix("/api/v2/"))
            for path, methods in found.items()
            for method in methods
            if method in CHANGES and path.startswith(("/api/v2/dags", "/api/v2/backfills"))
        ]
        reaching = [(method, path) for method, path in routes if f"{method} {path}" not in PASSING]
        return [
            Asked(method=method, path=path, dag=dag)
            for method, path in sorted(reaching)
            for dag in (("stream_control", "~") if "{dag_id}" in path else ("",))
        ]

    def state(self) -> dict[str, list[str]]:
        """All that Airflow and the ledger keep of runs of `stream_control`."""
        return {
            table: _rows(self.metadata_url, f"SELECT t::text FROM {table} t WHERE dag_id = 'stream_control'")  # noqa: S608  # names of our own
            for table in ("dag_run", "task_instance", "xcom")
        } | {"requests": _rows(self.ledger_url, "SELECT t::text FROM sluice.control_requests t")}


def _rows(url: str, query: str) -> list[str]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return sorted(connection.execute(text(query)).scalars())


@contextmanager
def matrix_of(
    folder: Path, postgres_url: URL, *, passwords: Mapping[str, str], settings: Mapping[str, str]
) -> Iterator[Matrix]:
    """An API server of its own, and nothing else of Airflow: no run goes on by itself."""
    pipelines = folder / "pipelines"
    pipelines.mkdir()
    write_table(pipelines, "bronze.flights")
    for stream in ("flights", "weather"):
        write_table(pipelines, f"silver.{stream}")
        write_refusing_stream(pipelines, stream, writes=f"silver.{stream}")
    prepared = prepare_airflow(folder, postgres_url, pipelines=pipelines)
    environment = {**prepared.environment, **settings}
    (folder / "airflow" / "passwords.json").write_text(json.dumps(passwords))
    if "fab" in environment.get("AIRFLOW__CORE__AUTH_MANAGER", ""):
        _run([*AIRFLOW, "fab-db", "migrate"], environment)
        _run([sys.executable, "-m", "tests.fixtures.fab_persons"], environment, given=json.dumps(passwords))
    _run([*AIRFLOW, "dags", "reserialize"], environment)
    components = Components(folder, environment)
    components.start("api-server")
    matrix = Matrix(
        address=f"http://127.0.0.1:{prepared.port}",
        passwords=passwords,
        metadata_url=prepared.metadata_url,
        ledger_url=prepared.ledger_url,
    )
    try:
        await_condition(lambda: _answers(matrix.address), within_seconds=180)
        yield matrix
    finally:
        for client in matrix.clients.values():
            client.close()
        components.end()


def _run(command: list[str], environment: Mapping[str, str], *, given: str = "") -> None:
    environment = {**environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, input=given, capture_output=True, text=True, check=False)  # noqa: S603  # ours
    assert done.returncode == 0, done.stdout + done.stderr


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/api/v2/version", timeout=5).is_success
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def of_fab(tmp_path_factory: pytest.TempPathFactory, postgres_url: URL) -> Iterator[Matrix]:
    """An API server with FAB, which knows permissions for single DAGs."""
    folder = tmp_path_factory.mktemp("fab")
    settings = {"AIRFLOW__CORE__AUTH_MANAGER": FAB}
    with matrix_of(folder, postgres_url, passwords=FAB_PASSWORDS, settings=settings) as matrix:
        yield matrix


@pytest.fixture(scope="module")
def of_simple(tmp_path_factory: pytest.TempPathFactory, postgres_url: URL) -> Iterator[Matrix]:
    """An API server with the simple auth manager, which knows roles for all DAGs alone."""
    users = ",".join(f"{name}:{name}" for name in SIMPLE_PASSWORDS)
    settings = {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": users}
    folder = tmp_path_factory.mktemp("simple")
    with matrix_of(folder, postgres_url, passwords=SIMPLE_PASSWORDS, settings=settings) as matrix:
        yield matrix


def check_refused(matrix: Matrix, person: str) -> None:
    """The person is refused at every address, and nothing has changed."""
    run = matrix.trigger()
    before = matrix.state()
    assert any(run in row for row in before["dag_run"])
    assert before["task_instance"]
    answers = {f"{one.method} {one.url('RUN')}": matrix.ask(person, one, run).status_code for one in matrix.asked()}
    assert len(answers) > 40
    assert {address: status for address, status in answers.items() if status != 403} == {}
    assert matrix.state() == before


def check_allowed(matrix: Matrix, person: str) -> None:
    """The person reaches a run by the addresses about one run, and is refused at all others."""
    reached, refused = set(), {}
    for one in matrix.asked():
        answer = matrix.ask(person, one, matrix.trigger())
        if answer.status_code == 403:
            refused[one] = answer.json()["detail"]
        else:
            reached.add((one.path, one.dag))
    known = {(path, "stream_control") for path in REACHING}
    assert known - reached == set()
    # `PATCH dagRuns` is bulk, and shares its path with the trigger.
    assert {one.path for one in refused} >= {"dags/{dag_id}/clearDagRuns", "dags/{dag_id}/dagRuns", "backfills"}
    assert reached - known == set()
    assert {detail for detail in refused.values() if "name one run" not in detail} == set()


@pytest.mark.parametrize("person", ["viewer", "of_form", "of_flights"])
def test_who_may_not_edit_the_dag_of_the_stream_reaches_no_run_about_it(of_fab: Matrix, person: str) -> None:
    check_refused(of_fab, person)


@pytest.mark.parametrize("person", ["of_weather", "admin"])
def test_who_may_edit_the_dag_of_the_stream_reaches_one_run_at_a_time(of_fab: Matrix, person: str) -> None:
    check_allowed(of_fab, person)


def test_a_viewer_of_the_simple_auth_manager_reaches_no_run(of_simple: Matrix) -> None:
    check_refused(of_simple, "viewer")


@pytest.mark.parametrize("run", ["unknown", "a%00b"])
def test_who_is_not_logged_in_learns_of_no_run(of_simple: Matrix, run: str) -> None:
    with httpx.Client(base_url=of_simple.address, timeout=60) as stranger:
        answers = {
            f"{one.method} {one.url(run)}": stranger.request(one.method, one.url(run), json=one.body(run)).status_code
            for one in of_simple.asked()
        }
    assert {address: status for address, status in answers.items() if status not in (401, 403)} == {}


@pytest.mark.parametrize("person", ["user", "op", "admin"])
def test_other_roles_of_the_simple_auth_manager_edit_every_dag(of_simple: Matrix, person: str) -> None:
    check_allowed(of_simple, person)


def test_the_pages_ask_fab_about_plugins_and_about_the_dag_of_the_stream(of_fab: Matrix) -> None:
    """FAB's own role of viewers does not have *can read on Plugins*."""
    plan, page = "/sluice/streams/weather/plan/stop", "/sluice/streams/weather"
    plans = {person: of_fab.client(person).get(plan).status_code for person in FAB_PASSWORDS}
    assert plans == {"viewer": 403, **dict.fromkeys(EDITS, 403), "admin": 200, "of_weather": 200}
    pages = {person: of_fab.client(person).get(page).status_code for person in FAB_PASSWORDS}
    assert pages == {"viewer": 403, **dict.fromkeys(EDITS, 200), "admin": 200, "of_tables": 403}


CHOICES = [
    ("dags/table_maintenance/dagRuns", {"tables": ["silver.flights"]}, 200),
    ("dags/table_maintenance/dagRuns", {"tables": ["silver.flights", "quarantine.weather"]}, 403),
    ("dags/table_maintenance/dagRuns", {"tables": ["quarantine.flights"]}, 200),
    ("dags/table_maintenance/dagRuns", {"tables": ["no.such_table"]}, 400),
    ("dags/table_maintenance/dagRuns", {}, 200),
    ("dags/checkpoint_health/dagRuns", {"streams": ["weather"]}, 403),
    ("dags/checkpoint_health/dagRuns", {"streams": ["flights"]}, 200),
]


@pytest.mark.parametrize(("path", "conf", "status"), CHOICES)
def test_who_may_not_read_the_dag_of_a_stream_chooses_neither_it_nor_its_quarantine(
    of_fab: Matrix, path: str, conf: dict[str, object], status: int
) -> None:
    """The forms of the platform's DAGs are one each for all tables or streams."""
    body = {"logical_date": None, "conf": conf}
    assert of_fab.client("of_tables").post(f"/api/v2/{path}", json=body).status_code == status
    if status == 403:
        assert of_fab.client("admin").post(f"/api/v2/{path}", json=body).status_code == 200
