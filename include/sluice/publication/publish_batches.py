"""Publishes staged batches by adding their files to the target, in one commit that also moves the mark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from sluice.errors import UnpublishableError
from sluice.publication.chain import batches_to_publish, position_after
from sluice.publication.checked_commit import DEFAULT_POLICY, NothingToCommit, RacePolicy, TableChange, commit_checked
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.data_files import Writer
from sluice.publication.file_preparation import (
    MergedFiles,
    find_missing_files,
    fit_files,
    merge_small_files,
    old_batches,
    refuse_missing_files,
    refuse_unfit_schema,
)
from sluice.publication.marks import read_target_state
from sluice.publication.pyiceberg_committer import PyIcebergCommitter, data_files_of
from sluice.publication.staged_batch import StagedBatch, StagedOutput, publication_summary
from sluice.publication.staging_table import load_staging_table, staged_files
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
    superseded_files: staged files whose rows are visible in larger files. `clear_staging` deletes them.
    staged_files: those that were read to be published, by the snapshot of their batch; none of a merge, which Spark
        reads. staged_schema: of these files; unset without any.
    """

    snapshot_id: int | None
    published: tuple[StagedBatch, ...]
    attempts: int
    superseded_files: tuple[str, ...] = ()
    staged_files: Mapping[int, tuple[DataFile, ...]] = field(default_factory=dict)
    staged_schema: Schema | None = None

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
    files = _AppendedFiles(staging=staging, writer=Writer.of_run(token), merge_small=merge_small)
    return _publish(catalog, output, batches, token=token, files_for=files.for_target, reached=reached, policy=policy)


def publish_replace(
    catalog: Catalog,
    output: StagedOutput,
    batches: Sequence[StagedBatch],
    *,
    replaced: ReplacedRange,
    token: int,
    staging: Table | None = None,
    reached: Reached = unnoticed,
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

    def files_for(target: Table, todo: Sequence[StagedBatch]) -> _ChangedFiles:
        refuse_unfit_schema(todo, staging=loaded, target=target)
        staged = staged_files(loaded, todo)
        fitted = [fit_files(staged[batch.snapshot_id], staging=loaded, target=target) for batch in todo]
        return replace(_exchange(target, fitted, replaced), staged=staged, schema=loaded.schema())

    return _publish(catalog, output, batches, token=token, files_for=files_for, reached=reached)


def _load_complete_staging(
    catalog: Catalog, output: StagedOutput, batches: Sequence[StagedBatch], staging: Table | None
) -> Table:
    staging = load_staging_table(catalog, output) if staging is None else staging
    refuse_missing_files(find_missing_files(staging, old_batches(batches, now=datetime.now(UTC))))
    return staging


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangedFiles:
    """The files that a publication adds and removes.

    superseded: staged files whose rows are in larger ones. staged, schema: as `Publication` has them.
    """

    operation: Operation
    added: tuple[DataFile, ...]
    removed: tuple[DataFile, ...] = ()
    superseded: tuple[str, ...] = ()
    staged: Mapping[int, tuple[DataFile, ...]] = field(default_factory=dict)
    schema: Schema | None = None


def _publish(
    catalog: Catalog,
    output: StagedOutput,
    batches: Sequence[StagedBatch],
    *,
    token: int,
    files_for: Callable[[Table, Sequence[StagedBatch]], _ChangedFiles],
    reached: Reached,
    policy: RacePolicy = DEFAULT_POLICY,
) -> Publication:
    """Load the target, check its mark, and commit the snapshot of the batches that are not visible yet."""
    planned: list[_Planned] = []

    def plan(target: Table) -> TableChange | NothingToCommit:
        state = read_target_state(target, output)
        todo = batches_to_publish(state.position(output), batches, token=token, target=output.target)
        if not todo:
            return NothingToCommit(snapshot_id=state.published_by)
        files = files_for(target, todo)
        change = TableChange(
            operation=files.operation,
            added=files.added,
            removed=files.removed,
            summary=publication_summary([batch.summary for batch in todo]),
            output=output,
            mark=position_after(todo[-1].summary, token=token),
            added_at=min(batch.staged_at for batch in todo),
        )
        planned.append(_Planned(change=change, batches=todo, files=files))
        return change

    what = _described(output, batches)
    landed = commit_checked(PyIcebergCommitter(catalog), output.target, plan, what=what, reached=reached, policy=policy)
    if isinstance(landed, NothingToCommit):
        return Publication(snapshot_id=landed.snapshot_id, published=(), attempts=0)
    visible = next(one for one in planned if one.change is landed.change)
    return Publication(
        snapshot_id=landed.snapshot_id,
        published=visible.batches,
        attempts=landed.attempts,
        superseded_files=visible.files.superseded,
        staged_files=visible.files.staged,
        staged_schema=visible.files.schema,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """What one attempt would make visible."""

    change: TableChange
    batches: tuple[StagedBatch, ...]
    files: _ChangedFiles


def _described(output: StagedOutput, batches: Sequence[StagedBatch]) -> str:
    keys = [str(batch.summary.key) for batch in batches]
    named = keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}" if keys else "no batch"
    return f"{named} of output {output.output} into {output.target}"


@dataclass(slots=True, kw_only=True)
class _AppendedFiles:
    """The files of batches as they are added to the target. A later attempt uses what an earlier one has merged."""

    staging: Table
    writer: Writer
    merge_small: bool
    _merged: dict[tuple[int, ...], MergedFiles] = field(default_factory=dict)
    _staged: Mapping[int, tuple[DataFile, ...]] | None = None

    def for_target(self, target: Table, todo: Sequence[StagedBatch]) -> _ChangedFiles:
        # A batch without files cannot be shown wrongly, and an empty batch of a merge has one column more.
        with_files = [batch for batch in todo if batch.data_files > 0]
        refuse_unfit_schema(with_files, staging=self.staging, target=target)
        if self._staged is None:  # another attempt has the same batches to publish, or fewer
            self._staged = staged_files(self.staging, todo)
        files = [file for batch in todo for file in self._staged[batch.snapshot_id]]
        fitted = fit_files(files, staging=self.staging, target=target)
        merged = self._merged_for(target, todo, fitted) if self.merge_small else MergedFiles(files=fitted)
        return _ChangedFiles(
            operation=Operation.APPEND,
            added=merged.files,
            superseded=merged.superseded,
            staged=self._staged,
            schema=self.staging.schema(),
        )

    def _merged_for(self, target: Table, todo: Sequence[StagedBatch], fitted: Sequence[DataFile]) -> MergedFiles:
        metadata = target.metadata
        layout = (metadata.default_spec_id, metadata.current_schema_id, metadata.default_sort_order_id)
        made_of = (*layout, *(batch.snapshot_id for batch in todo))
        if made_of not in self._merged:
            self._merged[made_of] = merge_small_files(target, fitted, writer=self.writer)
        return self._merged[made_of]


def _exchange(target: Table, brought: Sequence[Sequence[DataFile]], replaced: ReplacedRange) -> _ChangedFiles:
    if replaced is ReplacedRange.TABLE:
        return _ChangedFiles(operation=Operation.OVERWRITE, removed=tuple(live_files(target)), added=tuple(brought[-1]))
    newest: dict[Record, list[DataFile]] = {}
    for files in brought:
        own: dict[Record, list[DataFile]] = {}
        for file in files:
            own.setdefault(file.partition, []).append(file)
        newest.update(own)
    _refuse_ranges_within_files(target, [file for files in newest.values() for file in files])
    return _ChangedFiles(
        operation=Operation.OVERWRITE,
        removed=tuple(data_files_of(target, newest.keys())),
        added=tuple(file for files in newest.values() for file in files),
    )


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


def _refuse_ranges_within_files(target: Table, brought: Sequence[DataFile]) -> None:
    default, name = target.metadata.default_spec_id, ".".join(target.name())
    if target.spec().is_unpartitioned():
        raise UnpublishableError(f"{name} has no partitions to overwrite.", next_step="Declare `partitioning`.")
    if any(file.spec_id != default for file in brought) or _holds_files_of_other_specs(target):
        raise UnpublishableError(
            f"{name} holds files of an older partition spec, so a partition is not a set of files.",
            next_step="Rewrite all files under the current spec, in Spark: CALL <catalog>.system.rewrite_data_files("
            f"table => '{name}', options => map('rewrite-all', 'true')).",
        )


def _holds_files_of_other_specs(target: Table) -> bool:
    """Whether a live data file was written under another spec; the list of manifests says it."""
    newest = target.current_snapshot()
    if newest is None:
        return False
    with catalog_refusals(f"read the manifests of {'.'.join(target.name())}"):
        return any(
            manifest.partition_spec_id != target.metadata.default_spec_id
            for manifest in newest.manifests(target.io)
            if manifest.content == ManifestContent.DATA
            and (manifest.has_added_files() or manifest.has_existing_files())
        )
