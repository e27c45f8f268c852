"""The task of a table that is maintained, on a real catalog and ledger: it asks the queue only for what needs Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from tests.fixtures.sample_declarations import write_continuous_stream, write_table
from tests.fixtures.stack import Stack

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.applications import recent_applications
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import current_generation
from sluice.ledger.maintenance_runs import recent_maintenance
from sluice.ledger.work_items import find_items
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table
from sluice.work.requests import MaintainTable
from sluice_airflow.composition import Deployment, load_deployment
from sluice_airflow.dag_builders.table_jobs import MaintenanceOperator, table_maintenance_dag

TABLE = "silver.flights"
BY = "airflow: table_maintenance, a run"
POLICY = "maintenance:\n  compaction: {min_input_files: 5}\n  expiry: {older_than: 1 millisecond, retain_last: 1}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A deployment with one table of one snapshot."""

    deployment: Deployment
    pipelines: Path
    ledger: Ledger

    def append(self, files: int) -> None:
        """Append files of one row to the table."""
        table = open_catalog(self.deployment.settings).load_table(TABLE)
        rows = pa.Table.from_pylist([{"id": 1}], schema=table.schema().as_arrow())
        for _ in range(files):
            table.append(rows)

    def run_task(self) -> None:
        """Run the task of the table."""
        with DAG("table_maintenance", schedule=None):
            operator = MaintenanceOperator(task_id="flights", request=MaintainTable(table=TABLE))
        operator.asked_by = BY
        operator.execute(Context())

    def asked(self) -> list[str]:
        """The tables whose maintenance was asked of the queue."""
        return [item.subject for item, _ in find_items(self.ledger, limit=10)]


@pytest.fixture
def place(stack: Stack, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The deployment. Its `spark-submit` starts nothing."""
    program = folder / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name, value in stack.environment().items():
        if name.startswith("SLUICE_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    monkeypatch.setenv("SLUICE_CHECKPOINTS", (folder / "checkpoints").as_uri())
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    write_table(folder, TABLE, more=POLICY)
    deployment = load_deployment()
    catalog = open_catalog(deployment.settings)
    create_or_evolve_table(catalog, load_declarations(folder).table(TABLE).declaration)
    with deployment.open_ledger() as ledger:
        yield Place(deployment=deployment, pipelines=folder, ledger=ledger)
    catalog.drop_table(TABLE)


def test_every_table_has_a_task_of_this_kind(folder: Path) -> None:
    tasks = table_maintenance_dag(load_declarations(folder)).task_dict
    assert isinstance(tasks["silver.flights"], MaintenanceOperator)


def test_a_table_in_order_ends_without_asking_for_spark(place: Place) -> None:
    place.append(1)

    place.run_task()

    assert recent_maintenance(place.ledger, TABLE, limit=1)[0].launched_by == BY
    assert place.asked() == []


def test_a_step_that_is_refused_is_red_without_spark(place: Place) -> None:
    place.append(3)
    write_continuous_stream(place.pipelines, "reader", reads=TABLE, writes="bronze.flights")
    generation = current_generation(place.ledger, "reader", checkpoints_root=(place.pipelines / "checkpoints").as_uri())
    begun = Path(generation.checkpoint.removeprefix("file://")) / "offsets" / "0"
    begun.parent.mkdir(parents=True)
    begun.write_text("v1\n")

    with pytest.raises(
        AirflowFailException, match="expire_snapshots refused, reader_unknown: the position of stream reader"
    ):
        place.run_task()

    assert place.asked() == []


def test_a_table_that_cannot_be_read_is_red_with_the_reason_and_tried_again(place: Place) -> None:
    with open_catalog(place.deployment.settings).load_table(TABLE).transaction() as change:
        change.set_properties({"sluice.mark.some_stream.rows": "no mark"})

    with pytest.raises(AirflowException, match="is not a mark") as failed:
        place.run_task()

    assert not isinstance(failed.value, AirflowFailException)
    assert place.asked() == []


@pytest.mark.filterwarnings("ignore:Parquet writer option:UserWarning")
def test_what_needs_spark_is_asked_of_the_queue(place: Place) -> None:
    with open_catalog(place.deployment.settings).load_table(TABLE).transaction() as change:
        change.set_properties({"write.parquet.bloom-filter-enabled.column.id": "true"})
    place.append(6)
    before = len(recent_maintenance(place.ledger, TABLE, limit=50))

    with pytest.raises(TaskDeferred):
        place.run_task()

    assert place.asked() == [TABLE]
    assert recent_applications(place.ledger, limit=1)[0].started_by == BY
    assert len(recent_maintenance(place.ledger, TABLE, limit=50)) == before
