"""Reads what is staged for an output: its batches, oldest first, and the files that each one brought."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.errors import LakehouseError, StagingError
from sluice.publication.staged_output import StagedOutput
from sluice.publication.summaries import TOKEN, BatchSummary, read_summary
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import load_table
from sluice.tables.inspection import READERS

CLEARED = "sluice.staging.cleared"
"""The property of a staging table that lists snapshots whose batches are cleared and that are not expired yet."""

ORPHAN_AGE = timedelta(hours=12)
"""A staged file that is younger is taken for there: orphan removals leave files of a day alone, most of three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch:
    """One batch of an output in its staging table.

    summary: what it says of itself.
    snapshot_id, parent_id: its snapshot there and the one before; Spark reads just the batch's rows between the two.
    staged_at: when it was committed there.
    data_files: how many files it brought, as Iceberg counted them.
    is_overtaken: whether a newer run had begun before it was staged; then it is never published.
    """

    summary: BatchSummary
    snapshot_id: int
    parent_id: int | None
    staged_at: datetime
    data_files: int
    is_overtaken: bool

    @property
    def position(self) -> tuple[int, int]:
        """What batches are ordered by: generation, then number."""
        return (self.summary.key.generation, self.summary.key.batch)


def load_staging_table(catalog: Catalog, output: StagedOutput) -> Table:
    """The staging table of an output, freshly loaded.

    Raises
    ------
    LakehouseError: when it is not there, or the catalog cannot be asked.
    """
    table = load_table(catalog, output.staging)
    if table is None:
        raise LakehouseError(f"{output} has no staging table {output.staging}.", next_step="Start the stream once.")
    return table


def staged_batches(staging: Table, *, stream: str, output: str) -> tuple[StagedBatch, ...]:
    """Every batch in a loaded staging table, oldest first, published ones that are not cleared yet included.

    A batch that was staged twice, by a driver that lost its answer or by two drivers, is listed twice.

    Raises
    ------
    StagingError: when somebody else wrote into the table.
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
    """The snapshots whose batches are cleared and that stay only because the next batch is what follows them."""
    return frozenset(int(snapshot_id) for snapshot_id in json.loads(staging.properties.get(CLEARED, "[]")))


def staged_files(staging: Table, batches: Sequence[StagedBatch]) -> Mapping[int, tuple[DataFile, ...]]:
    """The data files that batches brought, by the batch's snapshot id. One look at the newest snapshot serves all.

    Parameters
    ----------
    batches: from `staged_batches` of the same loaded table.

    Raises
    ------
    StagingError: when delete files were staged; only data files are ever published.
    """
    newest = staging.current_snapshot()
    wanted = {batch.snapshot_id for batch in batches}
    files: dict[int | None, list[DataFile]] = defaultdict(list)
    with catalog_refusals(f"read the manifests of {'.'.join(staging.name())}"):
        manifests = newest.manifests(staging.io) if newest is not None else []
        if any(manifest.content != ManifestContent.DATA for manifest in manifests):
            raise StagingError(f"The staging table {'.'.join(staging.name())} holds delete files.")
        theirs = [manifest for manifest in manifests if _may_hold(manifest, wanted)]
        for entry in _live_entries(staging, theirs):
            files[entry.snapshot_id].append(entry.data_file)
    for batch in batches:
        _refuse_incomplete(batch, found=len(files[batch.snapshot_id]), staging=staging)
    return {batch.snapshot_id: tuple(files[batch.snapshot_id]) for batch in batches}


def _may_hold(manifest: ManifestFile, snapshots: Collection[int]) -> bool:
    """Whether a manifest can list files that some snapshots added. One that only adds files lists those of the snapshot
    that wrote it; others were written anew from older ones and may list anybody's.

    Source: https://iceberg.apache.org/spec/#manifest-lists, `added_snapshot_id` and the counts, which version 1 lacks.
    """
    only_adds = manifest.existing_files_count == 0 and manifest.deleted_files_count == 0
    return not only_adds or manifest.added_snapshot_id in snapshots


def _live_entries(staging: Table, manifests: Sequence[ManifestFile]) -> Iterator[ManifestEntry]:
    """The entries of all manifests, which are many and small when many batches are published together."""
    with ThreadPoolExecutor(READERS) as pool:
        for entries in pool.map(lambda manifest: manifest.fetch_manifest_entry(staging.io), manifests):
            yield from entries


def refuse_missing_files(staging: Table, batches: Sequence[StagedBatch], *, now: datetime) -> None:
    """Refuse batches whose files somebody removed from the store.

    Staged files lie in the target's folder and are not in the target yet: an orphan removal on the target takes them
    for leftovers once they are old enough. Only then is the store asked, one request for each file.

    Raises
    ------
    StagingError: naming the first file that is gone.
    """
    old = [batch for batch in batches if now - batch.staged_at > ORPHAN_AGE]
    for batch, files in ((batch, staged_files(staging, [batch])[batch.snapshot_id]) for batch in old):
        for file in files:
            if not staging.io.new_input(file.file_path).exists():
                raise StagingError(
                    f"Batch {batch.summary.key} was staged {batch.staged_at:%Y-%m-%d %H:%M} and its file "
                    f"{file.file_path} is gone: an orphan removal on the target took it.",
                    next_step="Bring the file back, or open a new generation at the newest published batch.",
                )


def _refuse_anothers(summary: BatchSummary, *, stream: str, output: str) -> None:
    if (summary.key.stream, summary.output) != (stream, output):
        raise StagingError(
            f"The staging table of {stream}.{output} holds batch {summary.key} of output {summary.output}.",
            next_step="A staging table is written by its own stream only; see who else writes there.",
        )


def _refuse_incomplete(batch: StagedBatch, *, found: int, staging: Table) -> None:
    if found != batch.data_files:
        raise StagingError(
            f"Batch {batch.summary.key} was staged with {batch.data_files} files and {'.'.join(staging.name())} holds "
            f"{found} of them.",
            next_step="See who changed the staging table: it is written by its own stream only.",
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
