"""Clears published and abandoned batches from a staging table."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from sluice.errors import LakehouseError
from sluice.ledger.batches import PublicationKey
from sluice.publication.chain import AbandonedBatch, is_behind, refuse_stale_token
from sluice.publication.checked_commit import DEFAULT_POLICY, NothingToCommit, RacePolicy, commit_checked
from sluice.publication.marks import load_target_state
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staged_batch import StagedBatch, StagedOutput
from sluice.publication.staging_table import cleared_snapshots, listed_files, load_staging_table, staged_batches
from sluice.publication.table_committer import TableChange
from sluice.stored_keys import STAGING_CLEARED, TOKEN
from sluice.tables.catalog import catalog_refusals

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
    policy: RacePolicy = DEFAULT_POLICY,
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
    landed = commit_checked(PyIcebergCommitter(catalog), output.staging, plan, what=what, policy=policy)
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
    for path in (*sorted(unused), *superseded_files):
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
