"""Publishes staged batches by adding their files to the target, in one commit that also moves the mark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from sluice.errors import UnpublishableError
from sluice.publication.chain import batches_to_publish, position_after
from sluice.publication.checked_commit import DEFAULT_POLICY, NothingToCommit, RacePolicy, commit_checked
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.file_preparation import (
    MergedFiles,
    fit_files,
    merge_small_files,
    no_files_merged,
    refuse_unfit_schema,
)
from sluice.publication.iceberg_commit import PlannedCommit, ProducerOf, appending, overwriting
from sluice.publication.marks import load_target_state
from sluice.publication.staged_batch import StagedBatch, StagedOutput, publication_summary
from sluice.publication.staging_table import (
    load_staging_table,
    refuse_missing_files,
    staged_files,
)
from sluice.tables.catalog import catalog_refusals


class ReplacedRange(StrEnum):
    """What a batch replaces. TABLE: all rows (`complete`). PARTITIONS: those it brings (`overwrite_partitions`)."""

    TABLE = "table"
    PARTITIONS = "partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The outcome of a publication.

    snapshot_id: the target's snapshot that made the newest of the batches visible; none when it is no longer known.
    published: the batches that became visible by this call, in order; none when all were visible before.
    attempts: how many commits were sent; more than one means that other writers were faster.
    superseded_files: staged files whose rows were published in larger files; `clear_staging` deletes them.
    """

    snapshot_id: int | None
    published: tuple[StagedBatch, ...]
    attempts: int
    superseded_files: tuple[str, ...] = ()

    @property
    def was_published_before(self) -> bool:
        """Whether all batches were visible before."""
        return not self.published


def publish_append(
    catalog: Catalog,
    output: StagedOutput,
    batches: Sequence[StagedBatch],
    *,
    token: int,
    merge_small: bool = False,
    staging: Table | None = None,
    reached: Reached = unnoticed,
    policy: RacePolicy = DEFAULT_POLICY,
) -> Publication:
    """Add staged batches to the target, together and in order, by one commit. Visible batches are left out.

    Parameters
    ----------
    batches: in order, from `plan_publication`; each follows the previous one.
    token: the fencing token of the run that publishes.
    merge_small: merge small staged files first, so that the target gets few large ones.
    staging: the staging table, loaded after the batches were staged; unset: it is loaded here.
    reached: called with `CHECKED` before each commit is sent.

    Raises
    ------
    DeliveryError: in one of its subclasses, when the batches must not or cannot be published now; the table is
        unchanged.
    LakehouseError: when the catalog or the object store refuses.
    """
    staging = _load_complete_staging(catalog, output, batches, staging)
    files = _AppendedFiles(staging=staging, merge_small=merge_small)
    published = _publish(
        catalog,
        output,
        batches,
        token=token,
        snapshot_for=lambda target, todo: appending(files.for_target(target, todo)),
        reached=reached,
        policy=policy,
    )
    return replace(published, superseded_files=files.merged.superseded) if published.published else published


def publish_replace(
    catalog: Catalog,
    output: StagedOutput,
    batches: Sequence[StagedBatch],
    *,
    replaced: ReplacedRange,
    token: int,
    staging: Table | None = None,
    reached: Reached = unnoticed,
    policy: RacePolicy = DEFAULT_POLICY,
) -> Publication:
    """Replace files of the target by staged files, in one commit that also moves the mark.

    Of several batches each replaces what the previous ones brought: of `TABLE` only the rows of the last one become
    visible, of `PARTITIONS` those of the last batch that brings a partition. Rows that other writers added to the range
    before the check are replaced too; after a later commit of theirs the check is repeated.

    Raises
    ------
    UnpublishableError: when the range does not consist of whole files; then Spark has to overwrite row by row.
    DeliveryError, LakehouseError: as `publish_append` does.
    """
    loaded = _load_complete_staging(catalog, output, batches, staging)

    def snapshot_for(target: Table, todo: Sequence[StagedBatch]) -> ProducerOf:
        refuse_unfit_schema(todo, staging=loaded, target=target)
        removed, added = _exchange(target, _fitted(loaded, target, todo), replaced)
        return overwriting(removed=removed, added=added)

    return _publish(catalog, output, batches, token=token, snapshot_for=snapshot_for, reached=reached, policy=policy)


def _load_complete_staging(
    catalog: Catalog, output: StagedOutput, batches: Sequence[StagedBatch], staging: Table | None
) -> Table:
    staging = load_staging_table(catalog, output) if staging is None else staging
    refuse_missing_files(staging, batches, now=datetime.now(UTC))
    return staging


def _publish(
    catalog: Catalog,
    output: StagedOutput,
    batches: Sequence[StagedBatch],
    *,
    token: int,
    snapshot_for: Callable[[Table, Sequence[StagedBatch]], ProducerOf],
    reached: Reached,
    policy: RacePolicy,
) -> Publication:
    """Load the target, check its mark, and commit the snapshot of the batches that are not visible yet."""
    sent: tuple[StagedBatch, ...] = ()

    def check() -> tuple[Table, PlannedCommit] | NothingToCommit:
        nonlocal sent
        state = load_target_state(catalog, output)
        todo = batches_to_publish(state.position(output), batches, token=token, target=output.target)
        if not todo:
            return NothingToCommit(snapshot_id=state.published_by)
        sent = todo  # stays as it is when the next check finds that this commit has landed after all
        planned = PlannedCommit(
            producer_of=snapshot_for(state.table, todo),
            summary=publication_summary([batch.summary for batch in todo]),
            output=output,
            mark=position_after(todo[-1].summary, token=token),
        )
        return state.table, planned

    landed = commit_checked(catalog, check, what=_described(output, batches), reached=reached, policy=policy)
    if isinstance(landed, NothingToCommit):
        return Publication(snapshot_id=landed.snapshot_id, published=(), attempts=0)
    return Publication(snapshot_id=landed.snapshot_id, published=sent, attempts=landed.attempts)


def _described(output: StagedOutput, batches: Sequence[StagedBatch]) -> str:
    keys = [str(batch.summary.key) for batch in batches]
    named = keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}" if keys else "no batch"
    return f"{named} of output {output.output} into {output.target}"


@dataclass(slots=True, kw_only=True)
class _AppendedFiles:
    """The files of batches as they are added to the target. A later attempt uses what an earlier one has merged."""

    staging: Table
    merge_small: bool
    merged: MergedFiles = no_files_merged
    _merged_for: tuple[int, ...] = ()
    _staged: Mapping[int, tuple[DataFile, ...]] | None = None

    def for_target(self, target: Table, todo: Sequence[StagedBatch]) -> tuple[DataFile, ...]:
        # A batch without files cannot be shown wrongly, and an empty batch of a merge has one column more.
        with_files = [batch for batch in todo if batch.data_files > 0]
        refuse_unfit_schema(with_files, staging=self.staging, target=target)
        if self._staged is None:  # another attempt has the same batches to publish, or fewer
            self._staged = staged_files(self.staging, todo)
        files = [file for batch in todo for file in self._staged[batch.snapshot_id]]
        fitted = fit_files(files, staging=self.staging, target=target)
        if not self.merge_small:
            return fitted
        shape = (target.metadata.default_spec_id, target.metadata.current_schema_id, len(todo))
        if self._merged_for != shape:
            self.merged, self._merged_for = merge_small_files(target, fitted), shape
        return self.merged.files


def _fitted(staging: Table, target: Table, batches: Sequence[StagedBatch]) -> list[tuple[DataFile, ...]]:
    staged = staged_files(staging, batches)
    return [fit_files(staged[batch.snapshot_id], staging=staging, target=target) for batch in batches]


def _exchange(
    target: Table, brought: Sequence[Sequence[DataFile]], replaced: ReplacedRange
) -> tuple[list[DataFile], list[DataFile]]:
    """The files to remove and those to add."""
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
            next_step="Compact the table, which rewrites all files under the current spec.",
        )
