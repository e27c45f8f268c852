"""Streams of every connection with a secret fail on the whole platform: their secrets lie in private files alone."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml
from tests.fixtures.deployment import PLANTED_SECRET
from tests.fixtures.drivers import await_condition
from tests.fixtures.secret_search import (
    PRIVATE_FILES,
    Written,
    command_lines_of,
    databases_of,
    files_of,
    generated_secrets,
    metadata_of_tables,
    places_with,
    readable_by_others,
    rows_of,
)
from tests.fixtures.stack import Stack, stack_in

from sluice.demo.airflow_api import AirflowAccess, open_airflow_api
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import recent_runs
from sluice.stack.credentials import AIRFLOW_USER, Credentials, read_credentials

pytestmark = [
    pytest.mark.timeout(1800),  # a start of the whole platform and six of Spark, on a machine that may be busy
    pytest.mark.full,  # every test run looks for the secrets of the demo's stack (`test_demo.py`) and of Airflow alone
]

_RUN_SECONDS = 900
_CLOSED = "127.0.0.1:1"
_PLANTED = {
    "SLUICE_CONNECTIONS__EVENTS__PASSWORD": f"{PLANTED_SECRET}-kafka",
    "SLUICE_CONNECTIONS__DATABASE__PASSWORD": f"{PLANTED_SECRET}-database",
    "SLUICE_CONNECTIONS__RECORDS__SECRET_ACCESS_KEY": f"{PLANTED_SECRET}-kinesis",
    "SLUICE_CONNECTIONS__SCHEMAS__PASSWORD": f"{PLANTED_SECRET}-registry",
    "AIRFLOW_CONN_OTHER": f'{{"conn_type": "http", "password": "{PLANTED_SECRET}-connection"}}',
    "AIRFLOW_VAR_OTHER": f"{PLANTED_SECRET}-variable",
}
_CONNECTIONS = {
    "SLUICE_CONNECTIONS__EVENTS__KIND": "kafka",
    "SLUICE_CONNECTIONS__EVENTS__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
    "SLUICE_CONNECTIONS__EVENTS__SASL_MECHANISM": "SCRAM-SHA-512",
    "SLUICE_CONNECTIONS__EVENTS__USERNAME": "user",
    "SLUICE_CONNECTIONS__DATABASE__KIND": "jdbc",
    "SLUICE_CONNECTIONS__DATABASE__URL": f"jdbc:postgresql://{_CLOSED}/x",
    "SLUICE_CONNECTIONS__DATABASE__USER": "user",
    "SLUICE_CONNECTIONS__RECORDS__KIND": "kinesis",
    "SLUICE_CONNECTIONS__RECORDS__ENDPOINT": f"http://{_CLOSED}",
    "SLUICE_CONNECTIONS__RECORDS__ACCESS_KEY_ID": "user",
    "SLUICE_CONNECTIONS__SCHEMAS__KIND": "schema_registry",
    "SLUICE_CONNECTIONS__SCHEMAS__URL": f"http://{_CLOSED}",
    "SLUICE_CONNECTIONS__SCHEMAS__USERNAME": "user",
}
_VALUE = {"format": "avro", "registry": "schemas", "subject": "events-value"}
_INPUTS: dict[str, dict[str, object]] = {
    "reads_events": {"rows": {"stream": {"kafka": {"connection": "events", "topics": ["events"]}}}},
    "reads_records": {"rows": {"stream": {"kinesis": {"connection": "records", "stream": "records"}}}},
    "decodes_schemas": {
        "rows": {"stream": {"kafka": {"connection": "flights_kafka", "topics": ["t"], "value": _VALUE}}}
    },
    "looks_up": {
        "rows": {"stream": {"files": {"connection": "landing", "path": "rows", "format": "text"}}},
        "names": {"static": {"jdbc": {"connection": "database", "table": "names"}}},
    },
    "raises_all": {"rows": {"stream": {"files": {"connection": "landing", "path": "rows", "format": "text"}}}},
    "casts_people": {"rows": {"stream": {"files": {"connection": "landing", "path": "people", "format": "text"}}}},
}
"""The inputs of each stream. `raises_all` raises an error with the whole environment of the driver, `casts_people`
one of Spark about a row."""

_ROW = "ann.of.the.planted.row@example.org"

_FAILURES = {
    "reads_events": "Kafka at ",
    "reads_records": "Kinesis does not answer",
    "decodes_schemas": "The schema registry",
    "looks_up": "PSQLException",
    "raises_all": "this is the environment: ",
    "casts_people": "CAST_INVALID_INPUT",
}
"""Some words of the reason of each failure."""

_RAISES_ALL = '''"""A transformation that fails with everything it can read."""
import os


def fail(rows):
    raise RuntimeError(f"this is the environment: {dict(os.environ)}")
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A stack on which every stream has failed.

    failures: as the ledger has them, by stream. shown: what people were shown meanwhile.
    """

    stack: Stack
    failures: Mapping[str, str]
    shown: tuple[Written, ...]


def declare(pipelines: Path, stream: str) -> None:
    """Declare an incremental stream and its table."""
    sql = {"looks_up": "both.sql", "casts_people": "cast.sql"}.get(stream, "rows.sql")
    declaration = {
        "stream": stream,
        "description": f"what {stream} does",
        "owner": "owner",
        "mode": "incremental",
        "schedule": {"cron": "0 0 1 1 *"},
        "inputs": _INPUTS[stream],
        "transformation": {"python": "raises_all.py:fail"} if stream == "raises_all" else {"sql": sql},
        "outputs": {"main": {"iceberg": {"table": f"silver.{stream}"}}},
        "quarantine": stream == "decodes_schemas",
    }
    table = {
        "table": f"silver.{stream}",
        "description": f"what {stream} writes",
        "owner": "owner",
        "columns": [{"name": "value", "type": "string"}],
    }
    (pipelines / f"silver.{stream}.table.yaml").write_text(yaml.safe_dump(table))
    (pipelines / f"{stream}.stream.yaml").write_text(yaml.safe_dump(declaration))


def own_broker() -> dict[str, str]:
    """A port for the stack's Kafka, to which a connection with the planted password leads: Kafka refuses it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return {"SLUICE_KAFKA_PORT": str(port), "SLUICE_CONNECTIONS__EVENTS__BOOTSTRAP_SERVERS": f"127.0.0.1:{port}"}


def sluice(stack: Stack, *words: str) -> Written:
    """What a command of a person prints, whatever its exit code."""
    argv = [sys.executable, "-m", "sluice.cli.app", *words]
    done = subprocess.run(  # noqa: S603  # our own command
        argv, env=stack.shell() | stack.environment(), capture_output=True, timeout=120, check=False
    )
    return f"sluice {' '.join(words)}", done.stdout + done.stderr


def pages(stack: Stack) -> Iterator[Written]:
    """The pages about the streams, as an administrator sees them."""
    url = stack.environment()["AIRFLOW__API__BASE_URL"]
    password = credentials_of(stack).airflow_admin_password
    with httpx.Client(base_url=url, timeout=60, follow_redirects=True) as client:
        answer = client.post("/auth/token", json={"username": AIRFLOW_USER, "password": password})
        client.cookies.set("_token", answer.json()["access_token"])
        for address in ("/sluice/streams", "/sluice/tables", *(f"/sluice/streams/{stream}" for stream in _INPUTS)):
            page = client.get(address)
            assert page.status_code == 200, page.text
            yield f"the page {address}", page.content


def credentials_of(stack: Stack) -> Credentials:
    """The credentials that the stack generated."""
    return read_credentials(stack.data / "credentials.json")


def secrets_of(stack: Stack) -> dict[str, str]:
    """Every secret of the deployment: those that were generated, and those that were planted."""
    planted = {name: value for name, value in _PLANTED.items() if not name.startswith("AIRFLOW_CONN")}
    return {
        **generated_secrets(stack),
        **planted,
        "AIRFLOW_CONN_OTHER": f"{PLANTED_SECRET}-connection",
    }


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failed]:
    """A whole stack with the planted connections, on which a run of each stream has failed."""
    pipelines = tmp_path_factory.mktemp("pipelines")
    (pipelines / "rows.sql").write_text("select 'x' as value from rows\n")
    (pipelines / "both.sql").write_text("select 'x' as value from rows cross join names\n")
    (pipelines / "cast.sql").write_text("select string(cast(value as int)) as value from rows\n")
    (pipelines / "raises_all.py").write_text(_RAISES_ALL)
    people = tmp_path_factory.mktemp("people") / "people.txt"
    people.write_text(f"{_ROW}\n")
    for stream in _INPUTS:
        declare(pipelines, stream)
    data = tmp_path_factory.mktemp("planted") / "data"
    with stack_in(data, SLUICE_PIPELINES=str(pipelines), **own_broker(), **_CONNECTIONS, **_PLANTED) as stack:
        started = stack.up()
        created = sluice(stack, "table", "create")
        uploaded = sluice(stack, "stack", "upload", "--to", "people", str(people))
        failures = fail_all(stack)
        commands = [("stream", verb, stream) for stream in _INPUTS for verb in ("show", "events", "logs")]
        printed = [sluice(stack, *words) for words in (("stream", "status"), ("validate",), *commands)]
        shown = (
            ("sluice stack up", (started.output + started.errors).encode()),
            created,
            uploaded,
            *printed,
            *pages(stack),
        )
        yield Failed(stack=stack, failures=failures, shown=shown)
    shutil.rmtree(data)


def fail_all(stack: Stack) -> dict[str, str]:
    """Run every stream until a driver of it has failed, and return the failures."""
    environment = stack.environment()
    access = AirflowAccess(
        url=environment["AIRFLOW__API__BASE_URL"],
        user=AIRFLOW_USER,
        password=credentials_of(stack).airflow_admin_password,
    )
    ledger_url = environment["SLUICE_LEDGER_URL"]
    with open_airflow_api(access) as airflow, open_ledger(ledger_url) as ledger:
        for stream in _INPUTS:
            await_condition(partial(airflow.is_known, stream), within_seconds=120)
            airflow.unpause(stream)
            airflow.trigger(stream, conf={})
        left = set(_INPUTS)

        def all_failed() -> bool:
            for stream in [one for one in left if has_failed(ledger, one)]:
                airflow.request("PATCH", f"/api/v2/dags/{stream}", json={"is_paused": True})  # no second try
                left.remove(stream)
            return not left

        await_condition(all_failed, within_seconds=_RUN_SECONDS)
        return {stream: failure_in(ledger, stream) for stream in _INPUTS}


def has_failed(ledger: Ledger, stream: str) -> bool:
    """Whether a driver of the stream has reported why it failed."""
    return failure_in(ledger, stream) != ""


def failure_in(ledger: Ledger, stream: str) -> str:
    """Why the newest driver that has failed did so; empty while none has."""
    reasons = [run.reason for run in recent_runs(ledger, stream, limit=5) if run.state is RunState.FAILED]
    return reasons[0] or "" if reasons else ""


def test_the_streams_failed_of_what_they_should(failed: Failed) -> None:
    others = {stream: reason for stream, reason in failed.failures.items() if _FAILURES[stream] not in reason}
    assert others == {}
    assert set(failed.failures) == set(_INPUTS)
    logs = [content for place, content in files_of(failed.stack) if place.startswith("logs/")]
    assert any(b"'SLUICE_CATALOG__CREDENTIAL': " in log for log in logs), "the whole environment was written"


def test_no_secret_was_shown(failed: Failed) -> None:
    assert places_with(secrets_of(failed.stack), failed.shown) == set()


def test_no_secret_is_in_the_ledger_or_in_airflows_database(failed: Failed) -> None:
    rows = [written for database in databases_of(failed.stack) for written in rows_of(database)]
    found = dict(rows)
    assert b"raises_all" in found["sluice.runs"]
    assert b"raises_all" in found["public.task_instance"]
    assert places_with(secrets_of(failed.stack), rows) == set()


def test_no_secret_is_in_a_command_line_or_in_the_metadata_of_a_table(failed: Failed) -> None:
    written = [*command_lines_of(failed.stack), *metadata_of_tables(failed.stack)]
    assert len(written) > 8
    assert places_with(secrets_of(failed.stack), written) == set()


def test_the_secrets_lie_in_a_few_private_files_alone(failed: Failed) -> None:
    found = places_with(secrets_of(failed.stack), files_of(failed.stack))
    files = {place for place, _ in found}
    assert {name for _, name in found} == set(secrets_of(failed.stack)), "the search finds every secret"
    assert readable_by_others(failed.stack, files) == []
    assert files == PRIVATE_FILES


def test_a_value_of_a_row_lies_in_the_table_s_files_and_in_logs_of_drivers_alone(failed: Failed) -> None:
    """Whoever may read a DAG reads why it failed, and that is not the permission to see records."""
    row = {"the row": _ROW}
    rows = [written for database in databases_of(failed.stack) for written in rows_of(database)]
    shown = [written for written in failed.shown if not written[0].startswith("sluice stream logs")]
    assert (
        places_with(row, [*rows, *shown, *command_lines_of(failed.stack), *metadata_of_tables(failed.stack)]) == set()
    )
    files = {place for place, _ in places_with(row, files_of(failed.stack))}
    assert any(place.startswith("logs/") for place in files), "the whole text is in the log of the driver"
    assert {place.split("/")[0] for place in files} <= {"logs", "seaweedfs"}
    logs = [place for place in files if place.startswith("logs/")]
    assert readable_by_others(failed.stack, logs, allowed=0o640) == [], "logs are for the group of the drivers, too"
