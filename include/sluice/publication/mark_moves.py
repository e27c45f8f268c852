"""Moves the mark of an output without publishing files, always together with main, by an empty append.

A publisher that is between its check and its commit would not notice a mark that another process raises as a bare
property: the catalog compares snapshots and not properties.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from sluice.errors import DivergedError, MarkError
from sluice.publication.chain import (
    BEFORE_THE_FIRST_BATCH,
    AbandonedBatch,
    AbandonReason,
    CheckpointPosition,
    MarkPosition,
    PublicationPlan,
    batches_to_publish,
    plan_publication,
    position_after,
    refuse_stale_token,
)
from sluice.publication.checked_commit import NothingToCommit, TableChange, commit_checked
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.marks import Mark, TargetState, load_target_state, marked_outputs, read_target_state
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staged_batch import StagedBatch, StagedOutput
from sluice.publication.staging_table import clear_staging, load_staging_table, newest_token, staged_batches, torn
from sluice.stored_keys import MARK_MOVE, MARK_POSITION, OUTPUT, STREAM, TOKEN
from sluice.tables.declared_tables import load_table

_log = logging.getLogger(__name__)


class MarkMove(StrEnum):
    """Why a mark moves without rows of a batch.

    OPENED: a generation begins. TAKEN_OVER: a newer run begins; older ones are refused from now on.
    MERGED: Spark's MERGE has made the batch visible. REJECTED: a person decided that the batch is never published.
    RESTORED: the table property was removed and is set again.
    FENCED: on a staging table: batches that older runs stage from now on are not published.
    SWAPPED: the whole content was exchanged, and the generation with it.
    ADOPTED: a person accepted main as it is, after a rollback.
    """

    OPENED = "opened"
    TAKEN_OVER = "taken_over"
    MERGED = "merged"
    REJECTED = "rejected"
    RESTORED = "restored"
    FENCED = "fenced"
    SWAPPED = "swapped"
    ADOPTED = "adopted"


def summary_of_move(output: StagedOutput, position: MarkPosition, why: MarkMove) -> dict[str, str]:
    """What the snapshot says that moves a mark: with it the mark is found when its property was removed."""
    return {
        MARK_MOVE: why.value,
        STREAM: output.stream,
        OUTPUT: output.output,
        TOKEN: str(position.token),
        MARK_POSITION: f"{position.generation}:{position.batch}",
    }


def open_generation(
    catalog: Catalog,
    output: StagedOutput,
    *,
    generation: int,
    token: int,
    batch: int = BEFORE_THE_FIRST_BATCH,
    is_new: bool = False,
    is_reopened: bool = False,
) -> Mark:
    """Set the opening mark of a generation, so that its next batch is `batch + 1`, and take the stream over.

    Every run calls it before its first batch. In a generation that is open already, only the token is raised.
    `leave_generations_before` comes first: it abandons what earlier generations have staged.

    Parameters
    ----------
    batch: what already counts as published: -1 for a generation that starts with batch 0, the newest published batch
        when an older checkpoint is restored. The first batch behind it may begin at any offset. When the output had
        another name before, and was published further under it, that counts.
    is_new: whether the start has found no trace of a mark. Otherwise one that is missing was removed, and opening there
        would count what the checkpoint has committed as published.
    is_reopened: whether the output was not declared for a while, so that the batches up to `batch` were not meant for
        it, in a generation that is open already.

    Raises
    ------
    StaleTokenError: when a newer run has taken over.
    MarkError: when a later generation is open, or the mark was removed.
    """
    opening = MarkPosition(generation=generation, batch=batch, token=token, end_offsets_digest=None)

    def wanted(state: TargetState) -> MarkPosition | None:
        if state.mark is None and is_new:
            return _after_former_name(state, opening, output)
        position = state.position(output)
        refuse_stale_token(position, token, target=output.target)
        if position.generation == generation and is_reopened and position.batch < batch:
            return opening
        if position.generation == generation:
            return replace(position, token=token) if token > position.token else None
        if position.generation > generation:
            raise MarkError(
                f"Generation {generation} of {output} cannot open on {output.target}: {position.generation} is open.",
                next_step=f"`sluice stream repair {output.stream} --dry-run` shows what writes the ledger back.",
            )
        return opening

    mark = move_mark(catalog, output, wanted, why=MarkMove.OPENED, token=token)
    fence_staging(catalog, output, token=token)
    return mark


def _after_former_name(state: TargetState, opening: MarkPosition, output: StagedOutput) -> MarkPosition:
    """The opening mark of an output that has none: a batch that Spark runs again may be visible under a former name."""
    further = former_positions(state.table, output, generation=opening.generation)
    return max((opening, *(replace(at, token=opening.token) for at in further)), key=lambda at: at.batch)


def former_positions(table: Table, output: StagedOutput, *, generation: int) -> Iterator[MarkPosition]:
    """How far a generation is published on a table under the other names of an output.

    Raises
    ------
    DeliveryError: when a mark is not as publication left it.
    """
    for other in marked_outputs(table):
        if other.stream == output.stream and other.output != output.output:
            at = read_target_state(table, other).position(other)
            if at.generation == generation:
                yield at


def take_over(catalog: Catalog, output: StagedOutput, *, token: int) -> Mark:
    """Write a run's token to the mark and to the staging table: older runs publish nothing from then on.

    The mark also moves to the newest batch that a MERGE made visible. A second call of the same run changes nothing.

    Raises
    ------
    StaleTokenError: when a newer run has taken over.
    MarkError: when no generation was opened.
    """

    def wanted(state: TargetState) -> MarkPosition | None:
        position = state.position(output)
        refuse_stale_token(position, token, target=output.target)
        is_settled = token == position.token and state.merged is None
        return None if is_settled else replace(position, token=token)

    mark = move_mark(catalog, output, wanted, why=MarkMove.TAKEN_OVER, token=token)
    fence_staging(catalog, output, token=token)
    return mark


def settle_merge(catalog: Catalog, output: StagedOutput, *, token: int) -> Mark:
    """Move the mark to the newest batch that a MERGE made visible; nothing happens when the mark has it.

    Called after each MERGE. Recovery and expiry call it first: expiry shortens the history that shows the batch.

    Raises
    ------
    StaleTokenError: when a newer run has taken over.
    MarkError: when no generation was opened.
    """

    def wanted(state: TargetState) -> MarkPosition | None:
        position = state.position(output)
        refuse_stale_token(position, token, target=output.target)
        return replace(position, token=token) if state.merged is not None else None

    return move_mark(catalog, output, wanted, why=MarkMove.MERGED, token=token)


def settle_merges_of_table(catalog: Catalog, table: Table) -> tuple[StagedOutput, ...]:
    """Move every mark on a table to the newest batch that a MERGE made visible, before expiry shortens the history.

    No token is needed, because each mark keeps its own.

    Parameters
    ----------
    table: freshly loaded; when a mark was moved, it is not the newest state any more.

    Returns
    -------
    The outputs whose mark was moved.

    Raises
    ------
    DeliveryError: when a mark is invalid; then the table's history is needed to repair it and must stay.
    LakehouseError: when the catalog does not answer.
    """
    outputs = marked_outputs(table)
    behind = tuple(output for output in outputs if read_target_state(table, output).merged is not None)
    for output in behind:
        move_mark(catalog, output, partial(_merged_position, output=output), why=MarkMove.MERGED)
    return behind


def _merged_position(state: TargetState, *, output: StagedOutput) -> MarkPosition | None:
    return state.position(output) if state.merged is not None else None


def reject_batch(
    catalog: Catalog,
    output: StagedOutput,
    batch: StagedBatch,
    *,
    token: int,
    reached: Reached = unnoticed,
) -> Mark:
    """Move the mark past a staged batch that will never be published; the following batch is the next one.

    Raises
    ------
    DeliveryError: as `publish_append` does: only the next batch can be rejected.
    """

    def wanted(state: TargetState) -> MarkPosition | None:
        position = state.position(output)
        admitted = batches_to_publish(position, [batch], token=token, target=output.target)
        return position_after(batch.summary, token=token) if admitted else None

    return move_mark(catalog, output, wanted, why=MarkMove.REJECTED, token=token, reached=reached)


def fence_staging(catalog: Catalog, output: StagedOutput, *, token: int) -> None:
    """Commit an empty snapshot with this token to the staging table: later batches of older runs are not published.

    Raises
    ------
    LakehouseError: when there is no staging table.
    StagingError: when what it refers to is gone, as in a catalog that was set back to before the table was cleared.
    """

    def plan(staging: Table) -> TableChange | NothingToCommit:
        if newest_token(staging) >= token:
            return NothingToCommit(snapshot_id=None)
        summary = {TOKEN: str(token), MARK_MOVE: MarkMove.FENCED.value, STREAM: output.stream, OUTPUT: output.output}
        return TableChange(operation=Operation.APPEND, summary=summary)

    what = f"the token of {output} to {output.staging}"
    try:
        commit_checked(PyIcebergCommitter(catalog), output.staging, plan, what=what)
    except DivergedError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise torn(output.staging, stream=output.stream, error=error.__cause__) from error.__cause__
        raise


def move_mark(
    catalog: Catalog,
    output: StagedOutput,
    wanted: Callable[[TargetState], MarkPosition | None],
    *,
    why: MarkMove,
    token: int | None = None,
    reached: Reached = unnoticed,
) -> Mark:
    """Move a mark by an empty append.

    Parameters
    ----------
    wanted: decides from the loaded target where the mark goes; none when it stays.
    token: of the run that moves it; unset for a move that keeps the mark's own.

    Raises
    ------
    StaleTokenError: when a newer run has taken over.
    DeliveryError, LakehouseError: as `wanted` raises them, or when the mark cannot be set.
    """

    def plan(target: Table) -> TableChange | NothingToCommit:
        state = read_target_state(target, output)
        position = wanted(state)
        if position is None:
            return NothingToCommit(snapshot_id=state.published_by)
        summary = summary_of_move(output, position, why)
        return TableChange(operation=Operation.APPEND, summary=summary, output=output, mark=position)

    what = f"the mark of {output} on {output.target}"
    commit_checked(PyIcebergCommitter(catalog), output.target, plan, what=what, reached=reached)
    mark = load_target_state(catalog, output).mark
    if mark is None:
        raise MarkError(
            f"The mark of {output} is missing on {output.target}.", next_step="Find what removed the table property."
        )
    if token is not None:
        refuse_stale_token(mark.at, token, target=output.target)
    return mark


def plan_output(
    catalog: Catalog, output: StagedOutput, *, checkpoint: CheckpointPosition | None = None
) -> PublicationPlan:
    """Load target and staging table of an output and plan what to do with everything that is staged.

    Parameters
    ----------
    checkpoint: the one that the stream continues from; unset where it is not known.

    Raises
    ------
    DeliveryError: when staging table or mark are not as publication left them.
    LakehouseError: when a table does not exist or cannot be loaded.
    """
    # In this order: what becomes visible and is cleared in between is behind the mark, and no hole in the chain.
    staged = staged_batches(load_staging_table(catalog, output), stream=output.stream, output=output.output)
    position = load_target_state(catalog, output).position(output)
    return plan_publication(position, staged, checkpoint=checkpoint)


def leave_generations_before(
    catalog: Catalog, output: StagedOutput, *, generation: int, token: int
) -> tuple[AbandonedBatch, ...]:
    """Abandon the batches that generations before this one have staged and not published.

    Every run calls it before it opens its generation; nothing happens when that is open already. The older runs are
    fenced off first, so that they neither stage nor publish afterwards. Visible batches stay in the staging table until
    the ledger has them. After a crash in between, a second call completes the work.

    Returns
    -------
    The abandoned batches, each of which was logged.

    Raises
    ------
    StaleTokenError: when a newer run has taken over.
    DeliveryError, LakehouseError: when target or staging table are not as publication left them.
    """
    state = load_target_state(catalog, output)
    if state.mark is None or state.position(output).generation >= generation:
        return ()
    if load_table(catalog, output.staging) is None:  # it was dropped, and its batches with it
        return ()
    take_over(catalog, output, token=token)
    plan = plan_output(catalog, output)
    left = [AbandonedBatch(batch=batch, reason=AbandonReason.LEFT_BEHIND) for batch in plan.ready]
    abandoned = (*left, *plan.abandoned)
    for lost in abandoned:
        _log.warning("%s: staged batch %s is abandoned: %s", output, lost.batch.summary.key, lost.reason)
    visible = [batch.summary.key for batch in plan.published]
    clear_staging(catalog, output, token=token, abandoned=abandoned, unrecorded=visible)
    return abandoned
