"""Delete files of several data files are counted as long as they may apply to one that is still there."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from tests.fixtures.delete_files import add_delete_file

from sluice.tables.inspection import observe_table
from sluice.tables.table_observation import PartitionObservation

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ROWS = pa.table({"id": pa.array([1], pa.int64())})
KINDS = (DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with one data file."""
    catalog = SqlCatalog("deletes", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("silver")
    table = catalog.create_table("silver.rows", schema=ROWS.schema)
    table.append(ROWS)
    return table


def observed(table: Table) -> PartitionObservation:
    """The files of a table as they are."""
    (found,) = observe_table(table.refresh(), name="silver.rows", small_file_bytes=1, now=NOW).partitions
    return found


@pytest.mark.parametrize("kind", KINDS, ids=["positions", "equality"])
def test_a_delete_file_of_earlier_data_files_alone_is_not_counted(table: Table, kind: DataFileContent) -> None:
    """Such a file stays when a writer always commits before its removal; a rewrite for it would find nothing."""
    add_delete_file(table, kind=kind)
    assert observed(table).shared_deletes == 1
    assert observed(table).has_newest_deletes is (kind is DataFileContent.POSITION_DELETES)
    table.append(ROWS)
    assert observed(table).shared_deletes == 1, "it may apply to the first of two data files"
    assert not observed(table).has_newest_deletes

    table.overwrite(ROWS)

    assert observed(table).shared_deletes == 0
    add_delete_file(table, kind=kind)
    assert observed(table).shared_deletes == 1, "the new one, and not the earlier one"


@pytest.mark.parametrize(("kind", "counted"), [(KINDS[0], 1), (KINDS[1], 0)], ids=["positions", "equality"])
def test_an_equality_delete_hides_no_row_of_its_own_commit(table: Table, kind: DataFileContent, counted: int) -> None:
    (task,) = table.scan().plan_files()
    table.delete()
    add_delete_file(table.refresh(), kind=kind, beside=[task.file])

    assert observed(table).shared_deletes == counted
