"""What programs of one's own get of the local stack: variables, credentials, a topic, files, SQL that only reads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from tests.fixtures.stack import CommandResult, Stack

from sluice.checkpoints.s3_checkpoint_files import s3_client
from sluice.cli.lakehouse_reader import as_reader
from sluice.stack.credentials import read_credentials
from sluice.tables.catalog import open_catalog

ROWS = pa.table({"id": [1, 2], "word": ["[b]", None]})


def sluice(stack: Stack, *words: str, given: str = "") -> CommandResult:
    """Run any command as a person does who has no variable but the place of the stack."""
    argv = [sys.executable, "-m", "sluice.cli.app", *words]
    ended = subprocess.run(argv, env=stack.shell(), input=given, capture_output=True, text=True)  # noqa: S603  # our own
    return CommandResult(exit_code=ended.returncode, output=ended.stdout, errors=ended.stderr)


@pytest.fixture(scope="module")
def lakehouse(services_stack: Stack) -> Iterator[Catalog]:
    """The catalog, with one table."""
    catalog = open_catalog(services_stack.settings())
    catalog.create_namespace_if_not_exists("access")
    catalog.create_table("access.words", ROWS.schema).append(ROWS)
    yield catalog
    catalog.drop_table("access.words")


def secrets_of(stack: Stack) -> list[str]:
    """Every secret of a stack; the id of a key is none."""
    values = asdict(read_credentials(stack.data / "credentials.json"))
    return [value for name, value in values.items() if name != "access_key_id"]


def test_a_pipe_gets_no_secret_that_it_did_not_ask_for(services_stack: Stack) -> None:
    printed = [sluice(services_stack, "stack", *words).output for words in (("env",), ("credentials",))]

    assert "SLUICE_CATALOG__URI=http://127.0.0.1:" in printed[0]
    assert "SLUICE_CONNECTIONS__LOCAL_KAFKA__PASSWORD='********'" in printed[0]
    assert '"sasl.password": "********"' in printed[1]
    assert [secret for secret in secrets_of(services_stack) if any(secret in text for text in printed)] == []


def test_a_shell_that_evaluates_the_export_has_every_variable(services_stack: Stack) -> None:
    exported = sluice(services_stack, "stack", "env", "--export")
    shell = f"{exported.output}\n{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"

    ended = subprocess.run(["/bin/bash", "-c", shell], env={}, capture_output=True, text=True, check=True)  # noqa: S603  # our own

    expected = {name: value for name, value in services_stack.environment().items() if name != "SLUICE_STACK"}
    assert expected.items() <= json.loads(ended.stdout).items()
    assert "SLUICE_STACK" not in json.loads(ended.stdout)


@pytest.mark.full
def test_the_snippets_work_as_they_are_pasted(services_stack: Stack, lakehouse: Catalog) -> None:
    code = sluice(services_stack, "stack", "credentials", "--show-secrets").output
    asked = 'print(s3.list_objects_v2(Bucket="landing")["Name"], len(producer.list_topics(timeout=20).brokers))'
    tables = 'print(catalog.load_table("access.words").scan().to_arrow().num_rows)'

    ended = subprocess.run(
        [sys.executable, "-"], input=f"{code}\n{asked}\n{tables}\n", capture_output=True, text=True
    )  # our own

    assert ended.stdout.splitlines() == ["landing 1", "2"], ended.stderr


@pytest.mark.full  # every run: a file that is uploaded
def test_a_topic_is_made_once(services_stack: Stack) -> None:
    planned = sluice(services_stack, "stack", "create-topic", "quakes", "--partitions", "2", "--dry-run")
    made = sluice(services_stack, "stack", "create-topic", "quakes", "--partitions", "2")
    again = sluice(services_stack, "stack", "create-topic", "quakes")

    assert planned.output.startswith("The topic quakes would have 2 partitions.\n")
    assert (made.exit_code, made.output) == (0, "The topic quakes has 2 partitions.\n")
    assert again.exit_code == 1
    assert "has a topic quakes already" in again.errors


def test_files_are_uploaded_and_never_replaced(services_stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "a b.csv"
    file.write_text("id\n1\n")

    uploaded = sluice(services_stack, "stack", "upload", str(file), "--to", "weather/2026")
    file.write_text("other")
    again = sluice(services_stack, "stack", "upload", str(file), "--to", "weather/2026/")
    outside = sluice(services_stack, "stack", "upload", str(file), "--to", "../lakehouse")

    stored = s3_client(services_stack.settings().object_store).get_object(Bucket="landing", Key="weather/2026/a b.csv")
    assert uploaded.output == "s3a://landing/weather/2026/a b.csv\n"
    assert stored["Body"].read() == b"id\n1\n"
    assert (again.exit_code, "has weather/2026/a b.csv already" in again.errors) == (1, True)
    assert outside.exit_code == 2


def test_sql_reads_the_tables_and_changes_nothing(services_stack: Stack, lakehouse: Catalog) -> None:
    counted = sluice(services_stack, "sql", "SELECT count(*) AS n FROM access.words", "--json")
    piped = sluice(services_stack, "sql", given="SELECT id, word FROM access.words ORDER BY id;")
    refused = [
        sluice(services_stack, "sql", query)
        for query in (
            "INSERT INTO access.words VALUES (3, 'c')",
            "COPY (SELECT 1) TO 's3://landing/written.csv'",
            "SELECT * FROM access.wrods",
        )
    ]

    assert counted.json == [{"n": 2}]
    assert [line.split() for line in piped.output.splitlines()] == [["id", "word"], ["1", "[b]"], ["2", "null"]]
    assert [result.exit_code for result in refused] == [1, 1, 1]
    assert all(result.errors.startswith("sluice: The query cannot be answered: ") for result in refused)
    assert lakehouse.load_table("access.words").scan().to_arrow().num_rows == 2


def test_the_reader_may_not_write_past_duckdb_either(
    services_stack: Stack, lakehouse: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_DATA", str(services_stack.data))
    settings = as_reader(services_stack.settings())
    catalog, files = open_catalog(settings), s3_client(settings.object_store)

    assert catalog.load_table("access.words").scan().to_arrow().num_rows == 2
    with pytest.raises(OSError, match=r"(?i)access.?denied"):
        catalog.load_table("access.words").append(ROWS)
    with pytest.raises(NoSuchTableError):
        catalog.drop_table("access.words")
    for bucket in ("landing", "lakehouse"):
        with pytest.raises(files.exceptions.ClientError, match="AccessDenied"):
            files.put_object(Bucket=bucket, Key="x", Body=b"x")
    assert lakehouse.load_table("access.words").scan().to_arrow().num_rows == 2
