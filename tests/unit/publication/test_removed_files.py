"""Which files a commit takes out of a table, and what it leaves as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record
from tests.fixtures.delete_files import add_delete_file

from sluice.publication.checked_commit import TableChange, commit_checked
from sluice.publication.publish_batches import live_files
from sluice.publication.pyiceberg_committer import PyIcebergCommitter, data_files_of
from sluice.refresh.observe_refresh import delete_files_of

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    """An empty table that nothing was committed to."""
    catalog = SqlCatalog("unit", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    yield catalog.create_table("n.t", SCHEMA)
    catalog.close()


def append(table: Table, number: int) -> None:
    """Append a file of one row."""
    table.append(pa.Table.from_pylist([{"id": number}], schema=SCHEMA))


def test_the_files_of_partitions_are_those_that_are_live(table: Table) -> None:
    assert data_files_of(table, [Record()]) == []
    append(table, 1)
    append(table, 2)
    assert data_files_of(table, []) == []
    assert len(data_files_of(table, [Record()])) == 2
    assert data_files_of(table, [Record()]) == live_files(table)


def test_a_replacement_keeps_the_delete_files_of_the_table(table: Table) -> None:
    append(table, 1)
    append(table, 2)
    add_delete_file(table)
    kept, removed = live_files(table)

    def plan(_: Table) -> TableChange:
        return TableChange(operation=Operation.REPLACE, removed=(removed,), summary={"who": "a test"})

    commit_checked(PyIcebergCommitter(table.catalog), "n.t", plan, what="a replacement")

    assert [file.file_path for file in live_files(table.refresh())] == [kept.file_path]
    assert delete_files_of(table) == 1
