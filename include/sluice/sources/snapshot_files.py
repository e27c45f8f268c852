"""Observes the files of a snapshot from its manifest list alone: one small file, however large the table is."""

from __future__ import annotations

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table

from sluice.errors import LakehouseError
from sluice.sources.table_starts import SnapshotFiles
from sluice.tables.catalog import catalog_refusals


def observe_files(table: Table, snapshot_id: int) -> SnapshotFiles:
    """The files of a snapshot, as its manifest list counts them.

    Raises
    ------
    LakehouseError: when the snapshot is not there any more, when its manifest list cannot be read, or lacks the counts.
    """
    name = ".".join(table.name())
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise LakehouseError(f"Snapshot {snapshot_id} of {name} is not there any more.")
    with catalog_refusals(f"read the manifest list of snapshot {snapshot_id} of {name}"):
        manifests = snapshot.manifests(table.io)
    data = [one for one in manifests if one.content == ManifestContent.DATA]
    live = [one for one in data if _live(one, name)]
    return SnapshotFiles(
        files=sum(_live(one, name) for one in live),
        rows=sum((one.added_rows_count or 0) + (one.existing_rows_count or 0) for one in live),
        adds_all=all(one.added_snapshot_id == snapshot_id and not one.existing_files_count for one in live),
        delete_files=sum(_live(one, name) for one in manifests if one.content == ManifestContent.DELETES),
        is_clean=not any(one.deleted_files_count for one in data),
    )


def _live(manifest: ManifestFile, table: str) -> int:
    """The live files that a manifest lists."""
    if manifest.added_files_count is None or manifest.existing_files_count is None:
        raise LakehouseError(
            f"A manifest of {table} does not say how many files it lists: {manifest.manifest_path}.",
            next_step=f"Rewrite the manifests: `CALL system.rewrite_manifests('{table}')`.",
        )
    return manifest.added_files_count + manifest.existing_files_count
