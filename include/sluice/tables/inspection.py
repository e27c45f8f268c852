"""Observes a table through its metadata alone, without a JVM and without opening a data file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from pyiceberg.manifest import DataFile, DataFileContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from sluice.ledger.records.stream_batch import PUBLICATION_KEY
from sluice.tables.catalog import catalog_refusals
from sluice.tables.table_observation import (
    PartitionObservation,
    ReferenceKind,
    ReferenceObservation,
    SnapshotObservation,
    TableObservation,
)

READERS = 8
"""How many manifests are read in parallel: enough to hide an object store's latency, few for a small machine."""


def observe_table(table: Table, *, name: str, small_file_bytes: int, now: datetime) -> TableObservation:
    """Read the files and snapshots of a table from its newest metadata.

    Parameters
    ----------
    table: freshly loaded from the catalog.
    name: `<namespace>.<table>`.
    small_file_bytes: a data file of fewer bytes counts as small.
    now: the time of the observation.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    newest = table.current_snapshot()
    with catalog_refusals(f"read the manifests of {name}"):
        manifests = newest.manifests(table.io) if newest else []
        files = _live_files(table, manifests)
    data = [(partition, file) for partition, file in files if file.content == DataFileContent.DATA]
    return TableObservation(
        table=name,
        observed_at=now,
        metadata_location=table.metadata_location,
        snapshot_id=newest.snapshot_id if newest else None,
        committed_at=_time(newest.timestamp_ms) if newest else None,
        rows=sum(file.record_count for _, file in data),
        small_file_bytes=small_file_bytes,
        partitions=_partitions(data, small_file_bytes),
        delete_files=len(files) - len(data),
        manifests=len(manifests),
        snapshots=tuple(
            _snapshot(seen) for seen in sorted(table.snapshots(), key=lambda seen: seen.sequence_number or 0)
        ),
        references=_references(table),
    )


def _live_files(table: Table, manifests: Iterable[ManifestFile]) -> list[tuple[str, DataFile]]:
    """Every live file of the manifests, with its partition as a path."""
    specs, schema = table.specs(), table.schema()

    def read(manifest: ManifestFile) -> list[tuple[str, DataFile]]:
        spec = specs[manifest.partition_spec_id]
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        return [(spec.partition_to_path(entry.data_file.partition, schema), entry.data_file) for entry in entries]

    with ThreadPoolExecutor(READERS) as pool:
        return [found for files in pool.map(read, manifests) for found in files]


def _partitions(data: Iterable[tuple[str, DataFile]], small_file_bytes: int) -> tuple[PartitionObservation, ...]:
    sizes: dict[str, list[int]] = defaultdict(list)
    for partition, file in data:
        sizes[partition].append(file.file_size_in_bytes)
    return tuple(
        PartitionObservation(
            partition=partition,
            data_files=len(found),
            data_bytes=sum(found),
            small_files=sum(size < small_file_bytes for size in found),
            small_bytes=sum(size for size in found if size < small_file_bytes),
        )
        for partition, found in sorted(sizes.items())
    )


def _snapshot(snapshot: Snapshot) -> SnapshotObservation:
    summary = snapshot.summary
    return SnapshotObservation(
        snapshot_id=snapshot.snapshot_id,
        parent_id=snapshot.parent_snapshot_id,
        committed_at=_time(snapshot.timestamp_ms),
        operation=summary.operation.value if summary else "unknown",
        publication_key=summary.additional_properties.get(PUBLICATION_KEY) if summary else None,
        removed_bytes=int(summary.additional_properties.get("removed-files-size", 0)) if summary else 0,
    )


def _references(table: Table) -> tuple[ReferenceObservation, ...]:
    kinds = {SnapshotRefType.BRANCH: ReferenceKind.BRANCH, SnapshotRefType.TAG: ReferenceKind.TAG}
    return tuple(
        ReferenceObservation(name=name, kind=kinds[seen.snapshot_ref_type], snapshot_id=seen.snapshot_id)
        for name, seen in sorted(table.refs().items())
    )


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
