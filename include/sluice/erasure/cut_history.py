"""Takes rows out of the newest snapshot of a table, cuts its history behind that, and deletes what only earlier
snapshots need.

    … ─► head ─► overwrite: the files without the rows ─► empty append, the cut ─► …
                                                            └ what is before it goes, once every reader has passed it

The manifests of the overwrite list the removed files with the bounds of their values. Those of the cut list none, so
that a reader finds every position that it needs, and nothing of the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    TableUpdate,
)

from sluice.erasure.parquet_rows import write_without
from sluice.erasure.row_test import RowTest
from sluice.maintenance.file_rewrite import CommitConflictError
from sluice.publication.checked_commit import NothingToCommit, TableChange, TableCommitter, commit_checked
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.write_folders import Writer, WriterKind, folder_of
from sluice.stored_keys import ERASED
from sluice.tables.catalog import catalog_refusals


def live_files(table: Table) -> tuple[DataFile, ...]:
    """The data files of the newest snapshot.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    newest = table.current_snapshot()
    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        return tuple(
            entry.data_file
            for manifest in (newest.manifests(table.io) if newest is not None else ())
            if manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        )


def erase_rows(
    committer: TableCommitter,
    name: str,
    *,
    names: Collection[str],
    test: RowTest,
    identity: str,
    now: datetime,
    reached: Reached = unnoticed,
) -> None:
    """Replace those of some files that are live by files without the rows that are meant, in one commit.

    Parameters
    ----------
    names: of the files that hold such rows, without their folders.
    identity: of the erasure, as its event has it. now: before anything is written.

    Raises
    ------
    CommitConflictError: when somebody wrote the table meanwhile. Nothing was committed.
    DeliveryError, LakehouseError: as `commit_checked` and `write_without` raise them.
    """
    table = committer.load(name)
    old = tuple(file for file in live_files(table) if file.file_path.rpartition("/")[2] in names)
    if not old:
        return
    folder = folder_of(table.metadata, Writer(kind=WriterKind.REWRITE, identity=identity))
    with catalog_refusals(f"write files of {name} without the rows"):
        written = [
            write_without(table.io, table.metadata, one, test, location=f"{folder}/00000-0-{uuid4()}.parquet")
            for one in old
        ]
    reached(CrashPoint.COMPUTED)

    def plan(loaded: Table) -> TableChange | NothingToCommit:
        if loaded.metadata.current_snapshot_id != table.metadata.current_snapshot_id:
            raise CommitConflictError(
                f"{name} was written while rows were taken out of it. Nothing was committed.",
                next_step="Repeat the command when nothing writes the table.",
            )
        return TableChange(
            operation=Operation.OVERWRITE,
            removed=old,
            added=tuple(one for one in written if one is not None),
            summary={ERASED: identity},
            added_at=now,
        )

    commit_checked(committer, name, plan, what=f"{name} without the erased rows", reached=reached)


@dataclass(slots=True)
class HistoryLook:
    """Looks at the history of a table.

    names: of the files with rows that are meant. harmless: of those that were searched and hold none.
    clean: of each manifest that was read whether it says nothing of such rows.
    """

    table: Table
    names: Collection[str] = ()
    harmless: Collection[str] = ()
    clean: dict[str, bool] = field(default_factory=dict)

    def main_line(self) -> Iterator[Snapshot]:
        """The snapshots of main, newest first."""
        snapshot = self.table.current_snapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = self.table.snapshot_by_id(parent) if parent is not None else None

    def kept(self) -> tuple[int, ...]:
        """The ids of the snapshots that may stay, newest first, from the cut on; none when there is no cut yet."""
        passed: list[int] = []
        for snapshot in self.main_line():
            if not self._is_clean(snapshot):
                return ()
            passed.append(snapshot.snapshot_id)
            if is_cut(snapshot):
                return tuple(passed)
        return ()

    def _is_clean(self, snapshot: Snapshot) -> bool:
        with catalog_refusals(f"read the manifests of {'.'.join(self.table.name())}"):
            return all(self._lists_no_such(manifest) for manifest in snapshot.manifests(self.table.io))

    def _lists_no_such(self, manifest: ManifestFile) -> bool:
        """A removed file may be listed beside its bounds only if it is still there and was searched."""
        if not self.names and manifest.deleted_files_count == 0:
            return True
        if manifest.manifest_path not in self.clean:
            entries = manifest.fetch_manifest_entry(self.table.io, discard_deleted=False)
            self.clean[manifest.manifest_path] = all(map(self._is_harmless, entries))
        return self.clean[manifest.manifest_path]

    def _is_harmless(self, entry: ManifestEntry) -> bool:
        name = entry.data_file.file_path.rpartition("/")[2]
        is_removed = entry.status == ManifestEntryStatus.DELETED
        return name in self.harmless if is_removed else name not in self.names


def is_cut(snapshot: Snapshot) -> bool:
    """Whether history may be cut before a snapshot."""
    summary = snapshot.summary
    return summary is not None and ERASED in summary.additional_properties and summary.operation is Operation.APPEND


def has_erasures(table: Table) -> bool:
    """Whether a snapshot of a table erased rows, or was made for that."""
    summaries = (one.summary for one in table.snapshots())
    return any(one is not None and ERASED in one.additional_properties for one in summaries)


def commit_cut(
    committer: TableCommitter,
    name: str,
    *,
    entries: Mapping[str, str],
    reached: Reached = unnoticed,
) -> None:
    """Append an empty snapshot whose manifests list no removed file.

    Parameters
    ----------
    entries: of its summary.

    Raises
    ------
    DeliveryError, LakehouseError: as `commit_checked` raises them.
    """

    def plan(_: Table) -> TableChange:
        return TableChange(operation=Operation.APPEND, summary=entries, cleans=True)

    commit_checked(committer, name, plan, what=f"the cut in the history of {name}", reached=reached)


def expire_before_cut(catalog: Catalog, table: Table, kept: Collection[int]) -> None:
    """Remove all snapshots but some from the metadata of a table, with every tag and branch on another.

    Parameters
    ----------
    table: freshly loaded. kept: the snapshots that stay; the newest is among them.

    Raises
    ------
    CommitConflictError: when somebody wrote the table meanwhile.
    LakehouseError: when the catalog refuses.
    """
    name, metadata = ".".join(table.name()), table.metadata
    gone = [one.snapshot_id for one in metadata.snapshots if one.snapshot_id not in kept]
    refs = sorted(ref for ref, one in metadata.refs.items() if one.snapshot_id not in kept)
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=ref) for ref in refs]
    updates += [
        RemoveStatisticsUpdate(snapshot_id=one.snapshot_id)
        for one in metadata.statistics
        if one.snapshot_id not in kept
    ]
    updates += [
        RemovePartitionStatisticsUpdate(snapshot_id=one.snapshot_id)
        for one in metadata.partition_statistics
        if one.snapshot_id not in kept
    ]
    updates += [RemoveSnapshotsUpdate(snapshot_ids=gone)] if gone else []
    if not updates:
        return
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref="main", snapshot_id=metadata.current_snapshot_id),
    )
    with catalog_refusals(f"expire snapshots of {name}", but_not=(CommitFailedException,)):
        try:
            catalog.commit_table(table, requirements, tuple(updates))
        except CommitFailedException as error:
            raise CommitConflictError(
                f"{name} was written while its history was cut.", next_step="Repeat the command."
            ) from error
