"""Bounded jobs on a real YARN, as their Airflow tasks run them: an increment, maintenance, and ends of each kind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from tests.fixtures.drivers import await_condition
from tests.fixtures.stack import Stack, stack_in
from tests.yarn.single_node import SingleNodeYarn

from sluice.declarations.engine_declaration import EngineDeclaration
from sluice.declarations.load_declarations import load_declarations
from sluice.launching.job_command import CheckQuality, JobCommand, MaintainTable, RunBackfill, RunIncrement
from sluice.ledger.maintenance_runs import recent_maintenance
from sluice.ledger.runs import newest_run
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table
from sluice_airflow.composition import Deployment, load_deployment
from sluice_airflow.operators.backfill_operator import BackfillOperator
from sluice_airflow.operators.spark_job_operator import SparkJobOperator

DEADLINE_SECONDS = 600.0
"""Far beyond what anything here takes on a quiet machine."""

STREAM = """\
stream: in_increments
description: Numbers of a folder, in increments, on a cluster
owner: a test
mode: incremental
schedule: {cron: "0 4 * * *"}
inputs:
  rows:
    stream:
      files: {connection: here, path: in, format: json, columns: [{name: id, type: long}]}
transformation: {sql: rows.sql}
outputs:
  numbers:
    iceberg: {table: silver.numbers}
"""

DAYS = """\
stream: in_days
description: Rows of days, on a cluster
owner: a test
mode: incremental
schedule: {cron: "0 4 * * *"}
inputs:
  rows:
    stream:
      iceberg: {table: bronze.days}
transformation: {sql: days.sql}
outputs:
  days:
    iceberg: {table: silver.days}
backfill: {column: at, interval: day}
"""

TABLE_OF_DAYS = """\
table: {}.days
description: rows of days
owner: a test
columns:
  - {{name: id, type: long}}
  - {{name: at, type: timestamptz}}
"""

TABLE = """\
table: silver.numbers
description: numbers
owner: a test
columns:
  - {name: id, type: long}
quality:
  expectations:
    - type: expect_column_values_to_be_between
      kwargs: {column: id, min_value: 0, max_value: 5}
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A lakehouse and a ledger."""
    with stack_in(tmp_path_factory.mktemp("stack") / "data") as stack:
        stack.up(("postgres", "seaweedfs"))
        yield stack


@pytest.fixture
def deployment(stack: Stack, yarn_connection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment with a Spark connection to YARN, a stream and its table."""
    pipelines, landing = tmp_path / "pipelines", tmp_path / "landing"
    pipelines.mkdir()
    (landing / "in").mkdir(parents=True)
    (landing / "in" / "numbers.json").write_text("".join(f'{{"id": {number}}}\n' for number in range(10)))
    (pipelines / "in_increments.stream.yaml").write_text(STREAM)
    (pipelines / "silver.numbers.table.yaml").write_text(TABLE)
    (pipelines / "rows.sql").write_text("SELECT id FROM rows\n")
    (pipelines / "in_days.stream.yaml").write_text(DAYS)
    (pipelines / "days.sql").write_text("SELECT id, at FROM rows\n")
    for namespace in ("bronze", "silver"):
        (pipelines / f"{namespace}.days.table.yaml").write_text(TABLE_OF_DAYS.format(namespace))
    for name, value in stack.environment().items():
        if name.startswith("SLUICE_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLUICE_PIPELINES", str(pipelines))
    monkeypatch.setenv("SLUICE_CHECKPOINTS", (tmp_path / "checkpoints").as_uri())
    monkeypatch.setenv("SLUICE_CONNECTIONS", f'{{"here": {{"kind": "files", "root": "{landing.as_uri()}"}}}}')
    deployment = load_deployment()
    declarations = load_declarations(pipelines)
    assert declarations.problems == ()
    for table in declarations.tables.values():
        create_or_evolve_table(open_catalog(deployment.settings), table.declaration)
    return deployment


def run(command: JobCommand, connection: str, *, run_id: str = "manual__1") -> SparkJobOperator:
    """Run a job as a task would."""
    operator = operator_of(command, connection)
    operator.execute(context_of(run_id))
    return operator


def operator_of(command: JobCommand, connection: str) -> SparkJobOperator:
    """The task of a job."""
    engine = EngineDeclaration.model_validate({"connection": connection, "executors": 1, "executor_memory": "512 MiB"})
    with DAG("jobs_on_yarn", schedule=None):
        return SparkJobOperator(task_id="run", command=command, engine=engine)


def context_of(run_id: str) -> Context:
    """What the operator reads of its task."""
    task: Any = SimpleNamespace(dag_id="jobs_on_yarn", run_id=run_id, task_id="run", map_index=-1, pushed={})
    task.xcom_push = task.pushed.__setitem__
    run: Any = SimpleNamespace(dag_id="jobs_on_yarn", run_id=run_id, run_type=run_id.partition("__")[0])
    return Context(ti=task, dag_run=run)


def test_jobs_run_on_yarn_and_their_failures_have_their_own_reasons(
    deployment: Deployment, yarn: SingleNodeYarn, yarn_connection: str
) -> None:
    by = "airflow: jobs_on_yarn, manual__1"

    run(RunIncrement(stream="in_increments", launched_by=by), yarn_connection)

    numbers = open_catalog(deployment.settings).load_table("silver.numbers").scan().to_arrow()["id"].to_numpy()
    assert sorted(int(number) for number in numbers) == list(range(10))
    with deployment.open_ledger() as ledger:
        done = newest_run(ledger, "in_increments")
        assert done is not None
        assert (done.launched_by, done.exit_code) == (by, 0)

    run(MaintainTable(table="silver.numbers", launched_by=by), yarn_connection)
    with deployment.open_ledger() as ledger:
        assert len(recent_maintenance(ledger, "silver.numbers", limit=5)) == 1

    with pytest.raises(AirflowFailException, match="1 of 1 expectations do not hold on 10 rows"):
        run(CheckQuality(table="silver.numbers", launched_by=by), yarn_connection)
    with pytest.raises(AirflowFailException, match=r"silver\.unknown"):
        run(MaintainTable(table="silver.unknown", launched_by=by), yarn_connection)
    assert yarn.running() == []


def test_a_backfill_on_yarn_replaces_its_interval(deployment: Deployment, yarn_connection: str) -> None:
    source, target = (open_catalog(deployment.settings).load_table(f"{one}.days") for one in ("bronze", "silver"))
    rows = [{"id": number, "at": datetime(2013, 1, 1 + number % 2, tzinfo=UTC)} for number in range(6)]
    source.append(pa.Table.from_pylist(rows, schema=source.schema().as_arrow()))
    run(RunIncrement(stream="in_days", launched_by="a test"), yarn_connection)
    target.refresh().delete("at < '2013-01-02T00:00:00+00:00'")
    assert len(target.refresh().scan().to_arrow()) == 3
    run_id = "backfill__2013-01-01"
    by = f"airflow: jobs_on_yarn, {run_id}"
    command = RunBackfill(stream="in_days", start="2013-01-01", end="2013-01-02", launched_by=by)
    engine = EngineDeclaration.model_validate({"connection": yarn_connection, "executors": 1})
    with DAG("backfills_on_yarn", schedule=None):
        operator = BackfillOperator(task_id="run", command=command, engine=engine)
    context = context_of(run_id)

    operator.execute(context)

    (result,) = context["ti"].pushed.values()  # type: ignore[attr-defined]
    assert (result["in_days"]["state"], result["in_days"]["rows"]["published"]) == ("published", 3)
    assert sorted(row["id"] for row in target.refresh().scan().to_arrow().to_pylist()) == list(range(6))


def test_a_second_try_waits_for_the_first_ones_application_and_a_killed_task_ends_it(
    deployment: Deployment, yarn: SingleNodeYarn, yarn_connection: str
) -> None:
    command = RunIncrement(stream="in_increments", launched_by="airflow: jobs_on_yarn, manual__2")
    tries = [operator_of(command, yarn_connection) for _ in range(2)]
    errors: list[AirflowException] = []

    def work(operator: SparkJobOperator) -> None:
        try:
            operator.execute(context_of("manual__2"))
        except AirflowException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(operator,)) for operator in tries]
    threads[0].start()
    await_condition(lambda: len(yarn.running()) == 1, within_seconds=DEADLINE_SECONDS)
    threads[1].start()
    await_condition(lambda: tries[1]._on_cluster is not None, within_seconds=DEADLINE_SECONDS)
    assert len(yarn.running()) == 1

    tries[1].on_kill()

    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert yarn.running() == []
    assert len(errors) == 2
    assert all("ended as killed" in str(error) for error in errors)
