"""Reads the batches and files of a staging table."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.errors import LakehouseError, StagingError
from sluice.publication.staged_batch import BatchSummary, StagedBatch, StagedOutput, read_summary
from sluice.stored_keys import STAGING_CLEARED, TOKEN
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import load_table
from sluice.tables.inspection import READERS


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
        entries = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        token = int(entries.get(TOKEN, newest_token))
        summary = read_summary(entries)
        if summary is not None and snapshot.snapshot_id not in cleared:
            _refuse_anothers(summary, stream=stream, output=output)
            batches.append(_staged(snapshot, summary, is_overtaken=token < newest_token))
        newest_token = max(newest_token, token)
    return tuple(batches)


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
    with catalog_refusals(f"read the manifests of {'.'.join(staging.name())}"):
        manifests = newest.manifests(staging.io) if newest is not None else []
        if any(manifest.content != ManifestContent.DATA for manifest in manifests):
            raise StagingError(f"The staging table {'.'.join(staging.name())} holds delete files.")
        theirs = [manifest for manifest in manifests if _may_hold(manifest, wanted)]
        for entry in _live_entries(staging, theirs):
            files[entry.snapshot_id][entry.data_file.file_path] = entry.data_file
    return {batch.snapshot_id: tuple(files[batch.snapshot_id].values()) for batch in batches}


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
    entries = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    return StagedBatch(
        summary=summary,
        snapshot_id=snapshot.snapshot_id,
        parent_id=snapshot.parent_snapshot_id,
        staged_at=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
        data_files=int(entries.get("added-data-files", 0)),
        is_overtaken=is_overtaken,
    )
