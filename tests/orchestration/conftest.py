"""One real Airflow for all tests of this ring. Every test has streams and tables of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import tests.fixtures.airflow_home  # noqa: F401  # before Airflow is imported
from sqlalchemy.engine import URL
from tests.fixtures.airflow import RunningAirflow, running_airflow
from tests.fixtures.loading import load_fixtures
from tests.fixtures.publication import CatalogPlace, open_catalog_at
from tests.fixtures.sample_declarations import (
    UNMAINTAINED,
    write_continuous_stream,
    write_incremental_stream,
    write_refusing_stream,
    write_table,
)
from tests.fixtures.stack import stack_in
from tests.fixtures.supervised_streams import SECOND_WAIT_SECONDS

from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.run_values import DesiredState
from sluice.ledger.runs import newest_runs

IMPATIENT = f"supervision: {{restart: {{attempts: 1, first_delay: {SECOND_WAIT_SECONDS} seconds}}}}\n"
"""A restart policy for tests: one restart, then a person is asked. What a signal ends is restarted more often."""

STREAMS = ("launched", "cleared", "triggered_twice", "killed", "given_up", "queued_behind", "stopped",
           "stopped_unseen", "left_alone", "paused", "marked", "marked_briefly", "marked_well", "edited",
           "edited_badly", "controlled", "outliving", "dying_too", "announced", "left_behind", "kept")  # fmt: skip

APART = (("asked_for_twice",), ("orphaned",), ("outlasting",), ("never_begun",), ("called_back", "neighbour"),
         ("together_one", "together_two", "together_three"))  # fmt: skip
"""Incremental streams that have applications of their own, because no others have the same memory."""

PATIENT = "supervision: {restart: {first_delay: 30 minutes, longest_delay: 30 minutes}}\n"
"""A restart policy that leaves a stream whose driver was killed twice down for as long as a test looks at it."""

TABLES = ("bronze.flights", "gold.first", "gold.second", "gold.third")
"""The tables of the catalog. The others are declared alone: what would write them are fakes."""

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.timestamp("us", tz="UTC"))])

QUALITY = "quality: {expectations: [{type: expect_column_values_to_not_be_null, kwargs: {column: id}}]}\n"


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Load this ring's fixtures."""
    load_fixtures(collector, "ledger")


@pytest.fixture(scope="session")
def catalog_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The settings of a real catalog and its store, which hold the tables that are read and maintained."""
    with stack_in(tmp_path_factory.mktemp("lakehouse") / "data") as stack:
        stack.up(["seaweedfs"])
        ours = ("SLUICE_CATALOG__", "SLUICE_OBJECT_STORE__")
        settings = {name: value for name, value in stack.environment().items() if name.startswith(ours)}
        catalog = open_catalog_at(CatalogPlace(environment=stack.environment()))
        for table in TABLES:
            catalog.create_namespace_if_not_exists(table.partition(".")[0])
            catalog.create_table(table, COLUMNS)
        yield settings


@pytest.fixture(scope="session")
def airflow(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: URL, catalog_environment: dict[str, str]
) -> Iterator[RunningAirflow]:
    """A real Airflow whose Spark applications are fakes."""
    folder = tmp_path_factory.mktemp("orchestration")
    pipelines = folder / "pipelines"
    pipelines.mkdir()
    _declare(pipelines)
    with running_airflow(folder, postgres_url, pipelines=pipelines, settings=catalog_environment) as running:
        yield running


@pytest.fixture(autouse=True)
def _streams_end_with_their_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ask the drivers that a test has left to stop, without waiting: they would slow down everything after it."""
    yield
    if "airflow" not in request.fixturenames:
        return
    airflow: RunningAirflow = request.getfixturevalue("airflow")
    for run in newest_runs(airflow.ledger):
        if run.is_live:
            airflow.patch(f"dags/{run.stream}", {"is_paused": True})
            set_desired_state(airflow.ledger, run.stream, DesiredState.STOPPED, requested_by="a test that is over")


def _declare(pipelines: Path) -> None:
    for table in TABLES:
        write_table(pipelines, table, more=QUALITY)
    for stream in STREAMS:
        write_table(pipelines, f"silver.{stream}", more=UNMAINTAINED)
        write_continuous_stream(pipelines, stream, writes=f"silver.{stream}", more=IMPATIENT)
    for stream, upkeep in (("paged", UNMAINTAINED), ("acted_on", "maintenance: {compaction: null, expiry: null}\n")):
        write_table(pipelines, f"silver.{stream}", more=upkeep)
        write_continuous_stream(pipelines, stream, writes=f"silver.{stream}", more=PATIENT)
    write_incremental_stream(pipelines, "by_clock", schedule="{cron: '0 0 1 1 *'}", writes="gold.first")
    write_incremental_stream(
        pipelines,
        "lingering",
        schedule="{cron: '0 0 1 1 *'}",
        writes="gold.third",
        more="engine: {kept_minutes: 10, driver_memory: 1GiB}\n",
    )
    write_incremental_stream(
        pipelines, "by_table", schedule="{tables: [gold.first]}", reads="gold.first", writes="gold.second"
    )
    write_incremental_stream(
        pipelines, "by_stream", schedule="{tables: [silver.announced]}", reads="silver.announced", writes="gold.third"
    )
    for number, streams in enumerate(APART, start=1):
        for stream in streams:
            engine = f"engine: {{driver_memory: {1100 + number}MiB}}\n"
            write_incremental_stream(
                pipelines, stream, schedule="{cron: '0 0 1 1 *'}", writes="gold.third", more=engine
            )
    for stream in ("refilled", "asked_back", "filled_in", "chosen_days", "shared_days", "called_off"):
        write_table(pipelines, f"silver.{stream}", more=UNMAINTAINED)
        backfill = "backfill: {column: at, interval: day, at_once: 2}\n"
        write_continuous_stream(pipelines, stream, writes=f"silver.{stream}", more=backfill)
    write_table(pipelines, "silver.refusing", more=UNMAINTAINED)
    write_refusing_stream(pipelines, "refusing", writes="silver.refusing")
    broken = write_continuous_stream(pipelines, "broken_one")
    broken.write_text(broken.read_text() + "colour: green\n")
