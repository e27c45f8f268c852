"""The queue's work on a real YARN, as Airflow's tasks ask for it: an increment, maintenance, and ends of each kind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from tests.fixtures.drivers import await_condition
from tests.fixtures.stack import Stack, stack_in
from tests.yarn.single_node import SingleNodeYarn

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.applications import recent_applications
from sluice.ledger.maintenance_runs import recent_maintenance
from sluice.ledger.runs import newest_run
from sluice.ledger.work_items import observe_item
from sluice.ledger.work_values import WorkState
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table
from sluice.work.requests import CheckTable, Increment, MaintainTable, ReplaceInterval, WorkRequest
from sluice_airflow.composition import Deployment, load_deployment
from sluice_airflow.dag_builders.backfills import BackfillOperator
from sluice_airflow.operators import WorkOperator

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
engine: {connection: the_cluster, executors: 1, cores: 1, executor_memory: 512 MiB}
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
engine: {connection: the_cluster, executors: 1, cores: 1, executor_memory: 512 MiB}
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
    """A deployment with Spark connections to YARN, streams and their tables."""
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
    # Work on tables runs where the default connection says.
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", os.environ[f"AIRFLOW_CONN_{yarn_connection.upper()}"])
    for name, value in stack.environment().items():
        if name.startswith("SLUICE_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLUICE_PIPELINES", str(pipelines))
    monkeypatch.setenv("AIRFLOW_VAR_SLUICE_AIRFLOW_ID", "the-airflow-of-this-test")  # no database has it here
    monkeypatch.setenv("SLUICE_CHECKPOINTS", (tmp_path / "checkpoints").as_uri())
    monkeypatch.setenv("SLUICE_CONNECTIONS", f'{{"here": {{"kind": "files", "root": "{landing.as_uri()}"}}}}')
    deployment = load_deployment()
    declarations = load_declarations(pipelines)
    assert declarations.problems == ()
    for table in declarations.tables.values():
        create_or_evolve_table(open_catalog(deployment.settings), table.declaration)
    return deployment


class Task:
    """A task of Airflow with an operator, without its triggerer: a deferred one is resumed here."""

    def __init__(self, deployment: Deployment, operator: WorkOperator, *, run_id: str) -> None:
        self.deployment = deployment
        self.operator = operator
        self.context = context_of(run_id)
        operator.asked_by = f"airflow: work_on_yarn, {run_id}"

    def begin(self) -> None:
        """Ask for the work, and start an application if none takes it."""
        with suppress(TaskDeferred):
            self.operator.execute(self.context)

    def look(self) -> bool:
        """Look at the work as its trigger does, and resume the task. Returns whether it has ended well."""
        try:
            self.operator.look_again(self.context, item=self.item)
        except TaskDeferred:
            return False
        return True

    def end(self) -> None:
        """Wait for the work, and end as it has ended."""
        await_condition(self.look, within_seconds=DEADLINE_SECONDS)

    @property
    def item(self) -> str:
        """The item that the task waits for."""
        return self.operator._item


def task_of(deployment: Deployment, request: WorkRequest, *, run_id: str = "manual__1") -> Task:
    """The task that asks for a piece of work."""
    with DAG("work_on_yarn", schedule=None):
        if isinstance(request, ReplaceInterval):
            return Task(deployment, BackfillOperator(task_id="run", request=request), run_id=run_id)
        return Task(deployment, WorkOperator(task_id="run", request=request), run_id=run_id)


def do(deployment: Deployment, request: WorkRequest, *, run_id: str = "manual__1") -> Task:
    """Have a piece of work done as a task would."""
    task = task_of(deployment, request, run_id=run_id)
    task.begin()
    task.end()
    return task


def context_of(run_id: str) -> Context:
    """What the operator reads of its task."""
    task: Any = SimpleNamespace(dag_id="work_on_yarn", run_id=run_id, task_id="run", map_index=-1, pushed={})
    task.xcom_push = task.pushed.__setitem__
    run: Any = SimpleNamespace(dag_id="work_on_yarn", run_id=run_id, run_type=run_id.partition("__")[0])
    return Context(ti=task, dag_run=run)


def await_none_running(yarn: SingleNodeYarn) -> None:
    """An application waits a moment for further work before it ends."""
    await_condition(lambda: yarn.running() == [], within_seconds=DEADLINE_SECONDS)


def test_work_is_done_on_yarn_and_its_failures_have_their_own_reasons(
    deployment: Deployment, yarn: SingleNodeYarn
) -> None:
    do(deployment, Increment(stream="in_increments"))

    numbers = open_catalog(deployment.settings).load_table("silver.numbers").scan().to_arrow()["id"].to_numpy()
    assert sorted(int(number) for number in numbers) == list(range(10))
    with deployment.open_ledger() as ledger:
        done = newest_run(ledger, "in_increments")
        assert done is not None
        assert (done.launched_by, done.exit_code) == ("airflow: work_on_yarn, manual__1", 0)

    do(deployment, MaintainTable(table="silver.numbers"))
    with deployment.open_ledger() as ledger:
        assert len(recent_maintenance(ledger, "silver.numbers", limit=5)) == 1
    with pytest.raises(AirflowFailException, match="1 of 1 expectations do not hold on 10 rows"):
        do(deployment, CheckTable(table="silver.numbers"))
    with pytest.raises(AirflowFailException, match=r"silver\.unknown"):
        do(deployment, MaintainTable(table="silver.unknown"))
    await_none_running(yarn)
    with deployment.open_ledger() as ledger:
        of_tables, of_stream = recent_applications(ledger, limit=10)
    assert (of_stream.host, of_stream.reason) == ("the_cluster", "no further work came")
    assert (of_tables.host, of_tables.reason) == ("spark_default", "no further work came")


def test_a_backfill_on_yarn_replaces_its_interval(deployment: Deployment, yarn: SingleNodeYarn) -> None:
    source, target = (open_catalog(deployment.settings).load_table(f"{one}.days") for one in ("bronze", "silver"))
    rows = [{"id": number, "at": datetime(2013, 1, 1 + number % 2, tzinfo=UTC)} for number in range(6)]
    source.append(pa.Table.from_pylist(rows, schema=source.schema().as_arrow()))
    do(deployment, Increment(stream="in_days"))
    target.refresh().delete("at < '2013-01-02T00:00:00+00:00'")
    assert len(target.refresh().scan().to_arrow()) == 3

    request = ReplaceInterval(stream="in_days", start="2013-01-01", end="2013-01-02")
    task = do(deployment, request, run_id="backfill__2013-01-01")

    (result,) = task.context["ti"].pushed.values()  # type: ignore[attr-defined]
    assert (result["in_days"]["state"], result["in_days"]["rows"]["published"]) == ("published", 3)
    assert sorted(row["id"] for row in target.refresh().scan().to_arrow().to_pylist()) == list(range(6))
    await_none_running(yarn)


def test_a_second_try_submits_nothing_and_a_killed_task_withdraws_its_work(
    deployment: Deployment, yarn: SingleNodeYarn
) -> None:
    tries = [task_of(deployment, Increment(stream="in_increments"), run_id="manual__2") for _ in range(2)]
    tries[0].begin()
    await_condition(lambda: len(yarn.running()) == 1, within_seconds=DEADLINE_SECONDS)
    tries[1].begin()
    assert len(yarn.running()) == 1

    tries[1].operator.on_kill()

    with deployment.open_ledger() as ledger:
        assert {observe_item(ledger, one.item).state for one in tries} == {WorkState.WITHDRAWN}
    await_none_running(yarn)
