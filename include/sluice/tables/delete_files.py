"""Which rows of a table its delete files hide, as far as its manifests say it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestFile
from pyiceberg.table import Table

_PATH_ID = 2_147_483_546
"""The id of the column of a position delete file with the paths of data files. Source: Iceberg's specification,
reserved field ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDeletes:
    """A delete file that may hide rows of several data files. sequence_number: unset where no manifest says it.

    rows: those that it lists; of an equality delete the keys.
    """

    sequence_number: int | None
    rows: int

    def may_apply(self, oldest: int | None) -> bool:
        """Whether it may hide rows of data files. oldest: the least sequence number of them."""
        return oldest is None or self.sequence_number is None or oldest <= self.sequence_number


@dataclass(slots=True, kw_only=True)
class DeleteFiles:
    """The live delete files of a snapshot.

    files: their number. rows_of: how many rows those that are of one data file list, by its path. A file that is
        written again leaves its delete files behind, and they hide nothing any more.
    shared: the others, by their partition as a path.
    limits: what of them keeps pyiceberg from reading rows without those that they hide.
    """

    files: int = 0
    rows_of: Counter[str] = field(default_factory=Counter)
    shared: dict[str, list[SharedDeletes]] = field(default_factory=lambda: defaultdict(list))
    limits: set[str] = field(default_factory=set)

    def applied(self, partition: str, oldest: int | None) -> list[SharedDeletes]:
        """Those of several files that may hide rows in a partition. oldest: the least sequence number of its files."""
        return [one for one in self.shared.get(partition, ()) if one.may_apply(oldest)]


def delete_files_of(table: Table, manifests: Iterable[ManifestFile]) -> DeleteFiles:
    """The delete files that some manifests list; manifests of data files are not read."""
    specs, schema, found = table.specs(), table.schema(), DeleteFiles()
    for manifest in manifests:
        if manifest.content is not ManifestContent.DELETES:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            file = entry.data_file
            found.files += 1
            found.limits |= _limits_of(file)
            if (path := _path_of(file)) is not None:
                found.rows_of[path] += file.record_count
                continue
            partition = specs[manifest.partition_spec_id].partition_to_path(file.partition, schema)
            found.shared[partition].append(SharedDeletes(sequence_number=entry.sequence_number, rows=file.record_count))
    return found


def _path_of(file: DataFile) -> str | None:
    """The only data file of which a position delete file hides rows: its bounds are the same then.

    Source: `referencedDataFile` of org.apache.iceberg.util.ContentFileUtil.
    """
    lowest, highest = ((bounds or {}).get(_PATH_ID) for bounds in (file.lower_bounds, file.upper_bounds))
    is_one = file.content is DataFileContent.POSITION_DELETES and lowest is not None and lowest == highest
    return lowest.decode() if is_one and lowest is not None else None


def _limits_of(deletes: DataFile) -> set[str]:
    """What of a delete file keeps pyiceberg from reading rows without those that it hides."""
    found = {"equality deletes"} if deletes.content == DataFileContent.EQUALITY_DELETES else set()
    return found if deletes.file_format == FileFormat.PARQUET else {*found, "delete files that are not Parquet"}
