"""The snapshot of a mark is not listed any more: it was expired with its history, or main was rolled back before."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from sluice.errors import RolledBackError
from sluice.publication.marks import Mark, read_target_state
from sluice.publication.staged_batch import StagedOutput

OUTPUT = StagedOutput(stream="s", output="main", target="bronze.rows")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """An empty table of format version 2."""
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("bronze")
    return catalog.create_table("bronze.rows", schema=pa.schema([("id", pa.int64())]))


def append(table: Table, count: int = 1) -> list[int]:
    """Append snapshots; their ids."""
    added = []
    for _ in range(count):
        table.append(pa.table({"id": [1]}))
        added.append(table.metadata.current_snapshot_id or 0)
    return added


def mark(table: Table) -> None:
    """Mark the newest snapshot."""
    newest = table.current_snapshot()
    assert newest is not None
    set_to = Mark.model_validate(
        {
            "generation": 1,
            "batch": 3,
            "token": 7,
            "snapshot-id": newest.snapshot_id,
            "sequence-number": newest.sequence_number,
        }
    )
    with table.transaction() as transaction:
        transaction.set_properties({OUTPUT.mark_property: set_to.text()})


def test_a_rollback_that_was_written_over_and_expired_is_found(table: Table) -> None:
    first, _, marked = append(table, 3)
    mark(table)
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    _, newest = append(table, 2)
    table.maintenance.expire_snapshots().by_ids(
        [one.snapshot_id for one in table.snapshots() if one.snapshot_id != newest]
    ).commit()
    assert table.refresh().snapshot_by_id(marked) is None

    with pytest.raises(RolledBackError, match="does not descend from the snapshot that set the mark"):
        read_target_state(table, OUTPUT)


def test_a_rollback_is_found_where_only_earlier_metadata_knows_the_parent_of_what_was_written_over_it(
    table: Table,
) -> None:
    first, _, marked = append(table, 3)
    mark(table)
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    for _ in range(2):  # expiry takes the parent from the snapshot that it keeps
        (newest,) = append(table)
        table.maintenance.expire_snapshots().by_ids(
            [one.snapshot_id for one in table.snapshots() if one.snapshot_id != newest]
        ).commit()
    assert table.refresh().snapshot_by_id(marked) is None

    with pytest.raises(RolledBackError, match="does not descend from the snapshot that set the mark"):
        read_target_state(table, OUTPUT)


def test_a_mark_that_was_expired_with_its_history_counts(table: Table) -> None:
    append(table, 3)
    mark(table)
    *_, newest = append(table, 3)
    table.maintenance.expire_snapshots().by_ids(
        [one.snapshot_id for one in table.snapshots() if one.snapshot_id != newest]
    ).commit()

    state = read_target_state(table.refresh(), OUTPUT)

    assert state.mark is not None
    assert state.mark.position == (1, 3)


def test_without_earlier_metadata_a_mark_counts_as_expired(table: Table) -> None:
    """Nothing is known then; a stream must not stop for it."""
    append(table, 3)
    mark(table)
    *_, newest = append(table, 3)
    table.maintenance.expire_snapshots().by_ids(
        [one.snapshot_id for one in table.snapshots() if one.snapshot_id != newest]
    ).commit()
    for entry in table.refresh().metadata.metadata_log:
        Path(entry.metadata_file.removeprefix("file://")).unlink()

    assert read_target_state(table, OUTPUT).mark is not None
