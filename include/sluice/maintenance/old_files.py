"""Finds the data files whose rows are all old, by a table's manifests, and removes them in one commit.

The commit is a `delete` snapshot of metadata alone. What it removes is found on exactly the metadata that it changes,
so that a file which somebody has rewritten meanwhile is judged again, and one that is gone is not missed. Streams that
read the table pass the snapshot by `on_delete: skip`, and do not count its rows as skipped: it names itself as a
removal of old rows (`sluice.tables.table_observation`). Marks are properties of the table, and stay.

Delete files that hid rows of a removed file hide nothing any more, and bring nothing back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import LessThan
from pyiceberg.expressions.visitors import inclusive_projection, manifest_evaluator
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import DateType, NestedField, PrimitiveType, TimestampType, TimestamptzType

from sluice.errors import StarvedError, UnpublishableError
from sluice.maintenance.file_rewrite import CommitConflictError
from sluice.maintenance.row_retention import OldFiles
from sluice.publication.checked_commit import (
    Landed,
    NothingToCommit,
    RacePolicy,
    TableChange,
    TableCommitter,
    commit_checked,
)
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.marks import refuse_unpublishable
from sluice.tables.catalog import catalog_refusals
from sluice.tables.manifest_reading import each_manifest, path_of
from sluice.tables.table_observation import RemovedRows, removed_from

MOST_FILES = 10_000
"""How many files one commit removes at most: their entries are held in memory. A further one removes the rest."""

_RACES = RacePolicy(attempts=20)
"""How often the commit is sent again while writers commit; then the whole step is repeated."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFiles:
    """Some old files, at most `MOST_FILES`, and what is seen of them and of the others."""

    seen: OldFiles
    files: tuple[DataFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one manifest lists. old: files that may go, with their partitions as paths, at most `MOST_FILES`.
    counts: the files of each kind, by the names that `OldFiles` has for them."""

    old: tuple[tuple[str, DataFile], ...]
    counts: Counter[str]


def find_old_files(
    table: Table, *, column: str, before: datetime, read_up_to: int | None, arrived_before: datetime | None = None
) -> FoundFiles:
    """Find the files of the newest snapshot whose rows are all old and were read by every stream.

    Only manifests are read that may list such files. A timestamp without a zone is one in UTC. A file without bounds of
    the column, or with a row that has no time, is not old.

    Parameters
    ----------
    table: freshly loaded. before: rows are old whose time is earlier; of a date the whole day has to be.
    read_up_to: the newest sequence number of files that every stream has read; unset where no stream reads the table.
    arrived_before: a file goes only if it was committed before; unset: whenever it was. One whose snapshot is expired
        counts as older.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    old: list[tuple[str, DataFile]] = []
    counts: Counter[str] = Counter()
    for part in _parts(table, column, before, read_up_to, _fresh_snapshots(table, arrived_before)):
        taken = part.old[: MOST_FILES - len(old)]
        old.extend(taken)
        counts.update(part.counts)
        left = part.old[len(taken) :]
        counts.update(more=len(left), more_rows=sum(file.record_count for _, file in left))
    files = tuple(file for _, file in old)
    seen = OldFiles(
        column=column,
        before=before,
        files=len(files),
        rows=sum(file.record_count for file in files),
        data_bytes=sum(file.file_size_in_bytes for file in files),
        partitions=Counter(path for path, _ in old),
        read_up_to=read_up_to,
        arrived_before=arrived_before,
        has_column=_time_field(table, column) is not None,
        **counts,
    )
    return FoundFiles(seen=seen, files=files)


def _fresh_snapshots(table: Table, arrived_before: datetime | None) -> frozenset[int]:
    """The snapshots that are no older than a time; none without a time."""
    if arrived_before is None:
        return frozenset()
    limit = arrived_before.timestamp() * 1000
    return frozenset(one.snapshot_id for one in table.snapshots() if one.timestamp_ms >= limit)


def _parts(
    table: Table, column: str, before: datetime, read_up_to: int | None, fresh_ones: frozenset[int]
) -> Iterator[_Part]:
    newest, field = table.current_snapshot(), _time_field(table, column)
    if newest is None or field is None:
        return

    border = _border(field, before)

    def read(manifest: ManifestFile) -> _Part:
        spec, counts = table.specs()[manifest.partition_spec_id], Counter[str]()
        old: list[tuple[str, DataFile]] = []
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            lowest, highest = _bounds(field, entry.data_file)
            if highest is None or highest >= border:
                counts["mixed"] += lowest is not None and lowest < border
                counts["unbounded"] += lowest is None and not _has_no_time(field, entry.data_file)
            elif not _is_read(entry, read_up_to):
                counts["unread"] += 1
            elif entry.snapshot_id in fresh_ones:
                counts["fresh"] += 1
            elif len(old) == MOST_FILES:
                counts.update(more=1, more_rows=entry.data_file.record_count)
            else:
                old.append((path_of(spec, entry.data_file.partition, table.schema()), entry.data_file))
        return _Part(old=tuple(old), counts=counts)

    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        yield from each_manifest(read, _may_be_old(table, newest.manifests(table.io), field, before))


def _time_field(table: Table, column: str) -> NestedField | None:
    """The date or time by which rows go; none in a table that was not changed to its declaration yet."""
    field = next((one for one in table.schema().fields if one.name == column), None)
    is_time = field is not None and isinstance(field.field_type, (DateType, TimestampType, TimestamptzType))
    return field if is_time else None


def _has_no_time(field: NestedField, file: DataFile) -> bool:
    """Whether no row of a file has a time: such a file has no bounds either."""
    return (file.null_value_counts or {}).get(field.field_id) == file.record_count


def _is_read(entry: ManifestEntry, read_up_to: int | None) -> bool:
    """Whether every stream has read a file. By its own number: the rows of a rewritten one may have an earlier one."""
    number = entry.file_sequence_number
    return read_up_to is None or (number is not None and number <= read_up_to)


def _may_be_old(
    table: Table, manifests: Sequence[ManifestFile], field: NestedField, before: datetime
) -> list[ManifestFile]:
    """The manifests of data files that may list old ones, by the bounds of their partitions."""
    kind, schema, utc = field.field_type, table.schema(), before.astimezone(UTC)
    border = utc.date() if isinstance(kind, DateType) else utc.replace(tzinfo=None)
    text = f"{border.isoformat()}+00:00" if isinstance(kind, TimestamptzType) else border.isoformat()
    is_old = LessThan(term=field.name, value=text)
    may_hold = {
        spec_id: manifest_evaluator(spec, schema, inclusive_projection(schema, spec)(is_old))
        for spec_id, spec in table.specs().items()
    }
    return [one for one in manifests if one.content is ManifestContent.DATA and may_hold[one.partition_spec_id](one)]


def _border(field: NestedField, before: datetime) -> int:
    """A time as Iceberg stores such values: days or microseconds since 1970."""
    unit = timedelta(days=1) if isinstance(field.field_type, DateType) else timedelta(microseconds=1)
    return (before - _EPOCH) // unit


def _bounds(field: NestedField, file: DataFile) -> tuple[int | None, int | None]:
    """The lowest and the highest time of a file; of one with rows without a time the highest is not known."""
    kind = field.field_type
    assert isinstance(kind, PrimitiveType)  # noqa: S101  # a date or a timestamp
    lowest, highest = ((bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    has_all = (file.null_value_counts or {}).get(field.field_id) == 0
    return (
        None if lowest is None else int(from_bytes(kind, lowest)),
        None if highest is None or not has_all else int(from_bytes(kind, highest)),
    )


def remove_old_files(
    committer: TableCommitter,
    name: str,
    *,
    column: str,
    before: datetime,
    read_up_to: int | None,
    agreed: timedelta | None = None,
    arrived_before: datetime | None = None,
    reached: Reached = unnoticed,
) -> Mapping[str, Any]:
    """Remove the files with old rows alone from a table, in one commit; where they are very many, in several.

    Parameters
    ----------
    name: `<namespace>.<table>`. agreed: the age to which a person has agreed. The others as `find_old_files` has them.

    Returns
    -------
    How many files, rows and bytes were removed; rows that delete files had hidden are among them.

    Raises
    ------
    CommitConflictError: when writers won every race of the first commit.
    UnpublishableError: when rows were removed by another column before.
    DeliveryError, LakehouseError: as `commit_checked` raises them.
    """

    plan = partial(
        _removal,
        name=name,
        removal=RemovedRows(column=column, before=before, agreed=agreed),
        read_up_to=read_up_to,
        arrived_before=arrived_before,
    )
    figures: Counter[str] = Counter()
    while True:
        try:
            done = commit_checked(
                committer, name, plan, what=f"the removal of old rows from {name}", reached=reached, policy=_RACES
            )
        except StarvedError as error:
            if figures:
                break  # the next run removes the rest
            raise CommitConflictError(str(error)) from error
        removed = done.change.removed if isinstance(done, Landed) else ()
        figures.update(
            removed_data_files_count=len(removed),
            removed_rows_count=sum(file.record_count for file in removed),
            removed_bytes_count=sum(file.file_size_in_bytes for file in removed),
        )
        if len(removed) < MOST_FILES:
            break
    return figures


def _removal(
    table: Table, *, name: str, removal: RemovedRows, read_up_to: int | None, arrived_before: datetime | None
) -> TableChange | NothingToCommit:
    """One commit of it, on exactly the metadata of a table."""
    refuse_unpublishable(table)
    column, before, earlier = removal.column, removal.before, removed_from(table)
    found = find_old_files(table, column=column, before=before, read_up_to=read_up_to, arrived_before=arrived_before)
    if not found.files:
        return NothingToCommit(snapshot_id=None)
    if earlier is not None and earlier.column != column:
        raise UnpublishableError(f"Rows of {name} were removed by {earlier.column}, and these would go by {column}.")
    newest = before if earlier is None else max(before, earlier.before)
    said = replace(removal, before=newest, field_id=table.schema().find_field(column).field_id)
    return TableChange(
        operation=Operation.DELETE,
        removed=found.files,
        summary=said.entries(),  # what a rewind behind later removals shows again is known by it
        properties=said.entries(),
    )
