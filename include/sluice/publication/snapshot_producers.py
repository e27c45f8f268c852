"""Makes the snapshots that publish: pyiceberg's producers, taught to add files under any spec of the table.

pyiceberg 0.12 writes all added files into one manifest of the table's default spec, whatever spec they were written
under; a file of another spec ended in an IndexError.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import TableProperties
from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update.snapshot import UpdateSnapshot, _FastAppendFiles, _OverwriteFiles, _SnapshotProducer
from pyiceberg.typedef import EMPTY_DICT

from sluice.publication.committing import Producer, ProducerOf


def appending(files: Iterable[DataFile]) -> ProducerOf:
    """A snapshot that adds files; none for an empty batch. `spec_id` of each is the target's."""
    added = tuple(files)

    def producer_of(update: UpdateSnapshot) -> Producer:
        return _adding(_AppendUnderAnySpec(**_arguments_of(update.fast_append())), added)

    return producer_of


def overwriting(*, removed: Iterable[DataFile], added: Iterable[DataFile]) -> ProducerOf:
    """A snapshot that takes files out and puts others in. The removed ones must be live in the table."""
    out, put = tuple(removed), tuple(added)

    def producer_of(update: UpdateSnapshot) -> Producer:
        producer = _OverwriteUnderAnySpec(**_arguments_of(update.overwrite()))
        # pyiceberg looks for the removed files only in manifests that the predicate may match, and works that out from
        # their partitions; for an unpartitioned table it would look in none.
        producer.delete_by_predicate(AlwaysTrue())
        for file in out:
            producer.delete_data_file(file)
        return _adding(producer, put)

    return producer_of


def removing(files: Iterable[DataFile]) -> ProducerOf:
    """A snapshot that takes files out, and is there even when there are none."""
    out = tuple(files)

    def producer_of(update: UpdateSnapshot) -> Producer:
        producer = _OverwriteUnderAnySpec(**{**_arguments_of(update.overwrite()), "operation": Operation.DELETE})
        producer.delete_by_predicate(AlwaysTrue())
        for file in out:
            producer.delete_data_file(file)
        return producer

    return producer_of


def _arguments_of(made: _SnapshotProducer[Any]) -> dict[str, Any]:
    return {
        "operation": made._operation,
        "transaction": made._transaction,
        "io": made._io,
        "branch": made._target_branch,
        "snapshot_properties": made.snapshot_properties,
    }


class _UnderAnySpec(_SnapshotProducer[Any]):
    """Writes a manifest for every spec among the added files, and counts each file under its own."""

    files_of_other_specs: tuple[DataFile, ...] = ()

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        spec_ids = sorted({file.spec_id for file in self.files_of_other_specs})
        written = [self._manifest_of(spec_id) for spec_id in spec_ids]
        return [*written, *super()._process_manifests(manifests)]

    def _manifest_of(self, spec_id: int) -> ManifestFile:
        with self.new_manifest_writer(self.spec(spec_id)) as writer:
            for file in self.files_of_other_specs:
                if file.spec_id == spec_id:
                    entry = ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self.snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                    writer.add(entry)
        return writer.to_manifest_file()

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        metadata = self._transaction.table_metadata
        schema, specs = metadata.schema(), metadata.specs()
        limit = metadata.properties.get(
            TableProperties.WRITE_PARTITION_SUMMARY_LIMIT, TableProperties.WRITE_PARTITION_SUMMARY_LIMIT_DEFAULT
        )
        collector = SnapshotSummaryCollector(partition_summary_limit=int(limit))
        for file in (*self._added_data_files, *self.files_of_other_specs):
            collector.add_file(data_file=file, partition_spec=_spec_of(file, specs), schema=schema)
        for file in self._deleted_data_files:
            collector.remove_file(data_file=file, partition_spec=_spec_of(file, specs), schema=schema)
        parent = self._parent_snapshot_id
        previous = metadata.snapshot_by_id(parent) if parent is not None else None
        return update_snapshot_summaries(
            summary=Summary(operation=self._operation, **collector.build(), **snapshot_properties),
            previous_summary=previous.summary if previous is not None else None,
        )


class _AppendUnderAnySpec(_UnderAnySpec, _FastAppendFiles):
    """A fast append."""


class _OverwriteUnderAnySpec(_UnderAnySpec, _OverwriteFiles):
    """An overwrite."""


def _spec_of(file: DataFile, specs: dict[int, PartitionSpec]) -> PartitionSpec:
    return specs[file.spec_id]


def _adding(producer: _UnderAnySpec, files: Iterable[DataFile]) -> Producer:
    default = producer._transaction.table_metadata.default_spec_id
    others = []
    for file in files:
        if file.spec_id == default:
            producer.append_data_file(file)
        else:
            others.append(file)
    producer.files_of_other_specs = tuple(others)
    return producer
