"""A real YARN of one node for this ring: `make test-yarn`. It fetches 80 MB once, and takes minutes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from tests.fixtures.loading import load_fixtures
from tests.yarn.single_node import SingleNodeYarn, single_node_yarn

CONNECTION = "the_cluster"
"""The Airflow connection of this ring, by the name that its stream declares."""


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Load this ring's fixtures."""
    load_fixtures(collector, "ledger")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The Spark provider leaves the pipe of `spark-submit` to the garbage collector, no fault of a test here."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"))


@pytest.fixture(scope="session")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SingleNodeYarn]:
    """The cluster."""
    with single_node_yarn(tmp_path_factory.mktemp("yarn") / "node") as cluster:
        yield cluster


@pytest.fixture
def yarn_connection(yarn: SingleNodeYarn, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a Spark connection to it, as a deployment has one; no application is left behind."""
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": yarn.webapp}
    written = json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra})
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", written)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.configuration))
    monkeypatch.setenv("YARN_CONF_DIR", str(yarn.configuration))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PATH", f"{Path(pyspark.__file__).parent / 'bin'}:{os.environ['PATH']}")
    yield CONNECTION
    yarn.end_applications()
