"""Reads the manifests of a table, several at once, and which rows its delete files hide, as far as they say it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from sluice.tables.partition_filters import path_of

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
