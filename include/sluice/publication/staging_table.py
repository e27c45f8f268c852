"""Reads the batches and files of a staging table, and clears those that are published or abandoned."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from sluice.errors import LakehouseError, StagingError
from sluice.ledger.batches import PublicationKey
from sluice.publication.chain import AbandonedBatch, is_behind, refuse_stale_token
from sluice.publication.checked_commit import NothingToCommit, TableChange, commit_checked
from sluice.publication.marks import entries_of, load_target_state
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staged_batch import BatchSummary, StagedBatch, StagedOutput, read_summary
from sluice.stored_keys import STAGING_CLEARED, TOKEN
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import load_table
from sluice.tables.manifest_reading import READERS


def load_staging_table(catalog: Catalog, output: StagedOutput) -> Table:
    """The staging table of an output, freshly loaded.

    Raises
    ------
    LakehouseError: when it does not exist, or the catalog cannot be asked.
    """
    table = load_table(catalog, output.staging)
    if table is None:
        raise LakehouseError(f"{output} has no staging table {output.staging}.", next_step="Start the stream once.")
    return table


def torn(staging: str, *, stream: str, error: FileNotFoundError) -> StagingError:
    """The error of a staging table that refers to a file which is gone."""
    return StagingError(
        f"The staging table {staging} refers to a file that is gone, so nothing of it can be read: {error}. "
        "The catalog was set back to before the table was cleared, or somebody has removed the file.",
        next_step=f"`sluice stream repair {stream} --dry-run` shows what is read again without it.",
    )


def staged_batches(staging: Table, *, stream: str, output: str) -> tuple[StagedBatch, ...]:
    """Every batch in a loaded staging table, oldest first, including published ones that are not cleared yet.

    A batch that was staged twice, after a lost answer or by two drivers, is listed twice.

    Raises
    ------
    StagingError: when the table holds a batch of another output.
    """
    cleared = cleared_snapshots(staging)
    newest_token = -1
    batches = []
    for snapshot in sorted(staging.metadata.snapshots, key=lambda seen: seen.sequence_number or 0):
        entries = entries_of(snapshot)
        token = int(entries.get(TOKEN, newest_token))
        summary = read_summary(entries)
        if summary is not None and snapshot.snapshot_id not in cleared:
            _refuse_anothers(summary, stream=stream, output=output)
            batches.append(_staged(snapshot, summary, is_overtaken=token < newest_token))
        newest_token = max(newest_token, token)
    return tuple(batches)


def newest_token(staging: Table) -> int:
    """The highest fencing token that a loaded staging table has seen; -1 when it has seen none."""
    return max((int(entries_of(snapshot).get(TOKEN, -1)) for snapshot in staging.metadata.snapshots), default=-1)


def cleared_snapshots(staging: Table) -> frozenset[int]:
    """The snapshots of cleared batches that remain because the rows of the next batch are read from them on."""
    return frozenset(int(snapshot_id) for snapshot_id in json.loads(staging.properties.get(STAGING_CLEARED, "[]")))


def staged_files(staging: Table, batches: Sequence[StagedBatch]) -> Mapping[int, tuple[DataFile, ...]]:
    """The data files that batches added, by the batch's snapshot id.

    Parameters
    ----------
    batches: from `staged_batches` of the same loaded table.

    Raises
    ------
    StagingError: when not all files of a batch are listed, or delete files were staged; only data files are published.
    """
    files = listed_files(staging, batches)
    for batch in batches:
        _refuse_incomplete(batch, found=len(files[batch.snapshot_id]), staging=staging)
    return files


def listed_files(staging: Table, batches: Sequence[StagedBatch]) -> Mapping[int, tuple[DataFile, ...]]:
    """The data files of batches that the newest snapshot lists, by the batch's snapshot id, read in one pass.

    When a commit that has landed is answered by a refusal, Iceberg's Java library adds the same files by another
    snapshot. The files are listed under the first of those snapshots, and the others have none.

    Parameters
    ----------
    batches: from `staged_batches` of the same loaded table.

    Raises
    ------
    StagingError: when delete files were staged.
    """
    newest = staging.current_snapshot()
    wanted = {batch.snapshot_id for batch in batches}
    files: dict[int | None, dict[str, DataFile]] = defaultdict(dict)
    with (
        readable(staging),
        catalog_refusals(f"read the manifests of {'.'.join(staging.name())}", but_not=(FileNotFoundError,)),
    ):
        manifests = newest.manifests(staging.io) if newest is not None else []
        if any(manifest.content != ManifestContent.DATA for manifest in manifests):
            raise StagingError(f"The staging table {'.'.join(staging.name())} holds delete files.")
        theirs = [manifest for manifest in manifests if _may_hold(manifest, wanted)]
        for entry in _live_entries(staging, theirs):
            files[entry.snapshot_id][entry.data_file.file_path] = entry.data_file
    return {batch.snapshot_id: tuple(files[batch.snapshot_id].values()) for batch in batches}


@contextmanager
def readable(staging: Table) -> Iterator[None]:
    """Raises that a staging table is torn, unless somebody has cleared it since it was loaded."""
    name = ".".join(staging.name())
    try:
        yield
    except FileNotFoundError as error:
        with catalog_refusals(f"load the table {name}"):
            now = staging.catalog.load_table(staging.name())
        if now.metadata_location != staging.metadata_location:
            raise LakehouseError(f"{name} was cleared while it was read.", next_step="Try again.") from error
        raise torn(name, stream=staging.name()[-1].partition("__")[0], error=error) from error


def _may_hold(manifest: ManifestFile, snapshots: Collection[int]) -> bool:
    """Whether a manifest can list files that some snapshots added. A manifest that only adds files lists those of its
    own snapshot; a rewritten manifest may list files of any snapshot.

    Source: https://iceberg.apache.org/spec/#manifest-lists, `added_snapshot_id` and the counts, which version 1 lacks.
    """
    only_adds = manifest.existing_files_count == 0 and manifest.deleted_files_count == 0
    return not only_adds or manifest.added_snapshot_id in snapshots


def _live_entries(staging: Table, manifests: Sequence[ManifestFile]) -> Iterator[ManifestEntry]:
    """The entries of all manifests, read in parallel: many batches that are published together have many small ones."""
    with ThreadPoolExecutor(READERS) as pool:
        for entries in pool.map(lambda manifest: manifest.fetch_manifest_entry(staging.io), manifests):
            yield from entries


def _refuse_anothers(summary: BatchSummary, *, stream: str, output: str) -> None:
    if (summary.key.stream, summary.output) != (stream, output):
        raise StagingError(
            f"The staging table of {stream}.{output} holds batch {summary.key} of output {summary.output}.",
            next_step="Only its own stream may write into a staging table: find the other writer.",
        )


def _refuse_incomplete(batch: StagedBatch, *, found: int, staging: Table) -> None:
    if found != batch.data_files:
        raise StagingError(
            f"Batch {batch.summary.key} was staged with {batch.data_files} files and {'.'.join(staging.name())} holds "
            f"{found} of them.",
            next_step="Only its own stream may write into a staging table: find what changed it.",
        )


def _staged(snapshot: Snapshot, summary: BatchSummary, *, is_overtaken: bool) -> StagedBatch:
    return StagedBatch(
        summary=summary,
        snapshot_id=snapshot.snapshot_id,
        parent_id=snapshot.parent_snapshot_id,
        staged_at=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
        data_files=int(entries_of(snapshot).get("added-data-files", 0)),
        is_overtaken=is_overtaken,
    )


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearance:
    """The result of a clearing.

    batches: the cleared batches. deleted_files: how many metadata files and superseded data files were deleted.
    superseded_left: the superseded files of batches that are not cleared yet, for the next clearing.
    """

    batches: tuple[StagedBatch, ...]
    deleted_files: int
    superseded_left: tuple[str, ...] = ()


def clear_staging(
    catalog: Catalog,
    output: StagedOutput,
    *,
    token: int,
    abandoned: Sequence[AbandonedBatch] = (),
    unrecorded: Collection[PublicationKey] = (),
    superseded_files: Sequence[str] = (),
) -> Clearance:
    """Remove the batches at or below the mark and the abandoned batches from the staging table.

    Orphan removal on the target can work only after that. Data files of the target stay where they are. One commit
    deletes the entries and expires the snapshots, so that a batch is never listed without its files. A snapshot remains
    while the rows of the next batch are read from it on.

    Parameters
    ----------
    token: the fencing token of the run that clears. The runs after it may not have recorded what it would clear.
    abandoned: from `plan_publication`, after they were reported.
    unrecorded: published batches to keep, because the ledger does not have them yet.
    superseded_files: from publications: staged files whose rows are visible in larger files. Those of the cleared
        batches are deleted, once the staging table no longer lists them.

    Raises
    ------
    StaleTokenError: when a newer run has taken over.
    DeliveryError, LakehouseError: as `publish_append` does. Calling it again is safe.
    """
    never = {batch.batch.snapshot_id for batch in abandoned}
    planned: list[_Planned] = []

    def plan(staging: Table) -> TableChange | NothingToCommit:
        # In this order: a newer run raises the token of the mark and then commits it to the staging table. Either the
        # mark shows it now, or its commit changes the staging table and this one is refused.
        position = load_target_state(catalog, output).position(output)
        refuse_stale_token(position, token, target=output.target)
        staged = staged_batches(staging, stream=output.stream, output=output.output)
        done = [batch for batch in staged if is_behind(batch, position)]
        recorded = [batch for batch in done if batch.summary.key not in unrecorded]
        gone = (*recorded, *(batch for batch in staged if batch.snapshot_id in never))
        if not gone:
            return NothingToCommit(snapshot_id=None)
        change = _clearing(staging, gone, [batch for batch in staged if batch not in gone], token=token)
        planned.append(_Planned(change=change, staging=staging, batches=gone))
        return change

    what = f"the clearing of {output.staging}"
    landed = commit_checked(PyIcebergCommitter(catalog), output.staging, plan, what=what)
    if isinstance(landed, NothingToCommit):
        return Clearance(batches=(), deleted_files=0, superseded_left=tuple(superseded_files))
    done = next(one for one in planned if one.change is landed.change)
    cleared = {file.file_path for file in landed.change.removed}
    superseded = [path for path in superseded_files if path in cleared]
    return Clearance(
        batches=done.batches,
        deleted_files=_delete_unneeded(catalog, output, done.staging, superseded),
        superseded_left=tuple(path for path in superseded_files if path not in cleared),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """What one attempt would clear, and the staging table on which it was planned."""

    change: TableChange
    staging: Table
    batches: tuple[StagedBatch, ...]


def _clearing(staging: Table, gone: Sequence[StagedBatch], kept: Sequence[StagedBatch], *, token: int) -> TableChange:
    """Remove files and expire snapshots. The previous head is kept once more: a writer may be about to append to it."""
    head = staging.metadata.current_snapshot_id
    needed = {batch.snapshot_id for batch in kept} | {batch.parent_id for batch in kept} | {head}
    present = {snapshot.snapshot_id for snapshot in staging.metadata.snapshots}
    forgotten = cleared_snapshots(staging) | {batch.snapshot_id for batch in gone}
    listed = json.dumps(sorted(forgotten & needed & present))
    return TableChange(
        operation=Operation.DELETE,
        removed=tuple(file for found in listed_files(staging, gone).values() for file in found),
        summary={TOKEN: str(token)},
        properties={STAGING_CLEARED: listed} if listed != staging.properties.get(STAGING_CLEARED, "[]") else {},
        expired=tuple(present - needed),
    )


def _delete_unneeded(catalog: Catalog, output: StagedOutput, before: Table, superseded_files: Collection[str]) -> int:
    """Delete the metadata files of the expired snapshots, which nothing else deletes, and the superseded files.

    The commit has landed. A file that cannot be deleted now stays, which costs nothing but space.
    """
    after = load_staging_table(catalog, output)
    present = {snapshot.snapshot_id for snapshot in after.metadata.snapshots}
    expired = [snapshot for snapshot in before.metadata.snapshots if snapshot.snapshot_id not in present]
    try:
        with catalog_refusals(f"read the manifests of {output.staging}"):
            used = {path for snapshot in after.metadata.snapshots for path in _metadata_files(after, snapshot)}
            unused = {path for snapshot in expired for path in _metadata_files(before, snapshot)} - used
    except LakehouseError as error:
        _log.warning("metadata files of %s were not deleted: %s", output.staging, error)
        return 0
    deleted = 0
    lists = {snapshot.manifest_list for snapshot in expired}  # first: without its manifests a list is no use
    for path in (*sorted(unused & lists), *sorted(unused - lists), *superseded_files):
        try:
            after.io.delete(path)
            deleted += 1
        except OSError as error:
            _log.warning("a file of %s was not deleted: %s", output.staging, error)
    return deleted


def _metadata_files(table: Table, snapshot: Snapshot) -> Iterator[str]:
    yield snapshot.manifest_list
    for manifest in snapshot.manifests(table.io):
        yield manifest.manifest_path
