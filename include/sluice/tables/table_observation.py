"""An Iceberg table as its metadata describes it: files, manifests, snapshots, branches and tags, and until which time
its old rows were removed.

The snapshot that removes such rows says it, for those who walk the history, and a property of the table does, because
that snapshot expires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from sluice.stored_keys import REMOVED_BEFORE

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedRows:
    """The rows that were removed: those of files of which every row has an earlier time.

    column: the date or time of a row. before: all rows from then on are still there.
    agreed: how old rows are, by this column, of which a person agreed that they go; unset for none.
    field_id: of the column, whatever name it has later; unset in what earlier versions have written.
    """

    column: str
    before: AwareDatetime
    agreed: timedelta | None = None
    field_id: int | None = None

    def entries(self) -> Mapping[str, str]:
        """The entry of a snapshot's summary, or of the properties of a table."""
        return {REMOVED_BEFORE: _TEXT.dump_json(self).decode()}

    def __str__(self) -> str:
        before = f"{self.before.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        return f"rows whose {self.column} is before {before} were removed as too old"


_TEXT = TypeAdapter(RemovedRows)


def removed_rows(entries: Mapping[str, Any]) -> RemovedRows | None:
    """What the entries of a snapshot's summary, or the properties of a table, say of removed rows; none without.

    Text that is none of ours counts as nothing said: another program has written it.
    """
    text = entries.get(REMOVED_BEFORE)
    if text is None:
        return None
    try:
        return _TEXT.validate_json(text)
    except ValidationError:
        return None


def removed_from(table: Table) -> RemovedRows | None:
    """What a table says of rows that it has removed, by the name that the column has now; none without. The name of one
    that was dropped is that of no column, also where another column has its name."""
    said = removed_rows(table.properties)
    if said is None or said.field_id is None:
        return said
    name = table.schema().find_column_name(said.field_id)
    return replace(said, column=f"{said.column} (dropped)" if name is None else name)


FILE_SIZE_EDGES = tuple(kibibytes * 1024 for kibibytes in (64, 512, 4096, 32_768, 131_072, 524_288))
"""Data files are counted by size: below each of these, in bytes, and from the last one on. The ledger holds the counts,
so another edge means that older counts are read wrongly."""


class ReferenceKind(StrEnum):
    """The kind of a reference: a branch moves with commits, a tag stays. Expiry keeps the snapshots of both."""

    BRANCH = "branch"
    TAG = "tag"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotObservation:
    """One snapshot that the table's metadata lists.

    operation: Iceberg's name of it: `append`, `overwrite`, `replace` or `delete`.
    removed_bytes: of the files that it removed from the table; older snapshots still refer to them.
    """

    snapshot_id: int
    parent_id: int | None
    committed_at: datetime
    operation: str
    removed_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceObservation:
    """A branch or a tag, and its snapshot."""

    name: str
    kind: ReferenceKind
    snapshot_id: int


class StatisticsKind(StrEnum):
    """What a statistics file is about: how many distinct values columns have, or the rows and files of partitions."""

    COLUMNS = "columns"
    PARTITIONS = "partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsObservation:
    """A statistics file of one snapshot. columns: of which it says how many distinct values they have."""

    kind: StatisticsKind
    snapshot_id: int
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionObservation:
    """The data files of one partition at the newest snapshot.

    partition: `column=value` pairs joined by `/`; empty for an unpartitioned table.
    rows: as its data files have them. deleted_rows: those that delete files of single data files list, at most.
    shared_deletes: the rows that its other delete files list, which are of several data files, equality deletes among
        them, as far as they may apply to one of its data files; how many these hide, nothing says.
    has_newest_deletes: whether such a file is of the newest snapshot and may apply to data files with its number.
    small_files, small_bytes: the number of files below `TableObservation.small_file_bytes`, and their bytes.
    written_at: the newest commit of one of its live files, delete files among them, that was no rewrite; unset when
        that snapshot is expired.
    filter: that selects it alone, as Iceberg's JSON (`tables.manifest_reading`); empty for a table without partitions,
        unset where no filter does.
    """

    partition: str
    data_files: int
    data_bytes: int
    small_files: int
    small_bytes: int
    rows: int = 0
    deleted_rows: int = 0
    shared_deletes: int = 0
    has_newest_deletes: bool = False
    written_at: datetime | None = None
    filter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCounts:
    """The files of a snapshot as an earlier look counted them, when it found no partition with files to rewrite.

    The figures are those of `TableObservation`.
    """

    rows: int
    data_files: int
    data_bytes: int
    small_files: int
    delete_files: int
    manifests: int
    file_sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableObservation:
    """A table at one moment, read from metadata alone.

    observed_at: when the metadata was read.
    metadata_location: the metadata file that was read; equal locations mean the same state of the table.
    snapshot_id, committed_at: the newest snapshot of main; unset for a table without one.
    rows: in the data files of the newest snapshot, including rows that delete files hide.
    small_file_bytes: the size below which a data file was counted as small.
    manifests: of the newest snapshot, data and delete manifests together.
    snapshots: every listed snapshot, oldest first, whichever branch it is on.
    file_sizes: how many data files of the newest snapshot are below each of `FILE_SIZE_EDGES` and not below the edge
        before, and how many are larger.
    rewrite_limits: why its small files cannot be written again without Spark (`inspection.rewrite_limits`).
    table_uuid: of this table, and of no other one of its name. location: its folder.
    statistics: every statistics file that the metadata lists. is_partitioned: by its default spec.
    columns: those that the schema of the newest snapshot has.
    planning_ms: how long it took to read which files the table has, as each plan of a scan does; unset when they were
        not read.
    has_earlier_spec: whether a live data file is of an earlier partition spec.
    counted: set when the files were not read but are those of an earlier look; then there are no partitions.
    """

    table: str
    observed_at: datetime
    metadata_location: str
    snapshot_id: int | None
    committed_at: datetime | None
    rows: int
    small_file_bytes: int
    partitions: tuple[PartitionObservation, ...]
    delete_files: int
    manifests: int
    snapshots: tuple[SnapshotObservation, ...]
    references: tuple[ReferenceObservation, ...]
    file_sizes: tuple[int, ...] = ()
    rewrite_limits: tuple[str, ...] = ()
    table_uuid: str = ""
    has_earlier_spec: bool = False
    location: str = ""
    statistics: tuple[StatisticsObservation, ...] = ()
    is_partitioned: bool = False
    columns: tuple[str, ...] = ()
    planning_ms: int | None = None
    counted: FileCounts | None = None

    @property
    def main_line(self) -> tuple[SnapshotObservation, ...]:
        """The listed snapshots of main, newest first, up to the first one whose parent is not listed."""
        by_id = {snapshot.snapshot_id: snapshot for snapshot in self.snapshots}
        line: list[SnapshotObservation] = []
        current = self.snapshot_id
        while current is not None and current in by_id:
            line.append(by_id[current])
            current = by_id[current].parent_id
        return tuple(line)

    def rewrites_since(self, snapshot_id: int | None) -> tuple[tuple[int, int], ...]:
        """The rewrites on main after a snapshot, each as (parent, rewrite), oldest first.

        Other commits can be in between, so a rewrite is compared with its own parent and not with the first snapshot.
        """
        found = []
        for snapshot in self.main_line:
            if snapshot.snapshot_id == snapshot_id:
                break
            if snapshot.operation == "replace" and snapshot.parent_id is not None:
                found.append((snapshot.parent_id, snapshot.snapshot_id))
        return tuple(reversed(found))

    @property
    def data_files(self) -> int:
        """The data files of the newest snapshot."""
        return self.counted.data_files if self.counted else sum(one.data_files for one in self.partitions)

    @property
    def data_bytes(self) -> int:
        """The bytes of the data files of the newest snapshot."""
        return self.counted.data_bytes if self.counted else sum(one.data_bytes for one in self.partitions)

    @property
    def small_files(self) -> int:
        """The data files of the newest snapshot that are smaller than `small_file_bytes`."""
        return self.counted.small_files if self.counted else sum(one.small_files for one in self.partitions)
