"""The cut in a history: no manifest lists a removed file behind it, as Java's writers leave them beside live ones."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles

from sluice.erasure.cut_history import HistoryLook, commit_cut, is_cut
from sluice.erasure.file_columns import key_of
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.stored_keys import ERASED


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
