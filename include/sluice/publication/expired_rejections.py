"""Removes rejected rows that are kept no longer, in one commit that leaves the marks of streams alone.

The files that hold such rows are exchanged for files without them. The commit is an overwrite, as that which marks rows
as resolved. A row that a replay has claimed stays until it is resolved, however old it is; and an open one of a batch
that waited, held or staged, until that is visible for so long: before, it could not be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysFalse, And, BooleanExpression, IsNull, LessThan, NotNull, Or
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation

from sluice.declarations.stream_declaration import QuarantineRetention
from sluice.publication.checked_commit import NothingToCommit, TableChange, commit_checked
from sluice.publication.crash_points import CrashPoint
from sluice.publication.file_preparation import read_files, write_files
from sluice.publication.marks import refuse_unpublishable
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.resolved_rejections import refuse_delete_files, require_resolution
from sluice.stored_keys import PUBLICATION_KEY
from sluice.tables.catalog import catalog_refusals

_TIMES = ["resolution", "resolved_at", "resolved_by", "refused_at", "generation", "batch"]

Arrived = Callable[[Collection[tuple[int, int]], datetime], Collection[tuple[int, int]]]
"""Takes batches, as generation and number, and a time; gives those that became visible only then, or later."""


def remove_expired(
    catalog: Catalog,
    quarantine: str,
    retention: QuarantineRetention,
    *,
    stream: str,
    now: datetime,
    arrived: Arrived,
    before_commit: Callable[[int], object],
) -> int:
    """Remove the rows that are kept no longer.

    Parameters
    ----------
    quarantine: `<namespace>.<table>`. stream: whose quarantine it is.
    arrived: which batches became visible late.
    before_commit: is called with the number of rows before they are removed; once more after each conflict.

    Returns
    -------
    How many rows were removed.

    Raises
    ------
    UnpublishableError: when the table has no column yet for what is resolved, or has delete files.
    DeliveryError, LakehouseError: as `commit_checked` raises them.
    """
    removal = _Removal(stream=stream, retention=retention, now=now, arrived=arrived)

    def reached(_: CrashPoint) -> None:
        before_commit(removal.rows)

    committer, what = PyIcebergCommitter(catalog), f"the removal of expired rows from {quarantine}"
    landed = commit_checked(committer, quarantine, removal.plan, what=what, reached=reached)
    return 0 if isinstance(landed, NothingToCommit) else removal.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The files in the place of one, and how many of its rows they leave out."""

    files: tuple[DataFile, ...]
    removed: int


@dataclass(slots=True, kw_only=True)
class _Removal:
    """The removal of one call.

    rows: how many the newest attempt removes. written: by the path of the file they replace; an attempt after a
        conflict uses them again, because a file never changes.
    """

    stream: str
    retention: QuarantineRetention
    now: datetime
    arrived: Arrived
    rows: int = 0
    written: dict[str, _Kept] = field(default_factory=dict)

    def plan(self, table: Table) -> TableChange | NothingToCommit:
        """The exchange of the files that hold such rows."""
        refuse_unpublishable(table)
        require_resolution(table)
        with catalog_refusals(f"read and write the rows of {'.'.join(table.name())}"):
            tasks = list(table.scan(row_filter=self._is_expired()).plan_files())
            refuse_delete_files(table, tasks)
            for task in tasks:
                if task.file.file_path not in self.written:
                    self.written[task.file.file_path] = self._write(table, task)
        removed = tuple(task.file for task in tasks if self.written[task.file.file_path].removed)
        self.rows = sum(self.written[file.file_path].removed for file in removed)
        if not removed:
            return NothingToCommit(snapshot_id=None)
        return TableChange(
            operation=Operation.OVERWRITE,
            removed=removed,
            added=tuple(added for file in removed for added in self.written[file.file_path].files),
            summary={PUBLICATION_KEY: f"{self.stream}/expired"},
        )

    def _is_expired(self) -> BooleanExpression:
        found: BooleanExpression = AlwaysFalse()
        if self.retention.resolved is not None:
            before = (self.now - self.retention.resolved).isoformat()
            found = Or(found, And(NotNull(term="resolution"), LessThan(term="resolved_at", value=before)))
        if self.retention.open is not None:
            before = (self.now - self.retention.open).isoformat()
            is_unclaimed = And(IsNull(term="resolution"), IsNull(term="resolved_by"))
            found = Or(found, And(is_unclaimed, LessThan(term="refused_at", value=before)))
        return found

    def _write(self, table: Table, task: FileScanTask) -> _Kept:
        rows = read_files(table, [FileScanTask(task.file)])
        known = rows.select(_TIMES).to_pylist()
        young = self._arrived_late(known)
        kept = rows.filter(pa.array([self._is_of(young, row) or not self._is_kept_no_longer(row) for row in known]))
        removed = rows.num_rows - kept.num_rows
        if not removed or not kept.num_rows:
            return _Kept(files=(), removed=removed)
        return _Kept(files=tuple(write_files(table.metadata, table.io, kept)), removed=removed)

    def _arrived_late(self, rows: Sequence[Mapping[str, Any]]) -> Collection[tuple[int, int]]:
        """The batches of open rows that are too old, and that became visible later than these were rejected."""
        if self.retention.open is None:
            return ()
        old = {_batch_of(row) for row in rows if row["resolution"] is None and self._is_kept_no_longer(row)}
        return self.arrived(old, self.now - self.retention.open) if old else ()

    @staticmethod
    def _is_of(young: Collection[tuple[int, int]], row: Mapping[str, Any]) -> bool:
        return row["resolution"] is None and _batch_of(row) in young

    def _is_kept_no_longer(self, row: Mapping[str, Any]) -> bool:
        """As `_is_expired` says it of files."""
        if row["resolution"] is not None:
            return _is_before(row["resolved_at"], self.now, self.retention.resolved)
        return row["resolved_by"] is None and _is_before(row["refused_at"], self.now, self.retention.open)


def _batch_of(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["generation"], row["batch"]


def _is_before(at: datetime | None, now: datetime, kept: timedelta | None) -> bool:
    """Whether something is longer ago than it is kept; what is not known, or kept for ever, is not."""
    return at is not None and kept is not None and at < now - kept
