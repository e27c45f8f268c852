"""The cut in a history: no manifest lists a removed file behind it, as Java's writers leave them beside live ones."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from traceback import format_exception

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import ManageSnapshots, _FastAppendFiles
from pyiceberg.types import LongType, NestedField, StringType
from tests.fixtures.delete_files import add_delete_file

from sluice.erasure.cut_history import HistoryLook, commit_cut, erase_rows, expire_before_cut, is_cut
from sluice.erasure.file_columns import key_of
from sluice.erasure.row_test import condition_of
from sluice.errors import LakehouseError
from sluice.maintenance.file_rewrite import CommitConflictError
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.stored_keys import ERASED

KINDS = Schema(NestedField(1, "kind", StringType()), NestedField(2, "id", LongType()))


class _Mixed(_FastAppendFiles):
    """A commit after which one manifest lists a live file and a removed one."""

    def _existing_manifests(self) -> list[ManifestFile]:
        entries = [
            entry for manifest in super()._existing_manifests() for entry in manifest.fetch_manifest_entry(self._io)
        ]
        with self.new_manifest_writer(self.spec(0)) as writer:
            for entry, status in zip(entries, (ManifestEntryStatus.EXISTING, ManifestEntryStatus.DELETED), strict=True):
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=status,
                        snapshot_id=entry.snapshot_id,
                        sequence_number=entry.sequence_number,
                        file_sequence_number=entry.file_sequence_number,
                        data_file=entry.data_file,
                    )
                )
        return [writer.to_manifest_file()]


def test_no_manifest_behind_the_cut_lists_a_removed_file(tmp_path: Path) -> None:
    catalog = SqlCatalog("cut", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("a")
    table = catalog.create_table("a.b", pa.schema([("id", pa.int64())]))
    for one in (1, 2):
        table.append(pa.table({"id": [one]}))
    with table.transaction() as transaction:
        _Mixed(operation=Operation.APPEND, transaction=transaction, io=table.io).commit()
    assert table.refresh().scan().to_arrow().num_rows == 1
    assert not any(map(is_cut, table.snapshots()))

    commit_cut(PyIcebergCommitter(catalog), "a.b", entries=lambda _: {ERASED: "e" * 32})
    cut = table.refresh().current_snapshot()
    assert cut is not None
    assert [one.deleted_files_count for one in cut.manifests(table.io)] == [0]
    harmless = {key_of(task.file.file_path) for task in table.scan().plan_files()}
    assert HistoryLook(table, harmless).kept() == (cut.snapshot_id,)
    assert HistoryLook(table).kept() == ()
    assert table.scan().to_arrow().num_rows == 1
    catalog.close()


def test_rows_that_came_to_be_hidden_meanwhile_do_not_come_back(tmp_path: Path) -> None:
    catalog = SqlCatalog("cut", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("a")
    table = catalog.create_table("a.b", KINDS)
    table.append(pa.Table.from_pylist([{"kind": "Ann", "id": 1}], table.schema().as_arrow()))
    keys = {key_of(task.file.file_path) for task in table.scan().plan_files()}
    add_delete_file(table)
    before = catalog.load_table("a.b").metadata_location
    with pytest.raises(CommitConflictError, match="rows that they hide would come back"):
        erase_rows(
            PyIcebergCommitter(catalog),
            "a.b",
            keys=keys,
            test=condition_of("kind = 'Ann'", table.schema(), table="a.b"),
            identity="e" * 32,
            now=datetime.now(UTC),
        )
    assert catalog.load_table("a.b").metadata_location == before
    catalog.close()


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_branch_that_got_a_commit_meanwhile_is_not_removed(tmp_path: Path, is_moved: bool) -> None:
    catalog = SqlCatalog("cut", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("a")
    table = catalog.create_table("a.b", KINDS)
    row = pa.Table.from_pylist([{"kind": "Ann", "id": 1}], table.schema().as_arrow())
    table.append(row)
    first = table.refresh().current_snapshot()
    assert first is not None
    with table.transaction() as transaction:
        ManageSnapshots(transaction=transaction).create_branch(first.snapshot_id, "mine").commit()
    commit_cut(PyIcebergCommitter(catalog), "a.b", entries=lambda _: {ERASED: "e" * 32})
    loaded = catalog.load_table("a.b")
    assert loaded.metadata.current_snapshot_id is not None
    kept = (loaded.metadata.current_snapshot_id,)
    if is_moved:
        catalog.load_table("a.b").append(row, branch="mine")
        with pytest.raises(CommitConflictError, match="branch of it was moved"):
            expire_before_cut(catalog, loaded, kept)
        assert catalog.load_table("a.b").scan().use_ref("mine").to_arrow().num_rows == 2
    else:
        expire_before_cut(catalog, loaded, kept)
        assert set(catalog.load_table("a.b").refs()) == {"main"}
    catalog.close()


def test_no_path_is_part_of_a_message_as_a_value_may_be_part_of_a_path(tmp_path: Path) -> None:
    catalog = SqlCatalog("cut", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("a")
    table = catalog.create_table("a.b", KINDS)
    with table.update_spec() as update:
        update.add_identity("kind")
    table.append(pa.Table.from_pylist([{"kind": "ann@x.org", "id": 1}], table.schema().as_arrow()))
    (path,) = [task.file.file_path for task in table.scan().plan_files()]
    assert "ann%40x.org" in path
    table.io.delete(path)
    with pytest.raises(LakehouseError, match=f"{path.rpartition('/')[2]} without the rows") as caught:
        erase_rows(
            PyIcebergCommitter(catalog),
            "a.b",
            keys={key_of(path)},
            test=condition_of("kind = 'ann@x.org'", table.schema(), table="a.b"),
            identity="e" * 32,
            now=datetime.now(UTC),
        )
    assert "x.org" not in "".join(format_exception(caught.value))
    catalog.close()
