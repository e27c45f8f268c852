"""Main left the position of a reader: what is withdrawn, what is new, and what is only expired."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from sluice.sources.input_gap import InputBranch, find_branch


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A catalog in a file."""
    opened = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    opened.create_namespace("bronze")
    return opened


@pytest.fixture
def table(catalog: Catalog) -> Table:
    """An empty table."""
    return catalog.create_table("bronze.rows", schema=pa.schema([("id", pa.int64())]))


def append(table: Table, count: int) -> list[int]:
    """Append snapshots of ten rows; the ids of these snapshots."""
    added = []
    for _ in range(count):
        table.append(pa.table({"id": list(range(10))}))
        added.append(table.metadata.current_snapshot_id or 0)
    return added


def found(table: Table, position: int) -> InputBranch | None:
    """How main left a position."""
    return find_branch(table.refresh(), name="bronze.rows", position=position)


def ids(steps: Sequence[object]) -> list[int]:
    """The ids of snapshots."""
    return [step.snapshot_id for step in steps]  # type: ignore[attr-defined]  # TableStep


def test_a_rollback_withdraws_what_was_read_and_new_rows_follow_the_common_ancestor(table: Table) -> None:
    first, second, third = append(table, 3)
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert (branch := found(table, third)) is not None
    assert (ids([branch.common]), ids(branch.withdrawn), branch.new) == ([first], [second, third], ())
    new = append(table, 2)

    branch = found(table, third)

    assert branch is not None
    assert (ids(branch.withdrawn), ids(branch.new)) == ([second, third], new)
    assert (branch.withdrawn_rows, branch.new_rows) == (20, 20)
    assert f"was rolled back to snapshot {first}" in str(branch)
    assert "2 snapshots with 20 appended rows that were read are withdrawn" in str(branch)


def test_an_ancestor_of_main_was_not_left(table: Table) -> None:
    first, _ = append(table, 2)
    assert found(table, first) is None


def test_a_position_that_is_not_listed_was_expired(table: Table) -> None:
    append(table, 1)
    assert found(table, 12345) is None


def test_a_position_that_a_tag_keeps_while_those_behind_it_expire_was_not_rolled_back(table: Table) -> None:
    first, second, third, _ = append(table, 4)
    table.manage_snapshots().create_tag(first, "kept").commit()
    table.maintenance.expire_snapshots().by_ids([second, third]).commit()
    assert found(table, first) is None
