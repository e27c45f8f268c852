"""Exchanges the whole content of a table and the generation of its stream's mark, in one commit.

The commit removes every live file of the table, adds the new ones, sets the mark of the new generation and, for a
refresh, a tag on the head that it replaces. It asserts that head, so that rows that others add meanwhile make it plan
again. It is an overwrite, whatever it removes: streams that read the appended rows must not take these for new ones.

A process may die between the commit and its record: `settle_refresh` completes that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from sluice.errors import UnpublishableError
from sluice.ledger.refreshes import RefreshObservation
from sluice.publication.chain import MarkPosition, refuse_stale_token
from sluice.publication.checked_commit import HeadTag, NothingToCommit, TableChange, commit_checked, snapshot_of
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.mark_moves import MarkMove, summary_of_move
from sluice.publication.marks import read_target_state
from sluice.publication.publish_batches import live_files
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staged_batch import StagedOutput
from sluice.refresh.observe_refresh import delete_files_of
from sluice.stored_keys import PUBLICATION_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class NewContent:
    """What a table is to hold from one commit on.

    files_for: the files for the target, as it is loaded for an attempt.
    key: the publication key. mark: the first one of the new generation.
    follows: the generation and the batch at which the mark must stand before.
    tag: keeps the earlier content; unset for none.
    way_out: what a person can do when a file of the new content is gone.
    """

    output: StagedOutput
    files_for: Callable[[Table], Sequence[DataFile]]
    key: str
    mark: MarkPosition
    follows: tuple[int, int] | None
    tag: HeadTag | None = None
    way_out: str = ""


def swap_key(refresh: RefreshObservation) -> str:
    """The publication key of the commits that bring the new content."""
    return f"{refresh.stream}/refresh/{refresh.label}"


def swap_content(catalog: Catalog, content: NewContent, *, reached: Reached = unnoticed) -> int:
    """Exchange the content, unless the mark is in the new generation already.

    Parameters
    ----------
    reached: called with `CHECKED` before each commit is sent.

    Returns
    -------
    The snapshot that made the new content visible.

    Raises
    ------
    StaleTokenError: when a newer run has taken the stream over.
    UnpublishableError: when the stream has published meanwhile, or the table has delete files.
    StagedFilesMissingError: when a file of the new content is gone.
    DeliveryError, LakehouseError: as `commit_checked` raises them.
    """
    output = content.output

    def plan(target: Table) -> TableChange | NothingToCommit:
        state = read_target_state(target, output)
        at = state.position(output)
        if at.generation == content.mark.generation:
            return NothingToCommit(snapshot_id=state.published_by)
        refuse_stale_token(at, content.mark.token, target=output.target)
        _refuse_published(at, content)
        if delete_files_of(target):
            raise UnpublishableError(
                f"{output.target} has delete files, and its content is exchanged by its data files.",
                next_step=f"Compact it first: `sluice table maintain {output.target}`.",
            )
        return TableChange(
            operation=Operation.OVERWRITE,
            removed=tuple(live_files(target)),
            added=tuple(content.files_for(target)),
            summary={PUBLICATION_KEY: content.key, **summary_of_move(output, content.mark, MarkMove.SWAPPED)},
            output=output,
            mark=content.mark,
            tag=content.tag,
            way_out=content.way_out,
        )

    what = f"{content.key} into {output.target}"
    committer = PyIcebergCommitter(catalog)
    landed = commit_checked(committer, output.target, plan, what=what, reached=reached)
    return snapshot_of(landed, what=what)


def _refuse_published(at: MarkPosition, content: NewContent) -> None:
    if content.follows is not None and (at.generation, at.batch) != content.follows:
        raise UnpublishableError(
            f"{content.output.target}: batch {at.generation}:{at.batch} became visible after batch "
            f"{content.follows[0]}:{content.follows[1]}, on which the exchange was planned.",
            next_step="Repeat the command.",
        )


def rows_at(table: Table, snapshot_id: int) -> int:
    """The rows of a snapshot as its summary counts them; 0 when it is not listed any more."""
    snapshot = table.snapshot_by_id(snapshot_id)
    summary = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary is not None else {}
    return int(summary.get("total-records", 0))
