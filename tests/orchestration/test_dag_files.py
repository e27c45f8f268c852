"""DAG files as Airflow reads them: with nothing heavy, without network or database, each alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fixtures.sample_declarations import write_continuous_stream, write_incremental_stream, write_table

from sluice.declarations.stream_declaration import PLATFORM_DAGS
from sluice.settings import project_root

DAGS = project_root() / "dags"
DAG_FILES = sorted(file.name for file in DAGS.glob("*.py"))
PIPELINES = project_root() / "include" / "pipelines"
_WANTED = "_AIRFLOW_PARSING_CONTEXT_DAG_ID"
"""How Airflow tells a DAG file which DAG the task to be run belongs to; `get_parsing_context` reads it."""

HEAVY = ("pyspark", "py4j", "pyiceberg", "pyarrow", "pandas", "great_expectations", "psycopg", "psycopg2", "boto3",
         "confluent_kafka", "sluice.ledger.connection", "sluice.tables", "sluice.stack")  # fmt: skip

PARSE = """\
import importlib.util, json, os, socket, sys

import airflow.sdk
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.serialization.serialized_objects import DagSerialization

def refuse(*_, **__):
    raise AssertionError("a DAG file asks for the network")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse

def parse(dag_file, environment):
    os.environ.update(environment)
    before = set(sys.modules)
    specification = importlib.util.spec_from_file_location("dag_file", dag_file)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    dags = [dag for dag in vars(module).values() if isinstance(dag, airflow.sdk.DAG)]
    for dag in dags:
        json.dumps(DagSerialization.to_dict(dag))
    times = {dag.dag_id: getattr(dag.schedule, "expression", None) for dag in dags}
    on = [dag.dag_id for dag in dags if dag.is_paused_upon_creation is False]
    modules = sorted(set(sys.modules) - before)
    return {"dags": [dag.dag_id for dag in dags], "modules": modules, "times": times, "on": on}

for dag_file, environment in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        print(json.dumps(parse(dag_file, environment)), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Reads DAG files, each in a process of its own that has imported Airflow and nothing else."""


@dataclass(frozen=True)
class Parsed:
    """What came of reading a DAG file.

    modules: what was imported beyond Airflow and its Spark provider. times: cron expressions. on: the DAGs that a new
    Airflow does not pause.
    """

    dags: list[str]
    modules: list[str]
    times: dict[str, str | None]
    on: list[str]


def _parse(*requests: tuple[str, Path, str | None]) -> list[Parsed]:
    """Read DAG files without the settings of a deployment: name, folder of declarations, the one wanted DAG."""
    unset = ("SLUICE_", "AIRFLOW__", "_AIRFLOW")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    environment["AIRFLOW__CORE__PLUGINS_FOLDER"] = str(project_root() / "plugins")  # it registers a timetable
    asked = [
        (str(DAGS / name), {"SLUICE_PIPELINES": str(pipelines)} | ({_WANTED: dag_id} if dag_id else {}))
        for name, pipelines, dag_id in requests
    ]
    command = [sys.executable, "-c", PARSE, json.dumps(asked)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)  # noqa: S603  # ours
    answers = [line for line in done.stdout.splitlines() if line.startswith('{"dags"')]
    assert len(answers) == len(requests), done.stderr
    return [Parsed(**json.loads(answer)) for answer in answers]


@pytest.fixture(scope="module")
def declared() -> dict[str, Parsed]:
    """Every DAG file, read with the declarations of this project."""
    return dict(zip(DAG_FILES, _parse(*((name, PIPELINES, None) for name in DAG_FILES)), strict=True))


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand declared streams."""
    folder = tmp_path_factory.mktemp("thousand")
    write_table(folder, "bronze.flights")
    for number in range(1000):
        write_table(folder, f"silver.t{number}")
        write_continuous_stream(folder, f"stream_{number:04}", writes=f"silver.t{number}")
    return folder


@pytest.mark.parametrize("dag_file", DAG_FILES)
def test_a_dag_file_imports_nothing_heavy(declared: dict[str, Parsed], dag_file: str) -> None:
    parsed = declared[dag_file]
    assert [module for module in parsed.modules if module.startswith(HEAVY)] == []


def test_every_declared_stream_has_its_dag_and_the_platform_its_own(declared: dict[str, Parsed]) -> None:
    streams = [file.name.removesuffix(".stream.yaml") for file in PIPELINES.rglob("*.stream.yaml")]
    found = [dag for parsed in declared.values() for dag in parsed.dags]
    backfilled = ["gold_delays_by_carrier_hour__backfill", "silver_flights__backfill"]
    assert sorted(found) == sorted([*streams, *backfilled, *PLATFORM_DAGS])


def test_the_guide_has_the_schedules_of_the_platforms_dags(declared: dict[str, Parsed]) -> None:
    guide = (project_root() / "docs" / "guides" / "platform-dags.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]+)`|none) \| (on|paused) \|", guide, re.MULTILINE)
    times = {dag: time for parsed in declared.values() for dag, time in parsed.times.items()}
    on = {dag for parsed in declared.values() for dag in parsed.on}

    assert {dag for dag, _, _ in rows} == set(PLATFORM_DAGS)
    assert rows == [(dag, times[dag] or "", "on" if dag in on else "paused") for dag, _, _ in rows]


def test_before_a_task_runs_only_its_own_dag_is_built(tmp_path: Path) -> None:
    for table in ("bronze.flights", "silver.flights"):
        write_table(tmp_path, table)
    for stream in ("one", "two"):
        write_table(tmp_path, f"silver.{stream}")
        write_continuous_stream(tmp_path, stream, writes=f"silver.{stream}")
    write_incremental_stream(tmp_path, "three", schedule="{cron: '@daily'}")
    parsed = _parse(
        ("streams.py", tmp_path, None), ("streams.py", tmp_path, "two"), ("increments.py", tmp_path, "three")
    )
    assert [seen.dags for seen in parsed] == [["one", "two"], ["two"], ["three"]]


@pytest.mark.full  # every run: `test_a_broken_declaration_is_a_red_dag_that_shows_file_and_line`
def test_a_broken_file_hides_no_valid_stream(tmp_path: Path) -> None:
    for table in ("bronze.flights", "silver.flights", "silver.other"):
        write_table(tmp_path, table)
    write_continuous_stream(tmp_path, "sound")
    write_continuous_stream(tmp_path, "unsound", writes="silver.other").write_text("stream: [unclosed\n")
    (tmp_path / "gold.flights.table.yaml").write_bytes(b"\xff\xfe not text")
    parsed = _parse(
        ("streams.py", tmp_path, None),
        ("table_maintenance.py", tmp_path, None),
        ("broken_declarations.py", tmp_path, None),
        ("broken_declarations.py", tmp_path, "broken__unsound.stream"),
    )
    assert [seen.dags for seen in parsed] == [
        ["sound"],
        ["table_maintenance"],
        ["broken__gold.flights.table", "broken__unsound.stream"],
        ["broken__unsound.stream"],
    ]


@pytest.mark.full  # every run: `test_before_a_task_runs_only_its_own_dag_is_built`
def test_of_a_thousand_streams_a_task_reads_its_own(thousand: Path) -> None:
    # How long that takes is measured by benchmarks/parse_time.py.
    every, one = _parse(("streams.py", thousand, None), ("streams.py", thousand, "stream_0500"))
    assert len(every.dags) == 1000
    assert one.dags == ["stream_0500"]
