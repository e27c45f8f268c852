"""Reads the manifests of a table, several at once, and which rows its delete files hide, as far as they say it; names
partitions for Iceberg's planner by a filter that selects their files and no others.

A filter on the column of a partition by the transform of that partition is projected to the partition's own value, so
it selects whole partitions exactly. That holds for files of the table's present spec alone: of a file of an earlier
spec the planner knows only whether it may hold such rows.

Source: https://iceberg.apache.org/spec/#scan-planning, org.apache.iceberg.expressions.Projections and
org.apache.iceberg.transforms.ProjectionUtil.projectTransformPredicate.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar
from urllib.parse import quote_plus

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

Condition = Mapping[str, Any]
"""A filter as Iceberg's `ExpressionParser` reads it."""

_WHOLE_NUMBERS = (HourTransform, MonthTransform, YearTransform, BucketTransform)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # a timestamp without a zone


def _day(days: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=days)).isoformat()


def _timestamp(micros: int) -> str:
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")


_SPELLED: Mapping[type[IcebergType], Callable[[Any], Any]] = {
    BooleanType: bool,
    IntegerType: int,
    LongType: int,
    StringType: str,
    DateType: _day,
    TimestampType: _timestamp,
    TimestamptzType: lambda micros: f"{_timestamp(micros)}+00:00",
    DecimalType: lambda value: format(Decimal(value), "f"),
}
"""How Iceberg's JSON has a value of each type. A float is not among them: NaN equals no value, and 0.0 equals -0.0.
Source: https://iceberg.apache.org/spec/#json-single-value-serialization"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionColumn:
    """A field of a partition spec: its column, its transform as Iceberg writes it, and the type of its values.

    transform: `identity`, `day`, `bucket[8]` and so on. kind: unset where no filter can name a value of it exactly.
    """

    column: str
    transform: str
    kind: type[IcebergType] | None

    def condition(self, value: object) -> Condition | None:
        """The filter for one value; none where it cannot be named."""
        if self.kind is None:
            return None
        term: object = self.column
        if self.transform != "identity":
            term = {"type": "transform", "transform": self.transform, "term": self.column}
        if value is None:
            return {"type": "is-null", "term": term}
        try:
            return {"type": "eq", "term": term, "value": _SPELLED[self.kind](value)}
        except (OverflowError, ValueError):  # a day before the year 1 or after 9999
            return None


def partition_columns(metadata: TableMetadata) -> tuple[PartitionColumn, ...]:
    """The fields of a table's partition spec, in its order; empty for a table without partitions."""
    schema, spec = metadata.schema(), metadata.spec()
    found = []
    for part, kind in zip(spec.fields, spec.partition_type(schema).fields, strict=True):
        known = _kind(part.transform, kind.field_type)
        name = schema.find_column_name(part.source_id) or ""
        found.append(PartitionColumn(column=name, transform=str(part.transform), kind=known if name else None))
    return tuple(found)


def _kind(transform: object, kind: IcebergType) -> type[IcebergType] | None:
    if isinstance(transform, DayTransform):
        return DateType
    if isinstance(transform, _WHOLE_NUMBERS):
        return IntegerType
    is_exact = isinstance(transform, (IdentityTransform, TruncateTransform)) and type(kind) in _SPELLED
    return type(kind) if is_exact else None


def path_of(spec: PartitionSpec, partition: Record, schema: Schema) -> str:
    """The values of a partition as a path. One that pyiceberg cannot spell, such as a day after 9999, is its number."""
    try:
        return spec.partition_to_path(partition, schema)
    except (OverflowError, ValueError):
        pairs = [(part.name, str(partition[place])) for place, part in enumerate(spec.fields)]
        return "/".join(f"{quote_plus(name, safe='')}={quote_plus(value, safe='')}" for name, value in pairs)


def condition_of(columns: Sequence[PartitionColumn], partition: Record) -> Condition | None:
    """The filter that selects one partition of the present spec; none where no filter can.

    Parameters
    ----------
    columns: of the spec.
    partition: the values, as a manifest has them.
    """
    conditions = [
        one.condition(partition[place]) for place, one in enumerate(columns) if one.transform != str(VoidTransform())
    ]
    named = [one for one in conditions if one is not None]
    return _all_of(named) if named and len(named) == len(conditions) else None


def filter_of(columns: Sequence[PartitionColumn], partitions: Collection[Record]) -> str | None:
    """The filter, as JSON, that selects the partitions of one path; empty without partition columns, unset where one of
    them cannot be named. A null and the text `null` have the same path."""
    found = [condition_of(columns, one) for one in partitions]
    named = sorted(json.dumps(one) for one in found if one is not None)
    if all(one.transform == str(VoidTransform()) for one in columns):
        return ""
    return any_of(named) if named and len(named) == len(found) else None


def any_of(filters: Sequence[str]) -> str:
    """The filter that selects what any of some filters does, as JSON: a balanced tree, because a parser of JSON reads
    only so many levels."""
    if len(filters) == 1:
        return filters[0]
    half = len(filters) // 2
    return f'{{"type": "or", "left": {any_of(filters[:half])}, "right": {any_of(filters[half:])}}}'


def _all_of(conditions: Sequence[Condition]) -> Condition:
    first, *others = conditions
    return {"type": "and", "left": first, "right": _all_of(others)} if others else first


READERS = 8
"""How many manifests are read in parallel: enough to hide an object store's latency, few for a small machine."""

Found = TypeVar("Found")


def each_manifest(read: Callable[[ManifestFile], Found], manifests: Sequence[ManifestFile]) -> Iterator[Found]:
    """What is read of each manifest, in their order."""
    if len(manifests) <= 1:  # threads would cost more than they hide
        yield from map(read, manifests)
        return
    with ThreadPoolExecutor(READERS) as pool:
        yield from pool.map(read, manifests)


_PATH_ID = 2_147_483_546
"""The id of the column of a position delete file with the paths of data files. Source: Iceberg's specification,
reserved field ids."""


@dataclass(slots=True, kw_only=True)
class PartitionDeletes:
    """The live delete files of one partition.

    vector_rows: how many rows its deletion vectors list, each those of one data file.
    shared_rows: how many rows those list that are of several data files, and equality deletes, by the largest sequence
        number of the data files to which they apply. How many they hide, no manifest says: one equality delete may hide
        several rows, or none.
    written_ms: when the newest was committed, but by a rewrite.
    """

    vector_rows: int = 0
    shared_rows: Counter[int] = field(default_factory=Counter)
    written_ms: int = 0

    def add(self, other: PartitionDeletes) -> None:
        """Count others, too."""
        self.vector_rows += other.vector_rows
        self.shared_rows.update(other.shared_rows)
        self.written_ms = max(self.written_ms, other.written_ms)

    def shared_from(self, sequence_number: int) -> int:
        """How many rows those list that may apply to a data file with this sequence number or a larger one."""
        return sum(rows for largest, rows in self.shared_rows.items() if largest >= sequence_number)


@dataclass(slots=True, kw_only=True)
class DeleteFiles:
    """The live delete files of a snapshot.

    files: their number.
    rows_of: how many rows those list that are of one data file, by its path. A data file that is written again leaves
        its delete files behind, which hide nothing any more. pyiceberg does not read of which data file a deletion
        vector is; those are counted by partition.
    by_partition: what is counted of those of each partition, by its path.
    limits: what of them keeps pyiceberg from reading rows without those that they hide.
    """

    files: int = 0
    rows_of: Counter[str] = field(default_factory=Counter)
    by_partition: dict[str, PartitionDeletes] = field(default_factory=dict)
    limits: set[str] = field(default_factory=set)

    def add(self, other: DeleteFiles) -> None:
        """Count others, too."""
        self.files += other.files
        self.rows_of.update(other.rows_of)
        self.limits |= other.limits
        for partition, deletes in other.by_partition.items():
            self.by_partition.setdefault(partition, PartitionDeletes()).add(deletes)


def delete_files_of(table: Table, manifests: Iterable[ManifestFile], written_ms: Mapping[int, int]) -> DeleteFiles:
    """The delete files that some manifests list; manifests of data files are not read. What is kept follows the number
    of data files that have any of their own, and of partitions.

    Parameters
    ----------
    written_ms: when each snapshot was committed that wrote rows or deletes, by its id.
    """
    specs, schema = table.specs(), table.schema()

    def read(manifest: ManifestFile) -> DeleteFiles:
        found, by_record = DeleteFiles(), defaultdict[Record, PartitionDeletes](PartitionDeletes)
        spec = specs[manifest.partition_spec_id]
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            file = entry.data_file
            found.files += 1
            found.limits |= _limits_of(file)
            counted = PartitionDeletes(written_ms=written_ms.get(entry.snapshot_id or 0, 0))
            if (path := _path_of(file)) is not None:
                found.rows_of[path] += file.record_count
            elif file.file_format is FileFormat.PUFFIN:
                counted.vector_rows = file.record_count
            else:
                counted.shared_rows[_largest_number(entry)] = file.record_count
            by_record[file.partition].add(counted)
        for partition, deletes in by_record.items():
            found.by_partition.setdefault(path_of(spec, partition, schema), PartitionDeletes()).add(deletes)
        return found

    every = DeleteFiles()
    for found in each_manifest(read, [one for one in manifests if one.content is ManifestContent.DELETES]):
        every.add(found)
    return every


def statement_without_delete_files(table: str) -> str:
    """What a person runs in Spark, while nothing writes a table, so that it has no delete files any more.

    Behind rows that keep their sequence number Iceberg does not know a delete file of several data files for one that
    hides nothing. With new numbers an equality delete that is committed meanwhile would not hide them.

    Source: https://iceberg.apache.org/docs/latest/spark-procedures/#rewrite_data_files
    """
    named = {
        "delete-file-threshold": "1",
        "use-starting-sequence-number": "false",
        "remove-dangling-deletes": "true",
    }
    options = ", ".join(f"'{name}', '{value}'" for name, value in named.items())
    return f"CALL <catalog>.system.rewrite_data_files(table => '{table}', options => map({options}))"


def _path_of(file: DataFile) -> str | None:
    """The only data file of which a position delete file hides rows: its bounds are the same then.

    Source: `referencedDataFile` of org.apache.iceberg.util.ContentFileUtil.
    """
    lowest, highest = ((bounds or {}).get(_PATH_ID) for bounds in (file.lower_bounds, file.upper_bounds))
    is_one = file.content is DataFileContent.POSITION_DELETES and lowest is not None and lowest == highest
    return lowest.decode() if is_one and lowest is not None else None


def _largest_number(entry: ManifestEntry) -> int:
    """The largest sequence number of data files to which a delete file applies; equality deletes are of earlier ones.

    Source: https://iceberg.apache.org/spec/#scan-planning
    """
    own = entry.sequence_number or 0
    return own - 1 if entry.data_file.content == DataFileContent.EQUALITY_DELETES else own


def _limits_of(deletes: DataFile) -> set[str]:
    """What of a delete file keeps pyiceberg from reading rows without those that it hides."""
    found = {"equality deletes"} if deletes.content == DataFileContent.EQUALITY_DELETES else set()
    return found if deletes.file_format == FileFormat.PARQUET else {*found, "delete files that are not Parquet"}
