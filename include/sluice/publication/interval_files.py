"""The files of an interval of a table, what has changed them, and the commits of backfills, which leave marks alone.

The files of the interval are exchanged for staged ones. Rows of other intervals in the same files are staged with the
new ones, so that an interval may begin and end within files. The commit is an overwrite, also when nothing is removed:
streams that read the rows appended to the table must not take the rows of a backfill for new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import DateType, PrimitiveType, TimestampType

from sluice.errors import IntervalChangedError, UnpublishableError
from sluice.publication.checked_commit import TableChange, commit_checked, snapshot_of
from sluice.publication.file_preparation import fit_files, refuse_unfit_rows
from sluice.publication.marks import refuse_unpublishable
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staged_batch import StagedOutput, read_summary
from sluice.stored_keys import PUBLICATION_KEY
from sluice.tables.catalog import catalog_refusals

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalOfTable:
    """The rows of a table whose `column` lies from `start` up to and without `end`, both in UTC."""

    column: str
    start: datetime
    end: datetime

    def condition(self, table: Table) -> BooleanExpression:
        """The rows as an expression of Iceberg. The column is a date, timestamp or timestamptz."""
        kind = table.schema().find_type(self.column)
        start, end = (_literal(time, kind) for time in (self.start, self.end))
        return And(GreaterThanOrEqual(term=self.column, value=start), LessThan(term=self.column, value=end))

    def numbers(self, table: Table) -> tuple[int, int]:
        """Start and end as Iceberg stores such values: days or microseconds since 1970. An end within a day counts as
        the day after it."""
        unit = timedelta(days=1) if isinstance(table.schema().find_type(self.column), DateType) else _MICROSECOND
        return (self.start - _EPOCH) // unit, -((_EPOCH - self.end) // unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedFiles:
    """The files that may hold rows of an interval. whole: with all of their rows in it, as their bounds show.
    partial: with rows that may lie in other intervals, so that those have to be written again."""

    whole: tuple[DataFile, ...]
    partial: tuple[DataFile, ...]

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All of them."""
        return (*self.whole, *self.partial)

    @property
    def rows(self) -> int:
        """The rows of all of them, as their entries count them."""
        return sum(file.record_count for file in self.files)


def touched_files(table: Table, interval: IntervalOfTable) -> TouchedFiles:
    """The files of the newest snapshot of a loaded table that may hold rows of an interval.

    Raises
    ------
    UnpublishableError: when such a file has delete files: its rows are not all that it holds.
    LakehouseError: when the manifests cannot be read.
    """
    if table.current_snapshot() is None:
        return TouchedFiles(whole=(), partial=())
    condition = interval.condition(table)
    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        tasks = list(table.scan(row_filter=condition).plan_files())
    if any(task.delete_files for task in tasks):
        raise UnpublishableError(
            f"{'.'.join(table.name())} has delete files in this interval, so its files hold rows that are deleted.",
            next_step=f"Compact the table first: `sluice table maintain {'.'.join(table.name())}`.",
        )
    whole = {task.file.file_path for task in tasks if is_whole(table, interval, task.file)}
    return TouchedFiles(
        whole=tuple(task.file for task in tasks if task.file.file_path in whole),
        partial=tuple(task.file for task in tasks if task.file.file_path not in whole),
    )


def value_bounds(table: Table, column: str, files: Sequence[DataFile]) -> tuple[int, int] | None:
    """The lowest and the highest value of a column in some files: days or microseconds since 1970, as Iceberg has it.

    Returns
    -------
    None when a file does not have the bounds, or there is no file.
    """
    field = table.schema().find_field(column)
    assert isinstance(field.field_type, PrimitiveType)  # noqa: S101  # a date or a timestamp, as validated
    lowest = [(file.lower_bounds or {}).get(field.field_id) for file in files]
    highest = [(file.upper_bounds or {}).get(field.field_id) for file in files]
    if not files or None in lowest or None in highest:
        return None
    low = [int(from_bytes(field.field_type, found)) for found in lowest if found is not None]
    high = [int(from_bytes(field.field_type, found)) for found in highest if found is not None]
    return min(low), max(high)


def change_since(
    table: Table, *, head: int | None, touched: TouchedFiles, interval: IntervalOfTable, own: StagedOutput | None
) -> str | None:
    """What has changed an interval since a snapshot, in a sentence; none when nothing has that matters.

    What the stream itself has appended since does not matter: those rows come from records behind the position that the
    backfill has read up to, and they stay. That is not true of merged rows: their keys may be among the replaced ones.

    Parameters
    ----------
    table: freshly loaded. head: the snapshot on which the backfill was planned; none when the table was empty.
    touched: the files of the interval at that snapshot. own: the output whose appended batches may stay;
        none for a merged one.
    """
    live = {file.file_path: file for file in touched_files(table, interval).files}
    planned = {file.file_path for file in touched.files}
    if gone := planned - live.keys():
        return f"{len(gone)} of its files were removed or rewritten"
    if live.keys() == planned:
        return None
    for snapshot in _since(table, head):
        if snapshot is None:
            return "the history of the table does not lead back to the snapshot on which it was planned"
        if not _may_stay(snapshot, own) and _adds_rows(table, snapshot, interval):
            return f"snapshot {snapshot.snapshot_id} added rows to it"
    return None


def foreign_change_since(table: Table, *, head: int | None, own: StagedOutput) -> str | None:
    """What others than a stream have changed in a table since a snapshot, in a sentence; none when nothing."""
    for snapshot in _since(table, head):
        if snapshot is None:
            return "its history does not lead back to that snapshot"
        if not _may_stay(snapshot, own) and not _is_empty_append(table, snapshot):
            return f"snapshot {snapshot.snapshot_id} is another writer's"
    return None


def _since(table: Table, head: int | None) -> Iterator[Snapshot | None]:
    """The snapshots after `head`, newest first; none as the last one when the history does not lead back to it."""
    snapshot = table.current_snapshot()
    while snapshot is not None and snapshot.snapshot_id != head:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        if parent is None:
            if head is not None:
                yield None
            return
        snapshot = table.snapshot_by_id(parent)
        if snapshot is None:
            yield None


def _may_stay(snapshot: Snapshot, own: StagedOutput | None) -> bool:
    summary = snapshot.summary
    if summary is None or summary.operation is not Operation.APPEND:
        return summary is not None and summary.operation is Operation.REPLACE
    batch = read_summary(summary.additional_properties)
    return batch is not None and own is not None and (batch.key.stream, batch.output) == (own.stream, own.output)


def _is_empty_append(table: Table, snapshot: Snapshot) -> bool:
    """Whether a snapshot appends no file, as when a mark has moved. A summary need not say how many rows it adds."""
    is_append = snapshot.summary is not None and snapshot.summary.operation is Operation.APPEND
    return is_append and not _adds_rows(table, snapshot)


def _adds_rows(table: Table, snapshot: Snapshot, interval: IntervalOfTable | None = None) -> bool:
    """Whether a snapshot adds files that may hold rows of an interval; without one, of any."""
    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        return any(
            interval is None or may_hold(table, interval, entry.data_file)
            for manifest in snapshot.manifests(table.io)
            if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id
            for entry in manifest.fetch_manifest_entry(table.io)
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
        )


def is_whole(table: Table, interval: IntervalOfTable, file: DataFile) -> bool:
    """Whether all rows of a file lie in an interval."""
    field_id = table.schema().find_field(interval.column).field_id
    bounds = value_bounds(table, interval.column, [file])
    if bounds is None or (file.null_value_counts or {}).get(field_id) != 0:
        return False
    start, end = interval.numbers(table)
    return start <= bounds[0] and bounds[1] < end


def may_hold(table: Table, interval: IntervalOfTable, file: DataFile) -> bool:
    """Whether a row of a file may lie in an interval; a file without bounds may hold any."""
    bounds = value_bounds(table, interval.column, [file])
    start, end = interval.numbers(table)
    return bounds is None or (bounds[0] < end and bounds[1] >= start)


def _literal(time: datetime, kind: object) -> str:
    if isinstance(kind, DateType):
        return time.date().isoformat()
    return time.replace(tzinfo=None).isoformat() if isinstance(kind, TimestampType) else time.isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalReplacement:
    """The exchange of an interval's files, unless the interval or an input has changed since the plan of the backfill.

    key: the publication key, for the summary. No commit is recognised by it: what another call has published, under
        whatever key, is a change like any other.
    head: the snapshot of the target on which it was planned; none when the table was empty.
    touched: the files of the interval at that snapshot, which go. staged: the files that come.
    summary: further entries of the snapshot's summary.
    changed_inputs: what has changed the inputs since they were read, in a sentence; none when nothing has. Asked before
        each commit.
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
    changed_inputs: Callable[[], str | None]
    replaces_rows: bool = False

    def plan(self, target: Table) -> TableChange:
        """The one commit that exchanges them, for `commit_checked`.

        Raises
        ------
        IntervalChangedError: when somebody else has changed the interval or an input since.
        """
        refuse_unpublishable(target)
        refuse_unfit_rows(self.staging.schema(), target=target, what=self.key)
        own = None if self.replaces_rows else self.output
        changed = change_since(target, head=self.head, touched=self.touched, interval=self.interval, own=own)
        if changed is not None:
            raise IntervalChangedError(f"{self.output.target}: the interval changed while it was computed: {changed}.")
        if (corrected := self.changed_inputs()) is not None:
            raise IntervalChangedError(
                f"{self.output.target}: an input changed while the interval was computed: {corrected}."
            )
        return TableChange(
            operation=Operation.OVERWRITE,
            removed=self.touched.files,
            added=fit_files(self.staged, staging=self.staging, target=target),
            summary={PUBLICATION_KEY: self.key, **self.summary},
        )


def append_staged(
    catalog: Catalog,
    output: StagedOutput,
    *,
    key: str,
    head: int | None,
    staging: Table,
    staged: Sequence[DataFile],
    summary: Mapping[str, str],
) -> int:
    """Add staged files to a table in one commit that leaves the marks alone. Only the commits of this call are
    recognised when their answer was lost.

    Parameters
    ----------
    head: the snapshot that was read to see what the table does not hold yet.

    Raises
    ------
    IntervalChangedError: when another writer than the stream itself has added rows since.
    DeliveryError, LakehouseError: as `commit_checked` raises them.
    """

    def plan(target: Table) -> TableChange:
        refuse_unpublishable(target)
        refuse_unfit_rows(staging.schema(), target=target, what=key)
        if (foreign := foreign_change_since(target, head=head, own=output)) is not None:
            raise IntervalChangedError(f"{output.target} changed while its rows were compared: {foreign}.")
        return TableChange(
            operation=Operation.APPEND,
            added=fit_files(staged, staging=staging, target=target),
            summary={PUBLICATION_KEY: key, **summary},
        )

    what = f"{key} into {output.target}"
    return snapshot_of(commit_checked(PyIcebergCommitter(catalog), output.target, plan, what=what), what=what)
