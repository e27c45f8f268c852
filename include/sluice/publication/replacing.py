"""Publishes a staged batch by replacing what the target holds: all of it, or the partitions that the batch brings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from sluice.errors import UnpublishableError
from sluice.publication.appending import Publication, in_words, publication_of
from sluice.publication.chain import batches_to_publish, position_after
from sluice.publication.committing import (
    PATIENT,
    NothingToCommit,
    PlannedCommit,
    RacePolicy,
    commit_checked,
)
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.file_fitting import fit_files, refuse_unfit_schema
from sluice.publication.file_merging import no_files_merged
from sluice.publication.snapshot_producers import overwriting
from sluice.publication.staged_batches import (
    StagedBatch,
    load_staging_table,
    refuse_missing_files,
    staged_files,
)
from sluice.publication.staged_output import StagedOutput
from sluice.publication.summaries import publication_summary
from sluice.publication.target_state import load_standing
from sluice.tables.catalog import catalog_refusals


class ReplacedRange(StrEnum):
    """What a batch replaces. TABLE: all rows (`complete`). PARTITIONS: those it brings (`overwrite_partitions`)."""

    TABLE = "table"
    PARTITIONS = "partitions"


def publish_replace(
    catalog: Catalog,
    output: StagedOutput,
    batches: Sequence[StagedBatch],
    *,
    replaced: ReplacedRange,
    token: int,
    staging: Table | None = None,
    reached: Reached = unnoticed,
    policy: RacePolicy = PATIENT,
) -> Publication:
    """Put staged files in the place of the target's, in one commit that also moves the mark.

    Of several batches each replaces what the ones before it brought: of `TABLE` only the last one's rows become
    visible, of `PARTITIONS` those of the last batch that brings a partition. What others wrote into the range until the
    check is replaced too; a commit that lands after it makes the check begin anew.

    Raises
    ------
    UnpublishableError: when the range does not fall on whole files; then Spark has to overwrite row by row.
    DeliveryError, LakehouseError: as `publish_append` does.
    """
    staging = load_staging_table(catalog, output) if staging is None else staging
    refuse_missing_files(staging, batches, now=datetime.now(UTC))
    todo: tuple[StagedBatch, ...] = ()

    def check() -> tuple[Table, PlannedCommit] | NothingToCommit:
        nonlocal todo
        standing = load_standing(catalog, output)
        target = standing.table
        todo = batches_to_publish(standing.position(output), batches, token=token, target=output.target)
        if not todo:
            return NothingToCommit(snapshot_id=standing.published_by)
        refuse_unfit_schema(todo, staging=staging, target=target)
        removed, added = _exchange(target, _fitted(staging, target, todo), replaced)
        planned = PlannedCommit(
            producer_of=overwriting(removed=removed, added=added),
            summary=publication_summary([batch.summary for batch in todo]),
            output=output,
            mark=position_after(todo[-1].summary, token=token),
        )
        return target, planned

    landed = commit_checked(catalog, check, what=in_words(output, batches), reached=reached, policy=policy)
    if isinstance(landed, NothingToCommit):
        return Publication(snapshot_id=landed.snapshot_id, published=(), attempts=0)
    return publication_of(landed, todo, no_files_merged)


def _fitted(staging: Table, target: Table, batches: Sequence[StagedBatch]) -> list[tuple[DataFile, ...]]:
    staged = staged_files(staging, batches)
    return [fit_files(staged[batch.snapshot_id], staging=staging, target=target) for batch in batches]


def _exchange(
    target: Table, brought: Sequence[Sequence[DataFile]], replaced: ReplacedRange
) -> tuple[list[DataFile], list[DataFile]]:
    """The files that go and those that come."""
    live = live_files(target)
    if replaced is ReplacedRange.TABLE:
        return live, list(brought[-1])
    newest: dict[Record, list[DataFile]] = {}
    for files in brought:
        own: dict[Record, list[DataFile]] = {}
        for file in files:
            own.setdefault(file.partition, []).append(file)
        newest.update(own)
    _refuse_ranges_within_files(target, [*live, *(file for files in newest.values() for file in files)])
    gone = [file for file in live if file.partition in newest]
    return gone, [file for files in newest.values() for file in files]


def live_files(target: Table) -> list[DataFile]:
    """Every data file of a loaded table's newest snapshot.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    newest = target.current_snapshot()
    if newest is None:
        return []
    with catalog_refusals(f"read the manifests of {'.'.join(target.name())}"):
        return [
            entry.data_file
            for manifest in newest.manifests(target.io)
            if manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(target.io, discard_deleted=True)
        ]


def _refuse_ranges_within_files(target: Table, files: Sequence[DataFile]) -> None:
    default = target.metadata.default_spec_id
    if target.spec().is_unpartitioned():
        raise UnpublishableError(
            f"{'.'.join(target.name())} has no partitions to overwrite.", next_step="Declare `partitioning`."
        )
    if any(file.spec_id != default for file in files):
        raise UnpublishableError(
            f"{'.'.join(target.name())} holds files of an older partition spec, so a partition is not a set of files.",
            next_step="Compact the table, which writes all files anew under the present spec.",
        )
