"""Takes batches out of a staging table: published ones, so that orphan removal on the target can do its work, and
abandoned ones. Data files stay where they are; only the staging table forgets them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetPropertiesUpdate, TableUpdate

from sluice.errors import LakehouseError
from sluice.publication.chain import AbandonedBatch, is_published
from sluice.publication.committing import (
    PATIENT,
    NothingToCommit,
    PlannedCommit,
    RacePolicy,
    commit_checked,
)
from sluice.publication.snapshot_producers import removing
from sluice.publication.staged_batches import (
    CLEARED,
    StagedBatch,
    cleared_snapshots,
    load_staging_table,
    staged_batches,
    staged_files,
)
from sluice.publication.staged_output import StagedOutput
from sluice.publication.summaries import TOKEN
from sluice.publication.target_state import load_standing
from sluice.tables.catalog import catalog_refusals

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearance:
    """What was cleared: the batches, and how many files of the staging table's own metadata and merged data went."""

    batches: tuple[StagedBatch, ...]
    deleted_files: int


def clear_staging(
    catalog: Catalog,
    output: StagedOutput,
    *,
    token: int,
    abandoned: Sequence[AbandonedBatch] = (),
    unrecorded: Collection[int] = (),
    superseded_files: Sequence[str] = (),
    policy: RacePolicy = PATIENT,
) -> Clearance:
    """Let the staging table forget the batches at or below the mark, and those that are abandoned.

    One commit deletes their entries and expires their snapshots, so that there is no moment at which a batch is listed
    and its files are not. Snapshots stay as long as a batch behind them is read as what follows them.

    Parameters
    ----------
    abandoned: from `plan_publication`, after they were reported.
    unrecorded: the numbers of published batches that stay, because nobody else knows of them yet.
    superseded_files: from publications: staged files that went in as part of larger ones. Nothing needs them any more.

    Raises
    ------
    DeliveryError, LakehouseError: as `publish_append` does. Calling it again is safe.
    """
    never = {batch.batch.snapshot_id for batch in abandoned}
    gone: list[StagedBatch] = []
    before: Table | None = None

    def check() -> tuple[Table, PlannedCommit] | NothingToCommit:
        nonlocal before
        position = load_standing(catalog, output).position(output)
        before = load_staging_table(catalog, output)
        staged = staged_batches(before, stream=output.stream, output=output.output)
        done = [batch for batch in staged if is_published(batch, position)]
        recorded = [batch for batch in done if batch.summary.key.batch not in unrecorded]
        gone[:] = [*recorded, *(batch for batch in staged if batch.snapshot_id in never)]
        if not gone:
            return NothingToCommit(snapshot_id=None)
        kept = [batch for batch in staged if batch not in gone]
        files = [file for found in staged_files(before, gone).values() for file in found]
        return before, PlannedCommit(
            producer_of=removing(files), summary={TOKEN: str(token)}, also=_forgetting(before, gone, kept)
        )

    commit_checked(catalog, check, what=f"the clearing of {output.staging}", policy=policy)
    deleted = _delete_unneeded(catalog, output, before, superseded_files) if gone and before is not None else 0
    return Clearance(batches=tuple(gone), deleted_files=deleted)


def _forgetting(staging: Table, gone: Sequence[StagedBatch], kept: Sequence[StagedBatch]) -> tuple[TableUpdate, ...]:
    """Expire what nobody needs. The head that was stays once more: a writer may just be reading it to append to it."""
    head = staging.metadata.current_snapshot_id
    needed = {batch.snapshot_id for batch in kept} | {batch.parent_id for batch in kept} | {head}
    present = {snapshot.snapshot_id for snapshot in staging.metadata.snapshots}
    forgotten = cleared_snapshots(staging) | {batch.snapshot_id for batch in gone}
    updates: list[TableUpdate] = []
    if present - needed:
        updates.append(RemoveSnapshotsUpdate(snapshot_ids=sorted(present - needed)))
    listed = json.dumps(sorted(forgotten & needed & present))
    if listed != staging.properties.get(CLEARED, "[]"):
        updates.append(SetPropertiesUpdate(updates={CLEARED: listed}))
    return tuple(updates)


def _delete_unneeded(catalog: Catalog, output: StagedOutput, before: Table, superseded_files: Collection[str]) -> int:
    """Delete the metadata files of the expired snapshots, which nothing else would ever delete, and merged files.

    The commit has landed. What cannot be deleted now is left behind, which costs space and nothing else.
    """
    after = load_staging_table(catalog, output)
    present = {snapshot.snapshot_id for snapshot in after.metadata.snapshots}
    expired = [snapshot for snapshot in before.metadata.snapshots if snapshot.snapshot_id not in present]
    try:
        with catalog_refusals(f"read the manifests of {output.staging}"):
            used = {path for snapshot in after.metadata.snapshots for path in _metadata_files(after, snapshot)}
            unused = {path for snapshot in expired for path in _metadata_files(before, snapshot)} - used
    except LakehouseError as error:
        _log.warning("metadata files of %s are left behind: %s", output.staging, error)
        return 0
    deleted = 0
    for path in (*sorted(unused), *superseded_files):
        try:
            after.io.delete(path)
            deleted += 1
        except OSError as error:
            _log.warning("a file of %s is left behind: %s", output.staging, error)
    return deleted


def _metadata_files(table: Table, snapshot: Snapshot) -> Iterator[str]:
    yield snapshot.manifest_list
    for manifest in snapshot.manifests(table.io):
        yield manifest.manifest_path
