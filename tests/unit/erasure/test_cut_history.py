"""The cut in a history: no manifest lists a removed file behind it, as Java's writers leave them beside live ones."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.types import LongType, NestedField, StringType
from tests.fixtures.delete_files import add_delete_file

from sluice.erasure.cut_history import HistoryLook, commit_cut, erase_rows, is_cut
from sluice.erasure.file_columns import key_of
from sluice.erasure.row_test import condition_of
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

    commit_cut(PyIcebergCommitter(catalog), "a.b", entries=lambda _: {ERASED: "x"})
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
            identity="x",
            now=datetime.now(UTC),
        )
    assert catalog.load_table("a.b").metadata_location == before
    catalog.close()
