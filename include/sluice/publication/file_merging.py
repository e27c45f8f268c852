"""Puts small staged files together before they are published, so that small files never reach the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import FileScanTask, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortDirection
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.utils.bin_packing import ListPacker

from sluice.tables.catalog import catalog_refusals

MOST_BYTES_AT_A_TIME = 64 * 1024 * 1024
"""How much of compressed files becomes one: their rows are held in memory, at five to ten times as many bytes."""

SMALL_PART_OF_TARGET = 0.75
"""A file that has less than this part of the table's target size is small; compaction uses the same part."""

_ANY_SIZE = str(1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFiles:
    """The files to publish, and the paths of those that went into larger ones."""

    files: tuple[DataFile, ...]
    superseded: tuple[str, ...]


no_files_merged = MergedFiles(files=(), superseded=())


def merge_small_files(target: Table, files: Sequence[DataFile]) -> MergedFiles:
    """Write one file where several small ones of a partition would go in.

    Only files of the table's default spec are merged. The new ones are sorted as the table asks for.

    Parameters
    ----------
    files: from `fit_files` for this target.

    Raises
    ------
    LakehouseError: when a file cannot be read or written.
    """
    metadata = target.metadata
    target_bytes = int(
        metadata.properties.get(
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        )
    )
    together = [group for group in _groups(files, metadata.default_spec_id, target_bytes) if len(group) > 1]
    merged: list[DataFile] = []
    with catalog_refusals(f"merge staged files for {'.'.join(target.name())}"):
        for group in together:
            merged.extend(_merge(target, group))
    gone = {file.file_path for group in together for file in group}
    kept = [file for file in files if file.file_path not in gone]
    return MergedFiles(files=(*kept, *merged), superseded=tuple(sorted(gone)))


def _groups(files: Iterable[DataFile], default_spec_id: int, target_bytes: int) -> Iterator[list[DataFile]]:
    small: dict[Record, list[DataFile]] = defaultdict(list)
    for file in files:
        is_small = file.file_size_in_bytes < target_bytes * SMALL_PART_OF_TARGET
        if file.spec_id == default_spec_id and is_small and file.file_format == FileFormat.PARQUET:
            small[file.partition].append(file)
    packer: ListPacker[DataFile] = ListPacker(
        target_weight=min(target_bytes, MOST_BYTES_AT_A_TIME), lookback=1, largest_bin_first=False
    )
    for group in small.values():
        yield from packer.pack(group, lambda file: file.file_size_in_bytes)


def _merge(target: Table, group: Sequence[DataFile]) -> Iterator[DataFile]:
    metadata = target.metadata
    scan = ArrowScan(metadata, target.io, metadata.schema(), AlwaysTrue())
    rows = _sorted(scan.to_table([FileScanTask(file) for file in group]), metadata)
    # One file for the group: pyiceberg would cut by the size of the rows in memory.
    in_one_piece = metadata.properties | {TableProperties.WRITE_TARGET_FILE_SIZE_BYTES: _ANY_SIZE}
    uncut = metadata.model_copy(update={"properties": in_one_piece})
    for written in _dataframe_to_data_files(uncut, rows, target.io):
        written.spec_id = metadata.default_spec_id
        yield written


def _sorted(rows: pa.Table, metadata: TableMetadata) -> pa.Table:
    """The rows in the table's sort order, as far as that orders by columns themselves."""
    order = metadata.sort_order_by_id(metadata.default_sort_order_id)
    keys: list[tuple[str, Literal["ascending", "descending"]]] = []
    for field in order.fields if order is not None else ():
        name = metadata.schema().find_column_name(field.source_id)
        if name is None or name not in rows.column_names or not isinstance(field.transform, IdentityTransform):
            break
        keys.append((name, "ascending" if field.direction == SortDirection.ASC else "descending"))
    return rows.sort_by(keys) if keys else rows
