"""Observes how far each input of a stream can be read for a backfill, so that it sees exactly what the stream had read.

A table is read at a snapshot, files by the log of the checkpoint, topics by their offsets (`read_bounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from sluice.backfill.backfill_plan import PublishedBatch
from sluice.backfill.intervals import Interval
from sluice.backfill.old_input_rows import without_old_rows, without_rejected
from sluice.backfill.read_bounds import (
    FilesBound,
    InputBound,
    TableBound,
    TopicBound,
    bound_of_topics,
)
from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.source_declarations import FilesSource, IcebergSource, KafkaSource
from sluice.ledger.batches import BatchObservation, rejections_in
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import find_generation, find_numbered_generation
from sluice.settings import FilesConnection, KafkaConnection, ObjectStoreSettings, Settings
from sluice.sources.source_identities import (
    NONE_KNOWN,
    Identities,
    another_before,
    find_replaced,
    input_identities,
    replaced_inputs,
    topic_name,
)
from sluice.sources.unread_input import (
    RESTORE_FILES,
    changed_phrase,
    files_read_up_to,
    gone_phrase,
    present_files,
    written_again,
)
from sluice.tables.declared_tables import require_table
from sluice.tables.table_observation import removed_rows

_BEGINNING = -1
"""The snapshot id of an offset before the first snapshot. Source: Iceberg's `StreamingOffset.START_OFFSET`."""

_READ_AGAIN = "The offsets of the stream are those of the old one: continue or reset it first."


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedInputs:
    """The inputs of a stream from which rows arrive.

    generation, batch: of the mark. wide: the interval with its margin.
    """

    catalog: Catalog
    ledger: Ledger
    stream: LoadedStream
    settings: Settings
    generation: int
    batch: int
    wide: Interval

    def bounds(self, published: PublishedBatch) -> Iterator[InputBound]:
        """How far each is read.

        Raises
        ------
        LakehouseError, CheckpointError, LedgerError: when a source, a table or the ledger cannot be reached.
        SettingsError: when the deployment lacks a connection.
        """
        rejections = rejections_in(self.ledger, self.stream.name, generation=self.generation)
        another = self._replaced()
        for name in self.stream.declaration.inputs:
            bound = self._bound(name, published)
            if bound is not None and not bound.problem and not _is_read_evenly(name, published):
                problem = "it is read twice, and not equally far."
                bound = replace(bound, problem=problem)
            if bound is not None and name in another:
                bound = replace(bound, problem=f"{another[name]}.", is_gone=True, way_out=_READ_AGAIN)
            if bound is not None:
                yield without_rejected(bound, rejections, is_of=self._is_of(name))

    def change(self, planned: InputBound, published: PublishedBatch) -> str | None:
        """What has changed an input since it was read for a plan, in a phrase; none when nothing has. Of topics,
        nothing can but that another one has the name.

        Parameters
        ----------
        planned, published: of the plan, as `bounds` has them.

        Raises
        ------
        LakehouseError, CheckpointError, LedgerError: when a source, a table or the ledger cannot be reached.
        SettingsError: when the deployment lacks a connection.
        """
        declared = self.stream.declaration.inputs[planned.input]
        match planned, declared.declared_source.source:
            case TableBound(), IcebergSource() as source:
                offset = published.end_offsets.get(planned.input)
                return changed_table(planned, offset, require_table(self.catalog, source.table))
            case FilesBound(), FilesSource() as source:
                root, store = self._root(source), self.settings.object_store
                return changed_files(planned, present_files(source, root=root, object_store=store))
            case TopicBound(), KafkaSource() as source:
                known = self._identities(self.generation)
                replaced = find_replaced(known, input_identities(declared, self.settings, self.catalog))
                return "; ".join(map(str, replaced)) or self._followed(source, planned.ranges)
        return None

    def _followed(self, source: KafkaSource, topics: Iterable[str]) -> str | None:
        """A phrase for a topic whose new one the stream follows since a later batch than that of the mark, under the
        name of the one that this had read."""
        known = self._identities(self.generation)
        for name in (topic_name(source.connection, topic) for topic in topics):
            if self.batch < another_before(name, then=known, seen=known):
                return f"{name} was deleted and created again, and the stream has published nothing of the new one yet"
        return None

    def _replaced(self) -> Mapping[str, str]:
        """Why inputs are not any more what the generation of the mark has read."""
        known = self._identities(self.generation)
        return replaced_inputs(self.stream.declaration, known, self.settings, self.catalog)

    def _identities(self, number: int) -> Identities:
        generation = find_numbered_generation(self.ledger, self.stream.name, number)
        return NONE_KNOWN if generation is None else generation.identities

    def _is_of(self, name: str) -> Callable[[BatchObservation, str], bool]:
        """Whether the offsets of a batch of an input are those of a topic as the generation of the mark reads it."""
        source = self.stream.declaration.inputs[name].declared_source.source
        now = self._identities(self.generation)

        def is_of(batch: BatchObservation, topic: str) -> bool:
            assert isinstance(source, KafkaSource)  # noqa: S101  # only topics have offsets that are left out
            then, place = self._identities(batch.key.generation), topic_name(source.connection, topic)
            return batch.key.batch >= another_before(place, then=then, seen=now)

        return is_of

    def _bound(self, name: str, published: PublishedBatch) -> InputBound | None:
        backfill, declared = self.stream.declaration.backfill, self.stream.declaration.inputs[name]
        if not declared.is_stream:
            return None
        column = backfill.reads.get(name) if backfill is not None else None
        offset = published.end_offsets.get(name)
        match declared.declared_source.source:
            case IcebergSource() as source:
                table = require_table(self.catalog, source.table)
                return without_old_rows(
                    bound_of_table(offset, table, input_name=name, column=column), table, wide=self.wide
                )
            case KafkaSource() as source:
                return self._topics(name, source, offset, column)
            case FilesSource() as source:
                return self._files(name, source, published, column)
        return None  # a declaration with another source is refused

    def _topics(self, name: str, source: KafkaSource, offset: object, column: str | None) -> TopicBound:
        from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load

        topics = KafkaTopics(self.settings.connection(source.connection, KafkaConnection))
        bound = bound_of_topics(offset, topics, source, input_name=name, column=column, wide=self.wide)
        followed = self._followed(source, offset if isinstance(offset, Mapping) else ())
        return bound if followed is None else TopicBound(input=name, column=column, problem=f"{followed}.")

    def _files(self, name: str, source: FilesSource, published: PublishedBatch, column: str | None) -> FilesBound:
        generation = find_generation(self.ledger, self.stream.name)
        if generation is None or generation.generation != self.generation:
            problem = "the files that the stream has read are not known before its next batch."
            return FilesBound(input=name, column=column, problem=problem)
        return bound_of_files(
            published.end_offsets.get(name),
            source,
            input_name=name,
            column=column,
            root=self._root(source),
            checkpoint=generation.checkpoint,
            object_store=self.settings.object_store,
        )

    def _root(self, source: FilesSource) -> str:
        return self.settings.connection(source.connection, FilesConnection).root


def _is_read_evenly(name: str, published: PublishedBatch) -> bool:
    """Whether an input that is joined with itself was read equally far both times; each has an offset of its own."""
    offsets = published.end_offsets
    return all(offsets[one] == offsets.get(name) for one in offsets if one.startswith(f"{name} ("))


def bound_of_table(offset: object, table: Table, *, input_name: str, column: str | None) -> TableBound:
    """The snapshot up to which a stream has read a table, from its end offset.

    An offset is a snapshot and a number of files that the snapshot added. When all of them were read, the stream had
    read the table at that snapshot; when none were, at the one before. Later snapshots that appended nothing belong to
    it: a backfill that corrected the source is one of them, and the stream may not have passed it yet. A correction
    behind rows that the stream has not read is a problem: without it, the result would be as wrong as the source was.

    Parameters
    ----------
    offset: the end offset of the newest published batch, as Iceberg's source writes it.
    column: the column by which only an interval is read.
    """
    name = ".".join(table.name())
    snapshot_id, problem = _snapshot_of(offset, table, name=name)
    if snapshot_id is not None:
        following = _since(table, snapshot_id)
        if following is None:
            return TableBound(input=input_name, table=name, column=column, problem=_no_way_back(name, snapshot_id))
        read = list(takewhile(lambda snapshot: not _appends(snapshot), following))
        snapshot_id = read[-1].snapshot_id if read else snapshot_id
        if (missed := next(filter(_corrects, following[len(read) :]), None)) is not None:
            snapshot_id, problem = (
                None,
                f"snapshot {missed.snapshot_id} corrected {name} after rows that the stream has not read yet.",
            )
    return TableBound(
        input=input_name,
        table=name,
        snapshot_id=snapshot_id,
        has_lost_rows=any(map(_shortens, table.metadata.snapshots)),
        has_expired_history=_has_expired_history(table),
        column=column,
        problem=problem,
    )


def changed_table(planned: TableBound, offset: object, table: Table) -> str | None:
    """What has changed the rows of an input since it was read for a plan, in a phrase; none when nothing has. Rows that
    were appended lie behind the position of the stream, and a compaction changes no row.

    Parameters
    ----------
    offset: the end offset of the plan. table: freshly loaded.
    """
    now = bound_of_table(offset, table, input_name=planned.input, column=planned.column)
    if now.problem:
        return now.problem.rstrip(".")
    if now.snapshot_id == planned.snapshot_id:
        return None
    later = (_since(table, planned.snapshot_id) if planned.snapshot_id is not None else None) or ()
    numbers = [snapshot.snapshot_id for snapshot in later]
    if now.snapshot_id not in numbers:
        return f"the history of {planned.table} does not lead back to snapshot {planned.snapshot_id}"
    corrected = next(filter(_corrects, later[: numbers.index(now.snapshot_id) + 1]), None)
    return None if corrected is None else f"snapshot {corrected.snapshot_id} corrected {planned.table}"


def _snapshot_of(offset: object, table: Table, *, name: str) -> tuple[int | None, str]:
    if not isinstance(offset, Mapping) or "snapshot_id" not in offset or offset["snapshot_id"] == _BEGINNING:
        return None, f"the stream has read nothing of {name} yet."
    snapshot = table.snapshot_by_id(int(offset["snapshot_id"]))
    if snapshot is None:
        return None, f"the snapshot {offset['snapshot_id']} of {name}, which the stream has read up to, is expired."
    added, position = _files_to_read(snapshot, offset), int(offset.get("position", 0))
    if position >= added:
        return snapshot.snapshot_id, ""
    if position == 0 and not offset.get("scan_all_files") and snapshot.parent_snapshot_id is not None:
        if table.snapshot_by_id(snapshot.parent_snapshot_id) is not None:
            return snapshot.parent_snapshot_id, ""
        return None, f"the snapshot of {name} that the stream has read up to is expired."
    return None, f"the stream has read {position} of the {added} files that snapshot {snapshot.snapshot_id} added."


def _no_way_back(name: str, snapshot_id: int) -> str:
    return (
        f"the history of {name} does not lead back to snapshot {snapshot_id}, which the stream has read up to: what "
        "changed its rows since is unknown, because snapshots are expired or the table was rolled back."
    )


def _has_expired_history(table: Table) -> bool:
    """Whether main begins with a snapshot whose parent is expired: what was removed before is unknown."""
    snapshot = table.current_snapshot()
    while snapshot is not None and snapshot.parent_snapshot_id is not None:
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id)
        if snapshot is None:
            return True
    return False


def _since(table: Table, snapshot_id: int) -> Sequence[Snapshot] | None:
    """The snapshots of main after one, oldest first; unset when main does not lead back to it."""
    later: list[Snapshot] = []
    snapshot = table.current_snapshot()
    while snapshot is not None and snapshot.snapshot_id != snapshot_id:
        later.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    return None if snapshot is None else tuple(reversed(later))


def _corrects(snapshot: Snapshot) -> bool:
    """Whether a snapshot has changed or removed rows that were there before, others than those that are too old."""
    summary = snapshot.summary
    if summary is None or removed_rows(summary.additional_properties) is not None:
        return False
    return summary.operation in (Operation.OVERWRITE, Operation.DELETE)


def _shortens(snapshot: Snapshot) -> bool:
    """Whether a snapshot has removed more rows than it brought. A compaction leaves out what was removed before."""
    if snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE:
        return False
    counts = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    removed = int(counts.get("deleted-records", 0)) + int(counts.get("added-position-deletes", 0))
    return removed > int(counts.get("added-records", 0)) or int(counts.get("added-equality-deletes", 0)) > 0


def _appends(snapshot: Snapshot) -> bool:
    summary = snapshot.summary
    return summary is None or (
        summary.operation is Operation.APPEND and int(summary.additional_properties.get("added-data-files", 0)) > 0
    )


def _files_to_read(snapshot: Snapshot, offset: Mapping[str, Any]) -> int:
    summary = snapshot.summary
    if summary is None:
        return 0
    if offset.get("scan_all_files"):
        return int(summary.additional_properties.get("total-data-files", 0))
    # A reader of appended rows leaves out what other operations added, or has stopped before them.
    is_append = summary.operation is Operation.APPEND
    return int(summary.additional_properties.get("added-data-files", 0)) if is_append else 0


def bound_of_files(
    offset: object,
    source: FilesSource,
    *,
    input_name: str,
    column: str | None,
    root: str,
    checkpoint: str,
    object_store: ObjectStoreSettings,
) -> FilesBound:
    """The files that a stream has read, from its end offset. One that is gone is a problem, because its rows would be
    missing, and so is one that was written again: the stream has not read what it holds now. With `on_changed: ignore`
    it is read as it is.

    Parameters
    ----------
    offset: of the newest published batch, as Spark's source writes it. root: the folder of the connection.
    checkpoint: of the generation of that batch.

    Raises
    ------
    CheckpointError: when a storage does not answer.
    """

    def without(problem: str) -> FilesBound:
        return FilesBound(input=input_name, column=column, problem=problem)

    def lost(problem: str, *, way_out: str) -> FilesBound:
        return FilesBound(input=input_name, column=column, problem=problem, is_gone=True, way_out=way_out)

    newest = offset.get("logOffset") if isinstance(offset, Mapping) else None
    if newest is None or int(newest) < 0:
        return without("the stream has read no file yet.")
    log = open_checkpoint_files(checkpoint, object_store)
    read = files_read_up_to(int(newest), log)
    if read is None:
        return without(f"the checkpoint {checkpoint} does not list the files of the newest published batch.")
    present = present_files(source, root=root, object_store=object_store)
    if gone := read - present.keys():
        return lost(f"{gone_phrase(gone)}.", way_out="Put them back under the same names; their rows would be missing.")
    files = {path: present[path] for path in sorted(read)}
    if source.on_changed == "fail" and (changed := written_again(files, log)):
        way_out = f"{RESTORE_FILES}; with `on_changed: ignore` the interval gets what the files hold now."
        return lost(f"{changed_phrase(changed)}.", way_out=way_out)
    return FilesBound(input=input_name, column=column, files=files)


def changed_files(planned: FilesBound, present: Mapping[str, FileObservation]) -> str | None:
    """Which files of a plan were written again or removed since it listed them, in a phrase; none when none was."""
    if gone := planned.files.keys() - present.keys():
        return gone_phrase(gone)
    changed = [path for path, seen in planned.files.items() if present[path] != seen]
    return changed_phrase(changed) if changed else None
