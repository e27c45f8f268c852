"""Reads the newest rows of a table that is only appended to, from its newest files and within bounds, without a JVM.

What is read does not grow with the table: its manifest list, the manifests and files that were added last, and of those
files as many rows as are asked for. A file whose rows all have one time, as a batch writes them, is read no further.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.types import TimestamptzType

from sluice.errors import LakehouseError
from sluice.processes.deadline import Deadline
from sluice.tables.catalog import catalog_refusals
from sluice.tables.manifest_reading import READERS

MOST_MANIFESTS = 40
MOST_MANIFEST_BYTES = 16 * 2**20
"""How many manifests are read: a batch adds one, and maintenance unites them into manifests of 8 MiB."""

MOST_FILES = 24
"""How many data files are opened, each with a few requests."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BATCH_ROWS = 256
_BUFFER_BYTES = 2**20
_LATEST = datetime.max.replace(tzinfo=UTC)
"""The newest time of a file that does not say it: it is looked at first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRows:
    """The newest rows of a table, the newest first.

    is_cut: whether fewer were found than asked for, although there are files that were not looked at.
    """

    rows: tuple[Mapping[str, Any], ...]
    is_cut: bool


def read_newest_rows(
    table: Table, *, time_column: str, limit: int, longest_text: int, deadline: Deadline
) -> NewestRows:
    """Read the newest rows of a table.

    Parameters
    ----------
    table: freshly loaded from the catalog. time_column: a column of type timestamptz that every row has.
    limit: how many rows are asked for.
    longest_text: texts are cut behind one character more, which shows that they are longer.
    deadline: when the reading ends with the rows found so far.

    Raises
    ------
    LakehouseError: when a file cannot be read, or the table has delete files, which are not applied here.
    """
    name = ".".join(table.name())
    request = _Request(time_column=time_column, limit=limit, longest_text=longest_text, deadline=deadline)
    with catalog_refusals(f"read the newest rows of {name}"):
        files, is_cut = _newest_files(table, time_column)
        try:
            rows = _newest_of(table, files, request)
        except pa.ArrowException as error:
            raise LakehouseError(f"A data file of {name} cannot be read: {error}.") from error
    return NewestRows(rows=rows, is_cut=is_cut and len(rows) < limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What is read. The parameters of `read_newest_rows`."""

    time_column: str
    limit: int
    longest_text: int
    deadline: Deadline

    def newest(self, rows: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        return tuple(sorted(rows, key=lambda row: row[self.time_column], reverse=True)[: self.limit])

    def oldest_that_counts(self, rows: Sequence[Mapping[str, Any]]) -> datetime | None:
        """A row counts only if it is newer; unset while rows are missing."""
        return rows[-1][self.time_column] if len(rows) >= self.limit else None

    def has_all(self, rows: Sequence[Mapping[str, Any]], *, of: datetime) -> bool:
        """Whether nothing more is to be read where the newest row has this time."""
        oldest = self.oldest_that_counts(rows)
        return self.deadline.is_over() or (oldest is not None and of <= oldest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A data file. newest: the time of its newest row; the latest there is when the manifest does not say it."""

    path: str
    newest: datetime


def _newest_files(table: Table, time_column: str) -> tuple[list[_File], bool]:
    """The files with the newest rows, the newest first, and whether there are others."""
    snapshot = table.current_snapshot()
    manifests = [one for one in snapshot.manifests(table.io) if _lists_files(one)] if snapshot is not None else []
    if any(one.content == ManifestContent.DELETES for one in manifests):
        raise LakehouseError(
            f"{'.'.join(table.name())} has delete files, and only an engine applies them.",
            next_step="Query the table with an engine, for example Spark SQL.",
        )
    manifests.sort(key=lambda one: one.sequence_number, reverse=True)
    looked_at = manifests[: _fitting(manifests)]
    column = table.schema().find_field(time_column).field_id
    with ThreadPoolExecutor(READERS) as pool:
        read = pool.map(lambda one: one.fetch_manifest_entry(table.io), looked_at)
        entries = [entry for found in read for entry in found]
    files = [_file_of(entry, column) for entry in entries if entry.data_file.file_format == FileFormat.PARQUET]
    files.sort(key=lambda file: file.newest, reverse=True)
    is_cut = len(looked_at) < len(manifests) or len(files[:MOST_FILES]) < len(entries)
    return files[:MOST_FILES], is_cut


def _lists_files(manifest: ManifestFile) -> bool:
    return manifest.has_added_files() or manifest.has_existing_files()


def _fitting(manifests: Sequence[ManifestFile]) -> int:
    """How many of the first manifests are within the bounds; one always is."""
    sizes = accumulate(one.manifest_length for one in manifests[:MOST_MANIFESTS])
    return max(1, sum(size <= MOST_MANIFEST_BYTES for size in sizes))


def _file_of(entry: ManifestEntry, column: int) -> _File:
    bound = (entry.data_file.upper_bounds or {}).get(column)
    microseconds = None if bound is None else int(from_bytes(TimestamptzType(), bound))
    newest = _LATEST if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)
    return _File(path=entry.data_file.file_path, newest=newest)


def _newest_of(table: Table, files: Sequence[_File], request: _Request) -> tuple[Mapping[str, Any], ...]:
    rows: tuple[Mapping[str, Any], ...] = ()
    for file in files:
        if request.has_all(rows, of=file.newest):
            break
        with table.io.new_input(file.path).open() as opened:
            parquet = pq.ParquetFile(cast("IO[bytes]", opened), buffer_size=_BUFFER_BYTES, pre_buffer=False)
            for group in _groups(parquet, request.time_column):
                rows = _with_rows_of(parquet, group, rows, request)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A row group. newest: the time of its newest row; the latest there is when the file does not say it."""

    index: int
    newest: datetime = _LATEST


def _groups(parquet: pq.ParquetFile, time_column: str) -> list[_Group]:
    """The row groups of a file, the newest first."""
    return sorted(_groups_in_order(parquet, time_column), key=lambda group: group.newest, reverse=True)


def _groups_in_order(parquet: pq.ParquetFile, time_column: str) -> Iterator[_Group]:
    column = parquet.schema.names.index(time_column)
    for index in range(parquet.metadata.num_row_groups):
        statistics = parquet.metadata.row_group(index).column(column).statistics
        newest = None if statistics is None else statistics.max
        yield _Group(index=index) if newest is None else _Group(index=index, newest=newest)


def _with_rows_of(
    parquet: pq.ParquetFile, group: _Group, rows: tuple[Mapping[str, Any], ...], request: _Request
) -> tuple[Mapping[str, Any], ...]:
    """The newest among some rows and those of a row group, which is left once none of its rows can be newer."""
    batches = parquet.iter_batches(_BATCH_ROWS, row_groups=[group.index])
    while not request.has_all(rows, of=group.newest) and (batch := next(batches, None)) is not None:
        oldest = request.oldest_that_counts(rows)
        newer = (
            batch if oldest is None else batch.filter(pc.greater(batch.column(request.time_column), pa.scalar(oldest)))
        )
        rows = request.newest([*rows, *_shortened(newer, request.longest_text)])
    return rows


def _shortened(batch: pa.RecordBatch, longest_text: int) -> Iterator[Mapping[str, Any]]:
    for row in batch.to_pylist():
        yield {name: value[: longest_text + 1] if isinstance(value, str) else value for name, value in row.items()}
