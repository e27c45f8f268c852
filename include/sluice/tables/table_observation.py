"""What an Iceberg table's metadata says of it: files, manifests, snapshots and the names that keep snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class ReferenceKind(StrEnum):
    """What a name of a snapshot is: a branch moves with commits, a tag stays. Both are safe from expiry."""

    BRANCH = "branch"
    TAG = "tag"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotObservation:
    """One snapshot that the table's metadata still lists.

    operation: `append`, `overwrite`, `replace` or `delete`, in Iceberg's words.
    publication_key: the batch it delivered, `<stream>:<generation>:<batch>`; unset when no stream of ours wrote it.
    """

    snapshot_id: int
    parent_id: int | None
    committed_at: datetime
    operation: str
    publication_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceObservation:
    """A branch or a tag, and the snapshot it keeps."""

    name: str
    kind: ReferenceKind
    snapshot_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionObservation:
    """The data files of one partition at the newest snapshot.

    partition: `column=value` pairs joined by `/`; empty for an unpartitioned table.
    small_files, small_bytes: the files below the size from which on a file counts as full-grown, and their bytes.
    """

    partition: str
    data_files: int
    data_bytes: int
    small_files: int
    small_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableObservation:
    """A table at one moment, read from metadata alone.

    observed_at: when the metadata was read.
    metadata_location: the metadata file that was read: two observations of one location are of the same state.
    snapshot_id, committed_at: the newest snapshot of main; unset for a table without one.
    rows: as the newest snapshot's summary counts them; rows hidden by delete files are still in it.
    small_file_bytes: the size below which a data file was counted as small.
    manifests: of the newest snapshot, data and delete manifests together.
    snapshots: every listed snapshot, oldest first, whichever branch it is on.
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

    @property
    def main_line(self) -> tuple[SnapshotObservation, ...]:
        """The snapshots of main that are still listed, newest first, up to the first one whose parent is gone."""
        by_id = {snapshot.snapshot_id: snapshot for snapshot in self.snapshots}
        line: list[SnapshotObservation] = []
        current = self.snapshot_id
        while current is not None and current in by_id:
            line.append(by_id[current])
            current = by_id[current].parent_id
        return tuple(line)

    @property
    def data_files(self) -> int:
        """The data files of the newest snapshot."""
        return sum(partition.data_files for partition in self.partitions)

    @property
    def data_bytes(self) -> int:
        """The bytes of the data files of the newest snapshot."""
        return sum(partition.data_bytes for partition in self.partitions)

    @property
    def small_files(self) -> int:
        """The data files of the newest snapshot that are smaller than `small_file_bytes`."""
        return sum(partition.small_files for partition in self.partitions)
