"""Real Spark on a real catalog, object store, Kafka and ledger: one set of services and one session for the ring."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession
from tests.differential.engine import engine_of
from tests.fixtures.loading import load_fixtures
from tests.fixtures.spark_submit import SMALL_PAGES, submit_arguments
from tests.fixtures.stack import SERVICES, Stack, stack_in
from tests.fixtures.workshop import Workshop

from sluice.declarations.run_declaration import StateDeclaration
from sluice.ledger.connection import Ledger, open_ledger
from sluice.settings import Settings
from sluice_spark.session.session import open_session

ROOM_FOR_NEW_OBJECTS = ("-Xms1536m", "-Xmn768m")
"""Of a heap that grows from 400 MB the JVM collected garbage 1.3 times a second, 7 % of its processor time."""


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Load this ring's fixtures."""
    ours = ("backfilled_files", "database", "kinesis", "ledger", "readme", "registry")
    load_fixtures(collector, "sluice_spark.testing", *ours)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark's `collect()` leaves its socket to the garbage collector, which is no fault of a test here."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="module", autouse=True)
def _later_imports_are_no_garbage() -> None:
    """Exclude from garbage collections what was imported since the tests were collected: a stream collects garbage
    after each batch, and would look through all that each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Services of this ring's own: the demo's tables are made here, and other rings make them too."""
    with stack_in(tmp_path_factory.mktemp("spark-ring") / "data") as stack:
        stack.up(SERVICES)
        yield stack


@pytest.fixture(scope="session")
def settings(services: Stack) -> Settings:
    """The settings of the ring's services."""
    return services.settings()


@pytest.fixture(scope="session")
def spark(settings: Settings) -> Iterator[SparkSession]:
    """The ring's one Spark session, opened as a job opens it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the machine's own Python has no pandas, and says only "crashed"
    # A collection clears everything that is held softly, as one does when memory is short.
    os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(
        settings, clears_soft_references=True, memory_gib=3, java_options=ROOM_FOR_NEW_OBJECTS, conf=SMALL_PAGES
    )
    session = open_session(settings, name="tests", state=StateDeclaration(), with_delta=True, names_call_sites=False)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def sluice_settings(settings: Settings) -> Settings:
    """The test kit for users works with the ring's services."""
    return settings


@pytest.fixture(scope="session")
def sluice_spark(spark: SparkSession) -> SparkSession:
    """The test kit for users works in the ring's session."""
    return spark


@pytest.fixture
def ring_ledger(settings: Settings) -> Iterator[Ledger]:
    """The ledger of the ring's services; shared, so streams have names of their own."""
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        yield ledger


@pytest.fixture
def workshop(spark: SparkSession, settings: Settings, ring_ledger: Ledger, tmp_path: Path) -> Workshop:
    """A folder, a namespace and checkpoints of the test's own."""
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    own = settings.model_copy(update={"pipelines": pipelines, "checkpoints": (tmp_path / "checkpoints").as_uri()})
    return Workshop(spark=spark, settings=own, ledger=ring_ledger, namespace=f"n{uuid4().hex[:12]}")


@pytest.fixture
def engine(spark: SparkSession, seed: int) -> Iterator[None]:
    """The session as the case of a seed runs with it, for tests of random cases."""
    with engine_of(spark, seed):
        yield
