"""Publishes staged batches by appending their files to the target, in one commit that also moves the mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from sluice.publication.chain import batches_to_publish, position_after
from sluice.publication.committing import (
    PATIENT,
    Landed,
    NothingToCommit,
    PlannedCommit,
    RacePolicy,
    commit_checked,
)
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.file_fitting import fit_files, refuse_unfit_schema
from sluice.publication.file_merging import MergedFiles, merge_small_files, no_files_merged
from sluice.publication.snapshot_producers import appending
from sluice.publication.staged_batches import (
    StagedBatch,
    load_staging_table,
    refuse_missing_files,
    staged_files,
)
from sluice.publication.staged_output import StagedOutput
from sluice.publication.summaries import publication_summary
from sluice.publication.target_state import load_standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What came of publishing.

    snapshot_id: the target's snapshot that made the newest of the batches visible; none when that was long ago and is
        not known any more.
    published: the batches that became visible by this call, in order; none when all of them were before.
    attempts: how many commits were sent; more than one means that other writers were faster.
    superseded_files: staged files whose rows went in as part of larger ones; `clear_staging` deletes them.
    """

    snapshot_id: int | None
    published: tuple[StagedBatch, ...]
    attempts: int
    superseded_files: tuple[str, ...] = ()

    @property
    def was_published_before(self) -> bool:
        """Whether there was nothing left to do."""
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
    policy: RacePolicy = PATIENT,
) -> Publication:
    """Make staged batches visible, together and in order, by one commit. Those that are visible already are left out.

    Parameters
    ----------
    batches: in order, from `plan_publication`; each follows the one before.
    token: the fencing token of the run that publishes.
    merge_small: put small staged files together first, so that the target gets few large ones.
    staging: the staging table, loaded after the batches were staged; unset: it is loaded here.
    reached: is told `CHECKED` before each commit is sent.

    Raises
    ------
    DeliveryError: as its own class when the batches must not, or cannot, be published now; the table is as before.
    LakehouseError: when the catalog or the object store refuses.
    """
    staging = load_staging_table(catalog, output) if staging is None else staging
    refuse_missing_files(staging, batches, now=datetime.now(UTC))
    door = _Door(staging=staging, batches=tuple(batches), merge_small=merge_small)

    def check() -> tuple[Table, PlannedCommit] | NothingToCommit:
        standing = load_standing(catalog, output)
        target, position = standing.table, standing.position(output)
        todo = batches_to_publish(position, batches, token=token, target=output.target)
        if not todo:
            return NothingToCommit(snapshot_id=standing.published_by)
        planned = PlannedCommit(
            producer_of=appending(door.files_for(target, todo)),
            summary=publication_summary([batch.summary for batch in todo]),
            output=output,
            mark=position_after(todo[-1].summary, token=token),
        )
        return target, planned

    landed = commit_checked(catalog, check, what=in_words(output, batches), reached=reached, policy=policy)
    if isinstance(landed, NothingToCommit):
        return Publication(snapshot_id=landed.snapshot_id, published=(), attempts=0)
    return publication_of(landed, door.todo, door.merged)


def publication_of(landed: Landed, published: Sequence[StagedBatch], merged: MergedFiles) -> Publication:
    """The outcome of a commit that landed."""
    return Publication(
        snapshot_id=landed.snapshot_id,
        published=tuple(published),
        attempts=landed.attempts,
        superseded_files=merged.superseded,
    )


def in_words(output: StagedOutput, batches: Sequence[StagedBatch]) -> str:
    """What is published, for messages."""
    keys = [str(batch.summary.key) for batch in batches]
    named = keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}" if keys else "no batch"
    return f"{named} of output {output.output} into {output.target}"


@dataclass(slots=True, kw_only=True)
class _Door:
    """The files of the batches as they go into the target. What was merged for one attempt serves the next one."""

    staging: Table
    batches: tuple[StagedBatch, ...]
    merge_small: bool
    todo: tuple[StagedBatch, ...] = ()
    merged: MergedFiles = no_files_merged
    _merged_for: tuple[int, ...] = ()
    _staged: Mapping[int, tuple[DataFile, ...]] | None = None

    def files_for(self, target: Table, todo: tuple[StagedBatch, ...]) -> tuple[DataFile, ...]:
        # A batch without files shows nothing wrongly; those of merges have a column more than their target.
        with_files = [batch for batch in todo if batch.data_files > 0]
        refuse_unfit_schema(with_files, staging=self.staging, target=target)
        if self._staged is None:  # another attempt has the same batches to publish, or fewer
            self._staged = staged_files(self.staging, todo)
        files = [file for batch in todo for file in self._staged[batch.snapshot_id]]
        fitted = fit_files(files, staging=self.staging, target=target)
        self.todo = todo
        if not self.merge_small:
            return fitted
        shape = (target.metadata.default_spec_id, target.metadata.current_schema_id, len(todo))
        if self._merged_for != shape:
            self.merged, self._merged_for = merge_small_files(target, fitted), shape
        return self.merged.files
