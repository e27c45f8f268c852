"""Observes a table through its metadata alone, also what of it PyArrow cannot keep; without a JVM or a data file."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from sluice.declarations.scalar_types import LARGEST_LONG
from sluice.tables.catalog import catalog_refusals
from sluice.tables.manifest_reading import (
    DeleteFiles,
    PartitionColumn,
    delete_files_of,
    each_manifest,
    filter_of,
    partition_columns,
    path_of,
)
from sluice.tables.table_observation import (
    FILE_SIZE_EDGES,
    FileCounts,
    PartitionObservation,
    ReferenceKind,
    ReferenceObservation,
    SnapshotObservation,
    StatisticsKind,
    StatisticsObservation,
    TableObservation,
)

_SORTED_ALIKE: tuple[type[IcebergType], ...] = (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)
"""The types that PyArrow sorts as Iceberg's specification has it. It puts NaN beside nulls, and Iceberg behind all
numbers; a uuid it does not sort."""

SortKey = tuple[str, Literal["ascending", "descending"], Literal["at_start", "at_end"]]
"""A column, its direction, and where its nulls are, as PyArrow takes them."""


def sort_keys(metadata: TableMetadata) -> tuple[tuple[SortKey, ...], bool]:
    """The table's sort order as far as PyArrow can sort by it, and whether that is all of it.

    It ends before the first field with a transform, inside a struct, or of a type that PyArrow sorts differently.
    """
    order = metadata.sort_order_by_id(metadata.default_sort_order_id)
    fields = order.fields if order is not None else []
    keys = []
    for sorted_by in fields:
        if (key := _key(metadata, sorted_by)) is None:
            break
        keys.append(key)
    return tuple(keys), len(keys) == len(fields)


def _key(metadata: TableMetadata, field: SortField) -> SortKey | None:
    schema = metadata.schema()
    column = next((one for one in schema.fields if one.field_id == field.source_id), None)
    if column is None or not isinstance(field.transform, IdentityTransform):
        return None
    if not isinstance(column.field_type, _SORTED_ALIKE):
        return None
    return (
        column.name,
        "ascending" if field.direction == SortDirection.ASC else "descending",
        "at_start" if field.null_order == NullOrder.NULLS_FIRST else "at_end",
    )


def rewrite_limits(metadata: TableMetadata) -> Iterator[str]:
    """Why files of a table cannot be written again without Spark; nothing when they can. For a sentence with `it has`.

    What depends on its files, such as equality deletes, is seen where its manifests are read.
    """
    properties = metadata.properties
    if metadata.format_version != 2:
        yield f"format version {metadata.format_version}"
    if not sort_keys(metadata)[1]:
        yield "a sort order by what PyArrow does not sort alike"
    yield from _type_limits(metadata)
    if (written := properties.get("write.format.default", "parquet")).lower() != "parquet":
        yield f"files of the format {written}"
    for prefix, what in _UNWRITTEN.items():
        if any(name.startswith(prefix) and value.lower() != "false" for name, value in properties.items()):
            yield what


def _type_limits(metadata: TableMetadata) -> Iterator[str]:
    """NaN equals no partition, not even itself, so that pyiceberg finds neither its rows nor the delete files of it."""
    types = [part.field_type for part in metadata.spec().partition_type(metadata.schema()).fields]
    if any(isinstance(one, (FloatType, DoubleType)) for one in types):
        yield "partitions by a float"


_UNWRITTEN = {
    "write.parquet.bloom-filter-enabled.column.": "bloom filters",
    "write.parquet.row-group-size-bytes": "a size of its row groups",
    "encryption.": "encrypted files",
}
"""Table properties, by how they begin, that pyiceberg's writer does not follow."""


def observe_table(
    table: Table, *, name: str, small_file_bytes: int, now: datetime, counted: FileCounts | None = None
) -> TableObservation:
    """Read the files and snapshots of a table from its newest metadata.

    Parameters
    ----------
    table: freshly loaded from the catalog.
    name: `<namespace>.<table>`.
    small_file_bytes: a data file of fewer bytes counts as small.
    now: the time of the observation.
    counted: the files of this very snapshot from an earlier look; unset: its manifests are read.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    newest, started = table.current_snapshot(), time.monotonic()
    with catalog_refusals(f"read the manifests of {name}"):
        manifests = newest.manifests(table.io) if newest and counted is None else []
        written_ms = {one.snapshot_id: one.timestamp_ms for one in table.snapshots() if not _is_rewrite(one)}
        deletes = delete_files_of(table, manifests, written_ms)
        files = _live_files(table, manifests, small_file_bytes, deletes, written_ms)
        limits = (*rewrite_limits(table.metadata), *sorted(files.limits | deletes.limits))
    ended = time.monotonic()
    return TableObservation(
        table=name,
        observed_at=now,
        metadata_location=table.metadata_location,
        snapshot_id=newest.snapshot_id if newest else None,
        committed_at=_time(newest.timestamp_ms) if newest else None,
        rows=counted.rows if counted else files.rows,
        small_file_bytes=small_file_bytes,
        partitions=_partitions(
            files, deletes, partition_columns(table.metadata), newest.sequence_number if newest else None
        ),
        has_earlier_spec=files.has_earlier_spec,
        delete_files=counted.delete_files if counted else deletes.files,
        manifests=counted.manifests if counted else len(manifests),
        snapshots=tuple(
            _snapshot(seen) for seen in sorted(table.snapshots(), key=lambda seen: seen.sequence_number or 0)
        ),
        references=_references(table),
        file_sizes=counted.file_sizes if counted else tuple(files.by_size),
        rewrite_limits=limits,
        table_uuid=str(table.metadata.table_uuid),
        location=table.location(),
        statistics=tuple(_statistics(table)),
        is_partitioned=not table.spec().is_unpartitioned(),
        columns=_columns_of(table, newest),
        planning_ms=None if counted else round((ended - started) * 1000),
        counted=counted,
    )


@dataclass(slots=True)
class _Sizes:
    """What is counted of the data files of a partition. first_number: their smallest sequence number."""

    rows: int = 0
    deleted_rows: int = 0
    data_files: int = 0
    data_bytes: int = 0
    small_files: int = 0
    small_bytes: int = 0
    written_ms: int = 0
    first_number: int = LARGEST_LONG
    shared_deletes: int = 0
    has_newest_deletes: bool = False
    values: set[Record] = field(default_factory=set)

    def add(self, other: _Sizes) -> None:
        self.rows += other.rows
        self.deleted_rows += other.deleted_rows
        self.data_files += other.data_files
        self.data_bytes += other.data_bytes
        self.small_files += other.small_files
        self.small_bytes += other.small_bytes
        self.written_ms = max(self.written_ms, other.written_ms)
        self.first_number = min(self.first_number, other.first_number)
        self.values |= other.values


@dataclass(slots=True)
class _Files:
    """What is counted of some live files.

    by_partition: the sizes of the data files, by the partition as a path. by_size: their number between the edges.
    limits: what of them only Spark can write again. has_earlier_spec: whether one is of an earlier partition spec.
    """

    rows: int = 0
    has_earlier_spec: bool = False
    by_partition: dict[str, _Sizes] = field(default_factory=dict)
    by_size: list[int] = field(default_factory=lambda: [0] * (len(FILE_SIZE_EDGES) + 1))
    limits: set[str] = field(default_factory=set)

    def add(self, other: _Files) -> None:
        self.limits |= other.limits
        self.has_earlier_spec |= other.has_earlier_spec
        self.rows += other.rows
        for partition, sizes in other.by_partition.items():
            self.by_partition.setdefault(partition, _Sizes()).add(sizes)
        self.by_size = [own + others for own, others in zip(self.by_size, other.by_size, strict=True)]


def _live_files(
    table: Table,
    manifests: Iterable[ManifestFile],
    small_file_bytes: int,
    deletes: DeleteFiles,
    written_ms: Mapping[int, int],
) -> _Files:
    """What is counted of every live data file. A manifest's entries are dropped once they are counted: the memory
    follows the size of a manifest and the number of partitions, not the number of files."""
    specs, schema, default_spec_id = table.specs(), table.schema(), table.metadata.default_spec_id

    def read(manifest: ManifestFile) -> _Files:
        found, by_record = _Files(), defaultdict[Record, _Sizes](_Sizes)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            file = entry.data_file
            found.rows += file.record_count
            found.has_earlier_spec |= manifest.partition_spec_id != default_spec_id
            sizes = _sizes_of(file, small_file_bytes)
            if sizes.small_files and manifest.partition_spec_id != default_spec_id:
                found.limits.add("small files of an earlier partition spec")
            if sizes.small_files and file.file_format != FileFormat.PARQUET:
                found.limits.add("small files that are not Parquet")
            sizes.deleted_rows = deletes.rows_of[file.file_path]
            sizes.written_ms = written_ms.get(entry.snapshot_id or 0, 0)
            sizes.first_number = entry.sequence_number or 0
            by_record[file.partition].add(sizes)
            found.by_size[bisect_right(FILE_SIZE_EDGES, file.file_size_in_bytes)] += 1
        spec = specs[manifest.partition_spec_id]
        for record, sizes in by_record.items():
            sizes.values.add(record)
            found.by_partition.setdefault(path_of(spec, record, schema), _Sizes()).add(sizes)
        return found

    every = _Files()
    for files in each_manifest(read, [one for one in manifests if one.content is ManifestContent.DATA]):
        every.add(files)
    return every


def _is_rewrite(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def _sizes_of(file: DataFile, small_file_bytes: int) -> _Sizes:
    size, is_small = file.file_size_in_bytes, file.file_size_in_bytes < small_file_bytes
    return _Sizes(
        rows=file.record_count,
        data_files=1,
        data_bytes=size,
        small_files=int(is_small),
        small_bytes=size if is_small else 0,
    )


def _partitions(
    files: _Files, deletes: DeleteFiles, columns: Sequence[PartitionColumn], newest_number: int | None
) -> tuple[PartitionObservation, ...]:
    for partition, found in deletes.by_partition.items():
        if (sizes := files.by_partition.get(partition)) is not None:
            sizes.written_ms = max(sizes.written_ms, found.written_ms)
            sizes.deleted_rows += found.vector_rows
            sizes.shared_deletes = found.shared_from(sizes.first_number)
            sizes.has_newest_deletes = newest_number in found.shared_rows
    return tuple(
        PartitionObservation(
            partition=partition,
            rows=sizes.rows,
            deleted_rows=sizes.deleted_rows,
            shared_deletes=sizes.shared_deletes,
            has_newest_deletes=sizes.has_newest_deletes,
            data_files=sizes.data_files,
            data_bytes=sizes.data_bytes,
            small_files=sizes.small_files,
            small_bytes=sizes.small_bytes,
            written_at=_time(sizes.written_ms) if sizes.written_ms else None,
            filter=None if files.has_earlier_spec else filter_of(columns, sizes.values),
        )
        for partition, sizes in sorted(files.by_partition.items())
    )


def _snapshot(snapshot: Snapshot) -> SnapshotObservation:
    summary = snapshot.summary
    return SnapshotObservation(
        snapshot_id=snapshot.snapshot_id,
        parent_id=snapshot.parent_snapshot_id,
        committed_at=_time(snapshot.timestamp_ms),
        operation=summary.operation.value if summary else "unknown",
        removed_bytes=int(summary.additional_properties.get("removed-files-size", 0)) if summary else 0,
    )


def _columns_of(table: Table, snapshot: Snapshot | None) -> tuple[str, ...]:
    """The columns of a snapshot's schema: one that was added since has no values in it."""
    schema = table.schemas().get(snapshot.schema_id) if snapshot and snapshot.schema_id is not None else None
    return tuple(field.name for field in (schema or table.schema()).fields)


def _statistics(table: Table) -> Iterator[StatisticsObservation]:
    schema = table.schema()
    for file in table.metadata.statistics:
        fields = sorted({field for blob in file.blob_metadata for field in blob.fields})
        names = tuple(name for field in fields if (name := schema.find_column_name(field)) is not None)
        yield StatisticsObservation(kind=StatisticsKind.COLUMNS, snapshot_id=file.snapshot_id, columns=names)
    for partitions in table.metadata.partition_statistics:
        yield StatisticsObservation(kind=StatisticsKind.PARTITIONS, snapshot_id=partitions.snapshot_id)


def _references(table: Table) -> tuple[ReferenceObservation, ...]:
    kinds = {SnapshotRefType.BRANCH: ReferenceKind.BRANCH, SnapshotRefType.TAG: ReferenceKind.TAG}
    return tuple(
        ReferenceObservation(name=name, kind=kinds[seen.snapshot_ref_type], snapshot_id=seen.snapshot_id)
        for name, seen in sorted(table.refs().items())
    )


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
