"""Takes rows out of the newest snapshot of a table, cuts its history behind that, and deletes what only earlier
snapshots need.

    … ─► head ─► overwrite: the files without the rows ─► empty append, the cut ─► …
                                                            └ what is before it goes, once every reader has passed it

The manifests of the overwrite list the removed files with the bounds of their values. Those of the cut list none, so
that a reader finds every position that it needs, and nothing of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    TableRequirement,
    TableUpdate,
)

from sluice.erasure.file_columns import key_of
from sluice.erasure.parquet_rows import write_without
from sluice.erasure.row_test import RowTest
from sluice.erasure.searched_files import spoken
from sluice.errors import LakehouseError
from sluice.maintenance.file_rewrite import CommitConflictError
from sluice.publication.checked_commit import NothingToCommit, TableChange, TableCommitter, commit_checked
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.data_files import Writer, WriterKind, folder_of
from sluice.stored_keys import ERASED
from sluice.tables.catalog import catalog_refusals
from sluice.tables.manifest_reading import READERS


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
    keys: Collection[str],
    test: RowTest,
    identity: str,
    now: datetime,
    reached: Reached = unnoticed,
) -> None:
    """Replace those of some files that are live by files without the rows that are meant, in one commit.

    Parameters
    ----------
    keys: of the files that hold such rows.
    identity: of the erasure, as its event has it. now: before anything is written.

    Raises
    ------
    CommitConflictError: when somebody wrote the table meanwhile, or it has delete files: rows that they hide would come
    back. Nothing was committed.
    DeliveryError, LakehouseError: as `commit_checked` and `write_without` raise them.
    """
    table = committer.load(name)
    old = tuple(file for file in live_files(table) if key_of(file.file_path) in keys)
    if not old:
        return
    if _has_delete_files(table):
        raise CommitConflictError(
            f"Meanwhile {name} has delete files: rows that they hide would come back. Nothing was committed.",
            next_step="Repeat the command: it names the statement that writes them away.",
        )
    folder = folder_of(table.metadata, Writer(kind=WriterKind.REWRITE, identity=identity))
    written = [_without(table, one, test, location=f"{folder}/00000-0-{uuid4()}.parquet") for one in old]
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
            writer=identity,
        )

    commit_checked(committer, name, plan, what=f"{name} without the erased rows", reached=reached)


def _without(table: Table, file: DataFile, test: RowTest, *, location: str) -> DataFile | None:
    try:
        return write_without(table.io, table.metadata, file, test, location=location)
    except OSError as error:  # its message has the path, in which a value may stand
        raise LakehouseError(
            f"Cannot write {spoken(file.file_path)} without the rows: {type(error).__name__}. Nothing was committed.",
            next_step="Repeat the command.",
        ) from None


def _has_delete_files(table: Table) -> bool:
    newest = table.current_snapshot()
    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        manifests = newest.manifests(table.io) if newest is not None else []
    return any(
        one.content == ManifestContent.DELETES and (one.has_added_files() or one.has_existing_files())
        for one in manifests
    )


@dataclass(slots=True)
class HistoryLook:
    """Looks at the history of a table.

    harmless: the keys of the files that were searched and hold no row that is meant. Every other file counts as one
    with such rows, also one that is gone: what it held is unknown, and manifests have the bounds of its values.
    """

    table: Table
    harmless: Collection[str] = ()
    _listed: dict[str, frozenset[str]] = field(default_factory=dict)

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

    def doubtful(self) -> frozenset[str]:
        """The keys of the manifests that any listed snapshot has and that name a file which is not known as harmless.

        Raises
        ------
        LakehouseError: when a manifest cannot be read.
        """
        with self._refusals(), ThreadPoolExecutor(READERS) as pool:
            lists = pool.map(lambda one: one.manifests(self.table.io), self.table.snapshots())
            every = {one.manifest_path: one for some in lists for one in some}
            found = zip(every, pool.map(self._lists_no_such, every.values()), strict=True)
            return frozenset(key_of(path) for path, is_clean in found if not is_clean)

    def read_keys(self) -> frozenset[str]:
        """The keys of the manifests that were read."""
        return frozenset(map(key_of, self._listed))

    def named(self) -> frozenset[str]:
        """All files that the manifests name that were read, and these themselves, with their lists."""
        files = {path for some in self._listed.values() for path in some}
        return frozenset({*files, *self._listed, *(one.manifest_list for one in self.table.snapshots())})

    def _is_clean(self, snapshot: Snapshot) -> bool:
        with self._refusals():
            return all(self._lists_no_such(manifest) for manifest in snapshot.manifests(self.table.io))

    def _lists_no_such(self, manifest: ManifestFile) -> bool:
        """Whether every file that a manifest lists is still there and was searched, also those it has removed."""
        if manifest.manifest_path not in self._listed:
            entries = manifest.fetch_manifest_entry(self.table.io, discard_deleted=False)
            self._listed[manifest.manifest_path] = frozenset(one.data_file.file_path for one in entries)
        return all(key_of(path) in self.harmless for path in self._listed[manifest.manifest_path])

    def _refusals(self) -> AbstractContextManager[None]:
        return catalog_refusals(f"read the manifests of {'.'.join(self.table.name())}")


def staged_snapshots(table: Table, kept: Collection[int]) -> tuple[Snapshot, ...]:
    """The snapshots that a program has written beside main to publish them later, and that are not published yet.

    Source: https://iceberg.apache.org/docs/latest/spark-configuration/#spark-sql-options, `spark.wap.id`
    """
    main = {one.snapshot_id: _properties(one) for one in HistoryLook(table).main_line()}
    published = {properties.get(_PUBLISHED) for properties in main.values()}
    beside = (one for one in table.snapshots() if one.snapshot_id not in {*kept, *main})
    return tuple(one for one in beside if _STAGED in _properties(one) and _properties(one)[_STAGED] not in published)


_STAGED, _PUBLISHED = "wap.id", "published-wap-id"
"""What Iceberg notes in the summary of a snapshot that is to be looked at first, and of the one that publishes it."""


def _properties(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


def is_cut(snapshot: Snapshot) -> bool:
    """Whether history may be cut before a snapshot."""
    summary = snapshot.summary
    return summary is not None and ERASED in summary.additional_properties and summary.operation is Operation.APPEND


def commit_cut(
    committer: TableCommitter,
    name: str,
    *,
    entries: Callable[[Table], Mapping[str, str]],
    reached: Reached = unnoticed,
) -> None:
    """Append an empty snapshot whose manifests list no removed file.

    Parameters
    ----------
    entries: of its summary, with the identity of the erasure, for the table on which it is committed; raises when it
        must not be cut any more.

    Raises
    ------
    DeliveryError, LakehouseError: as `commit_checked` raises them.
    """

    def plan(table: Table) -> TableChange:
        summary = entries(table)
        return TableChange(operation=Operation.APPEND, summary=summary, writer=summary[ERASED], cleans=True)

    commit_checked(committer, name, plan, what=f"the cut in the history of {name}", reached=reached)


def expire_before_cut(catalog: Catalog, table: Table, kept: Collection[int]) -> None:
    """Remove all snapshots but some from the metadata of a table, with every tag and branch on another.

    Parameters
    ----------
    table: freshly loaded. kept: the snapshots that stay; the newest is among them.

    Raises
    ------
    CommitConflictError: when somebody wrote the table meanwhile, or moved one of these tags and branches.
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
    requirements: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref="main", snapshot_id=metadata.current_snapshot_id),
        *(AssertRefSnapshotId(ref=ref, snapshot_id=metadata.refs[ref].snapshot_id) for ref in refs),
    )
    with catalog_refusals(f"expire snapshots of {name}", but_not=(CommitFailedException,)):
        try:
            catalog.commit_table(table, requirements, tuple(updates))
        except CommitFailedException as error:
            raise CommitConflictError(
                f"{name} was written while its history was cut, or a tag or branch of it was moved.",
                next_step="Repeat the command.",
            ) from error
