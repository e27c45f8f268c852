"""Puts the small files of a table together without Spark: PyArrow reads and writes, Sluice's own committer commits.

    plan the scan ─► per partition: read, sort, write one file, read it back, compare ─► one commit `replace`

The commit is made on metadata that was just loaded, like every other one. A group of files is left out of it when a
writer came first: one of its files is not live any more, or a delete file was added since that may hide rows of it. A
row that another writer has deleted meanwhile would come back otherwise, because the rewritten file does not have the
name that a position delete refers to. The writer is never made to wait, and keeps what it wrote.

A crash before the commit leaves files that no table refers to. `sluice table remove-orphans` finds them by the folder
of the rewrite.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from sluice.errors import LakehouseError, StarvedError
from sluice.publication.checked_commit import (
    Landed,
    NothingToCommit,
    RacePolicy,
    TableChange,
    TableCommitter,
    commit_checked,
)
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.data_files import Writer, WriterKind
from sluice.publication.file_preparation import merge_files, read_files
from sluice.tables.catalog import catalog_refusals
from sluice.tables.inspection import rewrite_limits
from sluice.tables.manifest_reading import path_of

_log = logging.getLogger(__name__)


_RACES = RacePolicy(attempts=20)
"""How often the commit is sent again while writers commit; then the work itself is repeated."""


class CommitConflictError(LakehouseError):
    """Another writer committed to the table first. The same work is tried again, and the error goes no further."""


class RewriteDiffersError(LakehouseError):
    """A rewritten file does not hold the rows of the files that it is to replace. Nothing was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenGroup:
    """Some files of one partition, and the one that holds their rows.

    deletes: the delete files that apply to them.
    is_compared: whether the new file was read again; its rows are counted in any case.
    """

    old: tuple[DataFile, ...]
    deletes: frozenset[str]
    new: tuple[DataFile, ...]
    is_compared: bool


@dataclass(slots=True, kw_only=True)
class _Outcome:
    """What is known of the groups at the newest attempt to commit.

    sent: the new files that were part of a commit that was sent, whatever its answer: they are never
        deleted here, because the commit may have landed.
    seen: the live files of manifests that were read, by their path, as far as they count here: manifests never change.
    """

    replaced: tuple[RewrittenGroup, ...] = ()
    lost: tuple[RewrittenGroup, ...] = ()
    sent: set[str] = field(default_factory=set)
    seen: dict[str, list[DataFile]] = field(default_factory=dict)

    def weigh(self, groups: Sequence[RewrittenGroup], table: Table, planned: Table) -> None:
        """Decide what can be replaced in a table that was just loaded."""
        is_won = _won(table, planned, groups, self.seen)
        self.replaced = tuple(group for group in groups if is_won(group))
        self.lost = tuple(group for group in groups if not is_won(group))
        self.sent |= {file.file_path for group in self.replaced for file in group.new}


def rewrite_small_files(
    committer: TableCommitter,
    name: str,
    *,
    partitions: Collection[str],
    small_file_bytes: int,
    compared_bytes: int,
    now: datetime,
    identity: str,
    reached: Reached = unnoticed,
) -> Mapping[str, Any]:
    """Put the small files of some partitions together, and commit that.

    Parameters
    ----------
    name: `<namespace>.<table>`. The table must have no `inspection.rewrite_limits`.
    partitions: as paths.
    compared_bytes: up to so many bytes of rewritten files are read again and compared with their rows; of the others
        the rows are counted.
    now: the time, before anything is written.
    identity: of this rewrite, as its event has it.

    Returns
    -------
    The figures by the names of Spark's procedure, with how many groups were verified and whether all were compared.
    `failed_data_files_count`: the files that stay because a writer came first.

    Raises
    ------
    CommitConflictError: when writers came first in every group, or won every race of the commit.
    RewriteDiffersError: when the rows of a new file are not those of the old ones.
    LakehouseError: when the table, the catalog or the object store cannot be used.
    """
    table = committer.load(name)
    writer = Writer(kind=WriterKind.REWRITE, identity=identity)
    with catalog_refusals(f"rewrite files of {name}"):
        groups = list(_groups(table, partitions, small_file_bytes))
        rewritten = tuple(_rewritten(table, groups, compared_bytes, writer))
    reached(CrashPoint.COMPUTED)
    outcome = _commit(committer, table, name, rewritten, now=now, reached=reached)
    return {
        "rewritten_data_files_count": sum(len(group.old) for group in outcome.replaced),
        "added_data_files_count": sum(len(group.new) for group in outcome.replaced),
        "rewritten_bytes_count": sum(file.file_size_in_bytes for group in outcome.replaced for file in group.old),
        "failed_data_files_count": sum(len(group.old) for group in outcome.lost),
        "rewrites_verified": len(outcome.replaced),
        "rows_hashed": all(group.is_compared for group in outcome.replaced),
    }


def _groups(table: Table, partitions: Collection[str], small_file_bytes: int) -> Iterator[list[FileScanTask]]:
    """The small files of each partition, as many together as make a file that is not small any more.

    So every partition of several small files has fewer afterwards, and the planner does not find the same ones again:
    five files of 0.7 of the target size each fit into no file of that size with another. Partitions are distinguished
    by their values: a null and the text `null` have the same path.
    """
    spec, schema = table.spec(), table.schema()
    small: dict[Record, list[FileScanTask]] = defaultdict(list)
    try:
        tasks = list(table.scan().plan_files())
    except ValueError as error:  # pyiceberg plans no equality deletes; the table had none when it was observed
        raise CommitConflictError(str(error)) from error
    for task in tasks:
        if task.file.spec_id == spec.spec_id and task.file.file_size_in_bytes < small_file_bytes:
            small[task.file.partition].append(task)
    chosen = set(partitions)
    for partition, found in small.items():
        if path_of(spec, partition, schema) in chosen:
            yield from (group for group in _packed(found, small_file_bytes) if len(group) > 1)


def _packed(tasks: Sequence[FileScanTask], small_file_bytes: int) -> Iterator[list[FileScanTask]]:
    group: list[FileScanTask] = []
    size = 0
    for task in tasks:
        group.append(task)
        size += task.file.file_size_in_bytes
        if size >= small_file_bytes:
            yield group
            group, size = [], 0
    yield group


def _rewritten(
    table: Table, groups: Sequence[Sequence[FileScanTask]], compared_bytes: int, writer: Writer
) -> Iterator[RewrittenGroup]:
    left = compared_bytes
    for group in groups:
        rows, new = merge_files(table, group, writer=writer)
        _require_all_rows(table, group, rows, new)
        weight = sum(file.file_size_in_bytes for file in new)
        is_compared = weight <= left
        if is_compared:
            left -= weight
            found = read_files(table, [FileScanTask(file) for file in new])
            if not _are_equal(rows, found):
                raise _differs(table, new, "their rows are others than those of the files that they replace")
        old = tuple(task.file for task in group)
        deletes = frozenset(file.file_path for task in group for file in task.delete_files)
        yield RewrittenGroup(old=old, deletes=deletes, new=new, is_compared=is_compared)


def _require_all_rows(table: Table, group: Sequence[FileScanTask], rows: pa.Table, new: Sequence[DataFile]) -> None:
    """Compare what the manifests, the rows that were read, and the footer of the new file say."""
    listed = sum(task.file.record_count for task in group)
    has_deletes = any(task.delete_files for task in group)
    if rows.num_rows > listed or (rows.num_rows < listed and not has_deletes):
        raise _differs(table, new, f"{rows.num_rows} rows were read, and the manifests list {listed}")
    if (written := sum(file.record_count for file in new)) != rows.num_rows:
        raise _differs(table, new, f"{rows.num_rows} rows were read, and {written} written")
    if any(file.partition != group[0].file.partition for file in new) or len(new) > 1:
        raise _differs(table, new, "their rows belong to another partition than the files that they replace")


def _differs(table: Table, new: Sequence[DataFile], why: str) -> RewriteDiffersError:
    paths = ", ".join(file.file_path for file in new)
    return RewriteDiffersError(
        f"The rewritten files {paths} of {'.'.join(table.name())} are wrong: {why}. Nothing was committed.",
        next_step="Keep the files named here and report the fault; the table is as it was.",
    )


def _are_equal(rows: pa.Table, found: pa.Table) -> bool:
    """Whether two tables hold the same rows in the same order; NaN equals NaN."""
    if rows.num_rows != found.num_rows or rows.column_names != found.column_names:
        return False
    return all(
        one.equals(other) or _texts_of(one) == _texts_of(other)
        for one, other in zip(rows.columns, found.cast(rows.schema).columns, strict=True)
    )


def _texts_of(column: pa.ChunkedArray[Any]) -> list[str]:
    """The values as texts, in which NaN equals NaN. Slow, and asked only of columns that PyArrow finds unequal."""
    return [repr(value) for value in column.to_pylist()]


def _commit(
    committer: TableCommitter,
    planned: Table,
    name: str,
    groups: Sequence[RewrittenGroup],
    *,
    now: datetime,
    reached: Reached,
) -> _Outcome:
    outcome = _Outcome()

    def plan(table: Table) -> TableChange | NothingToCommit:
        outcome.weigh(groups, table, planned)
        if not outcome.replaced:
            return NothingToCommit(snapshot_id=None)
        return TableChange(
            operation=Operation.REPLACE,
            added=tuple(file for group in outcome.replaced for file in group.new),
            removed=tuple(file for group in outcome.replaced for file in group.old),
            summary={},
            added_at=now,
        )

    what = f"the rewritten files of {name}"
    try:
        done = commit_checked(committer, name, plan, what=what, reached=reached, policy=_RACES)
    except StarvedError as error:
        raise CommitConflictError(str(error)) from error
    _discard(planned, outcome)
    if groups and not isinstance(done, Landed):
        raise CommitConflictError(f"writers changed what was rewritten: {len(groups)} groups of files")
    return outcome


def _won(
    table: Table, planned: Table, groups: Sequence[RewrittenGroup], seen: dict[str, list[DataFile]]
) -> Callable[[RewrittenGroup], bool]:
    """Whether a group can be replaced in a table that was just loaded.

    Its files are live; every delete file that was applied to them is, too, because a rollback removes some; and no
    other one is there that may apply to them.
    """
    newest = table.current_snapshot()
    if newest is None or any(rewrite_limits(table.metadata)):
        return lambda _: False
    if newest.snapshot_id == planned.metadata.current_snapshot_id:
        return lambda _: True
    ours = {file.file_path for group in groups for file in group.old}
    known = {file.file_path for file in _live(planned, ours, seen) if file.content != DataFileContent.DATA}
    found = _live(table, ours, seen)
    unknown = [file for file in found if file.content != DataFileContent.DATA and file.file_path not in known]
    live = {file.file_path for file in found}

    def is_won(group: RewrittenGroup) -> bool:
        needed = group.deletes.union(file.file_path for file in group.old)
        return needed <= live and not any(_may_apply(file, group.old[0]) for file in unknown)

    return is_won


def _live(table: Table, ours: Collection[str], seen: dict[str, list[DataFile]]) -> list[DataFile]:
    """The live delete files of a table, and those of our data files that are live."""
    newest = table.current_snapshot()
    found: list[DataFile] = []
    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        for manifest in newest.manifests(table.io) if newest is not None else ():
            if manifest.manifest_path not in seen:
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                seen[manifest.manifest_path] = [
                    entry.data_file
                    for entry in entries
                    if entry.data_file.content != DataFileContent.DATA or entry.data_file.file_path in ours
                ]
            found += seen[manifest.manifest_path]
    return found


def _may_apply(delete: DataFile, file: DataFile) -> bool:
    """Whether a delete file may hide rows of a file: one of another partition of the same spec does not."""
    return delete.spec_id != file.spec_id or delete.partition == file.partition


def _discard(table: Table, outcome: _Outcome) -> None:
    """Delete the files that were written for groups that no commit contained."""
    for file in (file for group in outcome.lost for file in group.new if file.file_path not in outcome.sent):
        try:
            table.io.delete(file.file_path)
        except OSError as error:  # it is an orphan then
            _log.warning("%s was not deleted: %s", file.file_path, error)
