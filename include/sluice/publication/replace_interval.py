"""Replaces an interval of a table in one commit that leaves the marks of streams alone: for backfills.

The files of the interval are exchanged for staged ones. Rows of other intervals in the same files are staged with the
new ones, so that an interval may begin and end within files. The commit is an overwrite, also when nothing is removed:
streams that read the rows appended to the table must not take the rows of a backfill for new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from sluice.errors import IntervalChangedError
from sluice.publication.checked_commit import DEFAULT_POLICY, Landed, NothingToCommit, RacePolicy, commit_checked
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.file_preparation import fit_files
from sluice.publication.interval_files import IntervalOfTable, TouchedFiles, change_since, foreign_change_since
from sluice.publication.marks import refuse_unpublishable
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staged_batch import StagedOutput
from sluice.publication.table_committer import TableChange
from sluice.stored_keys import PUBLICATION_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalReplacement:
    """The exchange of an interval's files.

    key: the publication key, `<stream>/<lane>/<interval>/<attempt>`; no other attempt has it.
    head: the snapshot of the target on which it was planned; none when the table was empty.
    touched: the files of the interval at that snapshot, which go. staged: the files that come.
    summary: further entries of the snapshot's summary.
    replaces_rows: whether batches of the stream replace rows; what it publishes meanwhile is then a change like any
        other.
    """

    output: StagedOutput
    key: str
    interval: IntervalOfTable
    head: int | None
    touched: TouchedFiles
    staging: Table
    staged: Sequence[DataFile]
    summary: Mapping[str, str]
    replaces_rows: bool = False


def replace_interval(
    catalog: Catalog,
    replacement: IntervalReplacement,
    *,
    reached: Reached = unnoticed,
    policy: RacePolicy = DEFAULT_POLICY,
) -> int:
    """Exchange the files of an interval in one commit, unless the interval has changed since the plan.

    Returns
    -------
    The snapshot that made the new rows visible.

    Raises
    ------
    IntervalChangedError: when somebody else has changed the interval since; the table is unchanged.
    DeliveryError, LakehouseError: as `commit_checked` raises them.
    """
    output, summary = replacement.output, {PUBLICATION_KEY: replacement.key, **replacement.summary}

    def plan(target: Table) -> TableChange | NothingToCommit:
        refuse_unpublishable(target)
        if (landed := published_by(target, replacement.key)) is not None:
            return NothingToCommit(snapshot_id=landed)
        changed = change_since(
            target,
            head=replacement.head,
            touched=replacement.touched,
            interval=replacement.interval,
            own=None if replacement.replaces_rows else output,
        )
        if changed is not None:
            raise IntervalChangedError(f"{output.target}: the interval changed while it was computed: {changed}.")
        return TableChange(
            operation=Operation.OVERWRITE,
            removed=replacement.touched.files,
            added=fit_files(replacement.staged, staging=replacement.staging, target=target),
            summary=summary,
        )

    committer, what = PyIcebergCommitter(catalog), f"{replacement.key} into {output.target}"
    return _snapshot_of(commit_checked(committer, output.target, plan, what=what, reached=reached, policy=policy))


def append_staged(
    catalog: Catalog,
    output: StagedOutput,
    *,
    key: str,
    head: int | None,
    staging: Table,
    staged: Sequence[DataFile],
    summary: Mapping[str, str],
    policy: RacePolicy = DEFAULT_POLICY,
) -> int:
    """Add staged files to a table in one commit that leaves the marks alone; a commit of the same key is not repeated.

    Parameters
    ----------
    head: the snapshot that was read to see what the table does not hold yet.

    Raises
    ------
    IntervalChangedError: when another writer than the stream itself has added rows since.
    DeliveryError, LakehouseError: as `commit_checked` raises them.
    """

    def plan(target: Table) -> TableChange | NothingToCommit:
        refuse_unpublishable(target)
        if (landed := published_by(target, key)) is not None:
            return NothingToCommit(snapshot_id=landed)
        if (foreign := foreign_change_since(target, head=head, own=output)) is not None:
            raise IntervalChangedError(f"{output.target} changed while its rows were compared: {foreign}.")
        return TableChange(
            operation=Operation.APPEND,
            added=fit_files(staged, staging=staging, target=target),
            summary={PUBLICATION_KEY: key, **summary},
        )

    what = f"{key} into {output.target}"
    return _snapshot_of(commit_checked(PyIcebergCommitter(catalog), output.target, plan, what=what, policy=policy))


def published_by(table: Table, key: str) -> int | None:
    """The snapshot of main's history that carries a publication key; none when it lists none."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        if snapshot.summary is not None and snapshot.summary.additional_properties.get(PUBLICATION_KEY) == key:
            return snapshot.snapshot_id
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    return None


def _snapshot_of(landed: Landed | NothingToCommit) -> int:
    return landed.snapshot_id or 0
