"""Changes tables through pyiceberg: the one place that uses pyiceberg's private snapshot producers.

pyiceberg's own `commit_transaction` is not used: it retries a conflict by itself and applies the change to the newest
metadata without our check. In a race of two publishers that published a batch twice.

pyiceberg 0.12 writes all added files into one manifest of the table's default spec, whatever spec they were written
under; a file of another spec ended in an IndexError. The producers of this module write a manifest for every spec.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.expressions.visitors import manifest_evaluator
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import UpdateSnapshot, _FastAppendFiles, _OverwriteFiles, _SnapshotProducer
from pyiceberg.typedef import EMPTY_DICT, Record
from pyiceberg.types import DoubleType, FloatType, UUIDType
from requests import RequestException
from sqlalchemy.exc import DBAPIError

from sluice.publication.checked_commit import Answer, HeadTag, TableChange
from sluice.publication.data_files import commit_id, is_fresh, require_present
from sluice.publication.marks import Mark
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import require_table

_log = logging.getLogger(__name__)

Producer = _SnapshotProducer[Any]
"""Writes the manifests of one new snapshot. pyiceberg has no public name for it; its version is pinned."""

_OUTCOME_UNKNOWN = (CommitStateUnknownException, ServerError, ServiceUnavailableError, RequestException, DBAPIError)

_HANDLED = (CommitFailedException, BadRequestError, *_OUTCOME_UNKNOWN)

UNCERTAIN = (CommitFailedException, *_OUTCOME_UNKNOWN)
"""What a client gets for a commit that may have landed: only the table shows whether it has."""


@dataclass(frozen=True, slots=True)
class PyIcebergCommitter:
    """Changes the tables of a catalog of pyiceberg. A `TableCommitter`.

    read: the manifests that attempts at a REPLACE have read, by their path: they never change, and the next attempt
        reads only those that are new. Otherwise a writer that commits often wins every race.
    """

    catalog: Catalog
    read: dict[str, tuple[ManifestEntry, ...]] = field(default_factory=dict, compare=False, repr=False)

    def load(self, identifier: str) -> Table:
        """Load a table freshly."""
        return require_table(self.catalog, identifier)

    def prepare(self, table: Table, change: TableChange) -> PyIcebergCommit:
        """Look for the added files, and write the manifests of a change on exactly this metadata."""
        if not is_fresh(change.added_at, now=datetime.now(UTC)):
            require_present(table.io, change.added, table=".".join(table.name()), way_out=change.way_out)
        update = UpdateSnapshot(_SettledTransaction(table), io=table.io, snapshot_properties=dict(change.summary))
        producer = _producer_of(update, change, self.read)
        if change.writer:
            producer.commit_uuid = commit_id(change.writer)
        updates, requirements = producer._commit()  # the public `commit` would send it, and retry
        snapshot = next(update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate))
        number = snapshot.sequence_number or table.metadata.next_sequence_number()
        return PyIcebergCommit(
            catalog=self.catalog,
            table=table,
            updates=(
                *updates,
                *_beside(change, snapshot_id=snapshot.snapshot_id, sequence_number=number),
                *_tag(table, change.tag, now_ms=snapshot.timestamp_ms),
            ),
            requirements=(AssertTableUUID(uuid=table.metadata.table_uuid), *requirements),
            snapshot_id=snapshot.snapshot_id,
            sequence_number=number,
            producer=producer,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PyIcebergCommit:
    """One commit, ready to be sent once. A `PreparedCommit`."""

    catalog: Catalog
    table: Table
    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]
    snapshot_id: int
    sequence_number: int
    producer: Producer

    def send(self) -> Answer:
        """Send the commit once. After an error of the network or inside the catalog the answer is UNKNOWN."""
        name = ".".join(self.table.name())
        try:
            with catalog_refusals(f"commit to {name}", but_not=_HANDLED):
                self.catalog.commit_table(self.table, self.requirements, self.updates)
        except CommitFailedException as refusal:
            _log.debug("%s: the commit was refused: %s", name, refusal)
            return Answer.REFUSED
        except (BadRequestError, ValueError) as refusal:
            # A commit on another branch raised the table's sequence number while main stayed. SeaweedFS answers 400 to
            # that and pyiceberg's own catalogs raise ValueError; it is a conflict like any other.
            if "sequence number" not in str(refusal).lower():
                raise
            return Answer.REFUSED
        except _OUTCOME_UNKNOWN as error:
            _log.warning("%s: the answer to a commit was lost: %s", name, type(error).__name__)
            return Answer.UNKNOWN
        return Answer.LANDED

    def discard(self) -> None:
        """Delete the manifests of a commit that has not landed and never will."""
        self.producer._clean_all_uncommitted()


def _beside(change: TableChange, *, snapshot_id: int, sequence_number: int) -> tuple[TableUpdate, ...]:
    """What the commit changes beside the new snapshot."""
    properties = dict(change.properties)
    if change.mark is not None and change.output is not None:
        mark = Mark.set_to(change.mark, snapshot_id=snapshot_id, sequence_number=sequence_number)
        properties[change.output.mark_property] = mark.text()
    updates: list[TableUpdate] = []
    if change.expired:
        updates.append(RemoveSnapshotsUpdate(snapshot_ids=sorted(change.expired)))
    if properties:
        updates.append(SetPropertiesUpdate(updates=properties))
    return tuple(updates)


def _tag(table: Table, tag: HeadTag | None, *, now_ms: int) -> tuple[TableUpdate, ...]:
    """The tag on the head that is replaced. Iceberg counts its age from the commit of its snapshot and not from its own
    creation, so that the head's age is added.
    """
    head = table.current_snapshot()
    if tag is None or head is None:
        return ()
    keeps_ms = max(0, now_ms - head.timestamp_ms) + round(tag.keeps.total_seconds() * 1000)
    return (
        SetSnapshotRefUpdate(
            ref_name=tag.name,
            type="tag",
            snapshot_id=head.snapshot_id,
            max_ref_age_ms=keeps_ms,
            max_snapshot_age_ms=None,
            min_snapshots_to_keep=None,
        ),
    )


class _SettledTransaction(Transaction):
    """A transaction on the table's own metadata: pyiceberg's copies all of it, history included, at each access."""

    @property
    def table_metadata(self) -> TableMetadata:
        return self._table.metadata


def _producer_of(update: UpdateSnapshot, change: TableChange, read: dict[str, tuple[ManifestEntry, ...]]) -> Producer:
    if change.operation == Operation.APPEND:
        kind_of_append = _CleanAppendUnderAnySpec if change.cleans else _AppendUnderAnySpec
        return _adding(kind_of_append(**_arguments_of(update.fast_append())), change.added)
    kind = _ReplaceUnderAnySpec if change.operation == Operation.REPLACE else _OverwriteUnderAnySpec
    producer = kind(**{**_arguments_of(update.overwrite()), "operation": change.operation})
    if isinstance(producer, _ReplaceUnderAnySpec):
        producer.read = read
    metadata = update._transaction.table_metadata
    specs = [metadata.specs()[spec_id] for spec_id in {file.spec_id for file in change.removed}]
    if any(spec.is_unpartitioned() or _has_unordered_values(spec, metadata.schema()) for spec in specs):
        # pyiceberg searches the removed files in manifests that may hold their partitions; without this predicate it
        # would search no manifest of an unpartitioned table, and too few of one that is partitioned by a uuid.
        producer.delete_by_predicate(AlwaysTrue())
    for file in change.removed:
        producer.delete_data_file(file)
    return _adding(producer, change.added)


def _has_unordered_values(spec: PartitionSpec, schema: Schema) -> bool:
    """Whether a manifest's bounds say nothing about the partitions in it: writers in Java order a uuid by its halves as
    signed numbers, and -0.0 below 0.0; pyiceberg orders neither like that.
    """
    kinds = (part.field_type for part in spec.partition_type(schema).fields)
    return any(isinstance(kind, (UUIDType, FloatType, DoubleType)) for kind in kinds)


def data_files_of(table: Table, partitions: Collection[Record]) -> list[DataFile]:
    """The live data files of some partitions of a table's default spec. Only manifests that may hold them are read.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    newest, spec = table.current_snapshot(), table.spec()
    if newest is None or not partitions:
        return []
    names = [part.name for part in spec.fields]
    may_match = Transaction(table)._build_partition_predicate(set(partitions), names)
    may_hold = manifest_evaluator(spec, table.schema(), may_match, case_sensitive=True)
    are_all_read = _has_unordered_values(spec, table.schema())
    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        return [
            entry.data_file
            for manifest in newest.manifests(table.io)
            if manifest.content == ManifestContent.DATA
            and manifest.partition_spec_id == spec.spec_id
            and (are_all_read or may_hold(manifest))
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            if entry.data_file.partition in partitions
        ]


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
        counted = update_snapshot_summaries(
            # pyiceberg counts no REPLACE, whose totals are those of an overwrite.
            summary=Summary(operation=Operation.OVERWRITE, **collector.build(), **snapshot_properties),
            previous_summary=previous.summary if previous is not None else None,
        )
        return Summary(operation=self._operation, **counted.additional_properties)


class _AppendUnderAnySpec(_UnderAnySpec, _FastAppendFiles):
    """A fast append."""


class _CleanAppendUnderAnySpec(_AppendUnderAnySpec):
    """A fast append after which no manifest lists a removed file."""

    def _existing_manifests(self) -> list[ManifestFile]:
        return [self._clean(manifest) for manifest in super()._existing_manifests()]

    def _clean(self, manifest: ManifestFile) -> ManifestFile:
        if manifest.deleted_files_count == 0:
            return manifest
        if manifest.content != ManifestContent.DATA:
            raise ValueError(f"{manifest.manifest_path} lists delete files, which are not written again.")
        with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
            for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=True):
                writer.add_entry(_again(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id))
        return writer.to_manifest_file()


class _OverwriteUnderAnySpec(_UnderAnySpec, _OverwriteFiles):
    """An overwrite."""


class _ReplaceUnderAnySpec(_OverwriteUnderAnySpec):
    """An overwrite that reads no manifest twice, whichever attempt has read it."""

    read: dict[str, tuple[ManifestEntry, ...]]

    def _deleted_entries(self) -> list[ManifestEntry]:
        found = [
            entry
            for manifest in self._of_parent()
            for entry in self._entries_of(manifest)
            if entry.data_file in self._deleted_data_files
        ]
        deleted = [_again(entry, ManifestEntryStatus.DELETED, self.snapshot_id) for entry in found]
        self._validate_required_deletes(deleted)
        return deleted

    def _existing_manifests(self) -> list[ManifestFile]:
        return [kept for manifest in self._of_parent() for kept in self._kept_of(manifest)]

    def _kept_of(self, manifest: ManifestFile) -> Iterator[ManifestFile]:
        entries = self._entries_of(manifest)
        kept = [entry for entry in entries if entry.data_file not in self._deleted_data_files]
        if len(kept) == len(entries):
            yield manifest
        elif kept:
            with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
                for entry in kept:
                    writer.add_entry(_again(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id))
            yield writer.to_manifest_file()

    def _of_parent(self) -> list[ManifestFile]:
        parent = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id or 0)
        return parent.manifests(self._io) if parent is not None else []

    def _entries_of(self, manifest: ManifestFile) -> tuple[ManifestEntry, ...]:
        """The live entries of a manifest of data files."""
        if manifest.content != ManifestContent.DATA:
            return ()
        if manifest.manifest_path not in self.read:
            self.read[manifest.manifest_path] = tuple(manifest.fetch_manifest_entry(self._io, discard_deleted=True))
        return self.read[manifest.manifest_path]


def _again(entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


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
