"""Declarations in a folder of the test's own, and an Airflow that has no database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tests.fixtures.airflow_home  # noqa: F401  # before Airflow is imported
from tests.fixtures.sample_declarations import write_table
from tests.fixtures.stack import Stack, stack_in


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the tables that the sample streams read and write."""
    for table in ("bronze.flights", "silver.flights"):
        write_table(tmp_path, table)
    return tmp_path


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A lakehouse and a ledger."""
    with stack_in(tmp_path_factory.mktemp("stack") / "data") as stack:
        stack.up(("postgres", "seaweedfs"))
        yield stack


@pytest.fixture(autouse=True)
def _known_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The id of this Airflow, which its metadata database keeps otherwise: tasks ask who owns the ledger."""
    monkeypatch.setenv("AIRFLOW_VAR_SLUICE_AIRFLOW_ID", "the-airflow-of-this-test")
