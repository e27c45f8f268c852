"""Looks whether the sources of a stream still have what it reads again, and lead on from where it stands.

| loss      | what was found                                                    | a rewind         | others   |
|-----------|-------------------------------------------------------------------|------------------|----------|
| REMOVED   | what comes behind the beginning was expired or removed            | refused          | refused  |
| MOVED     | the source was rolled back behind the beginning                   | refused          | refused  |
| WITHDRAWN | it was rolled back into what was read: that part is not there     | counted as lost  | refused  |
| UNKNOWN   | it does not answer                                                | refused          | refused  |
| UNSEEN    | sources of its kind are not looked at                             | said             | nothing  |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.declarations.source_declarations import FilesSource, IcebergSource, KafkaSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError, LakehouseError, SettingsError
from sluice.operations import Refusal, RefusalReason
from sluice.positions.repair_decision import CheckpointRepair, decide_repair
from sluice.positions.stream_position import MovedSource, StreamPosition
from sluice.publication.marks import rolled_back_marks
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice.sources.iceberg_positions import BEGINNING, history_of, stream_offset_of
from sluice.sources.input_gap import find_branch, find_gap
from sluice.sources.unread_input import files_read_up_to, gone_phrase, present_files, read_file_times
from sluice.tables.declared_tables import load_table, require_table


class LossKind(StrEnum):
    """How a source stands to what is read again of it, as the table above has it."""

    REMOVED = "removed"
    MOVED = "moved"
    WITHDRAWN = "withdrawn"
    UNKNOWN = "unknown"
    UNSEEN = "unseen"


NO_BEGINNING = frozenset({LossKind.REMOVED, LossKind.MOVED, LossKind.UNKNOWN})
"""Of these nothing can be read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLoss:
    """What an input does not have any more. rows: of those that were read; unset when their number is unknown."""

    input: str
    kind: LossKind
    sentence: str
    rows: int | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the rest can be read all the same."""
        return self.kind is LossKind.WITHDRAWN


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReach:
    """The sources of a stream. checkpoint: where they keep what they have read. tables: as they were loaded, once."""

    catalog: Catalog
    declaration: StreamDeclaration
    settings: Settings
    checkpoint: str
    tables: dict[str, Table] = field(default_factory=dict)

    def losses(self, starts: str, until: str | None = "") -> Iterator[InputLoss]:
        """What each input has lost behind an offset.

        Parameters
        ----------
        starts: by source, from `canonical_offsets`. until: how far was read; empty where that is not asked, unset where
            it is unknown.
        """
        offsets, ends = json.loads(starts), json.loads(until) if until else {}
        for name, declared in self.declaration.inputs.items():
            if not declared.is_stream or name not in offsets:
                continue
            look = self._look_of(declared.declared_source.source)
            try:
                yield from look(name, offsets[name], ends.get(name))
            except (LakehouseError, SettingsError, CheckpointError) as error:
                yield InputLoss(input=name, kind=LossKind.UNKNOWN, sentence=error.message)

    def is_of_table(self, loss: InputLoss) -> bool:
        """Whether the input is an Iceberg table, past a gap in whose history a stream is taken."""
        return isinstance(self.declaration.inputs[loss.input].declared_source.source, IcebergSource)

    def losses_of(self, written: CheckpointRepair | None) -> tuple[InputLoss, ...]:
        """What each input has lost of what a checkpoint has read again; nothing where nothing is."""
        if written is None or not written.reads_from:
            return ()
        return tuple(self.losses(written.reads_from, written.reads_until))

    def newest_reachable(self, seen: StreamPosition, *, before: int) -> int | None:
        """The newest batch of the tables from whose end everything can be read, to which the checkpoint can be taken
        back; none when there is none."""
        numbers = [one for one in seen.batches if one < before and one <= seen.newest_visible]
        for number in sorted(numbers, reverse=True):
            found = self.losses(seen.batches[number].ends)
            if not any(one.kind in NO_BEGINNING for one in found) and _can_stand_at(seen, number):
                return number
        return None

    def _look_of(self, source: object) -> Callable[[str, Any, Any], Iterator[InputLoss]]:
        match source:
            case KafkaSource():
                return lambda *offsets: self._of_topics(source, *offsets)
            case IcebergSource():
                return lambda *offsets: self._of_table(source, *offsets)
            case FilesSource():
                return lambda *offsets: self._of_files(source, *offsets)
        return _unseen

    def _of_topics(self, source: KafkaSource, name: str, start: Any, end: Any) -> Iterator[InputLoss]:
        from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load

        if start is None:
            return
        topics = KafkaTopics(self.settings.connection(source.connection, KafkaConnection))
        partitions = {topic: [int(one) for one in parts] for topic, parts in start.items()}
        if missing := sorted(partitions.keys() - topics.partitions_of(source).keys()):
            what = f"the topic {missing[0]} is" if len(missing) == 1 else f"the topics {', '.join(missing)} are"
            yield InputLoss(input=name, kind=LossKind.REMOVED, sentence=f"{what} not there any more")
            return
        bounds = topics.bounds_of(partitions, isolation="read_uncommitted")
        gone = behind = withdrawn = 0
        for topic, number, offset in _places(start):
            bound = bounds[topic][number]
            gone += max(0, bound.first - offset)
            behind += max(0, offset - bound.end)
            withdrawn += max(0, _offset_in(end, topic, number) - max(bound.end, offset))
        if behind:
            sentence = f"the topic ends {behind:,} records before it: records that were read are not there any more"
            yield InputLoss(input=name, kind=LossKind.MOVED, sentence=sentence)
        if gone:
            sentence = f"{gone:,} records behind it were removed from the topic"
            yield InputLoss(input=name, kind=LossKind.REMOVED, sentence=sentence, rows=gone)
        if withdrawn and not behind:
            sentence = f"the topic ends {withdrawn:,} records before what was read"
            yield InputLoss(input=name, kind=LossKind.WITHDRAWN, sentence=sentence, rows=withdrawn)

    def _of_table(self, source: IcebergSource, name: str, start: Any, end: Any) -> Iterator[InputLoss]:
        at, read = (stream_offset_of(json.dumps(offset)) for offset in (start, end))
        if at is None:
            return
        table = self._table(source.table)
        if branch := find_branch(table, name=source.table, position=at.snapshot_id):
            yield InputLoss(input=name, kind=LossKind.MOVED, sentence=str(branch), rows=branch.withdrawn_rows)
        elif gap := find_gap(table, name=source.table, position=at.snapshot_id):
            yield InputLoss(input=name, kind=LossKind.REMOVED, sentence=str(gap), rows=gap.rows)
        elif read is not None and read.snapshot_id not in {BEGINNING, *(one.snapshot_id for one in history_of(table))}:
            branch = find_branch(table, name=source.table, position=read.snapshot_id)
            why = str(branch) if branch else f"{source.table} does not lead to snapshot {read.snapshot_id} any more"
            rows = None if branch is None else branch.withdrawn_rows
            yield InputLoss(input=name, kind=LossKind.WITHDRAWN, sentence=why, rows=rows)

    def _table(self, name: str) -> Table:
        if name not in self.tables:
            self.tables[name] = require_table(self.catalog, name)
        return self.tables[name]

    def _of_files(self, source: FilesSource, name: str, start: Any, end: Any) -> Iterator[InputLoss]:
        """The log of a source has the files; which of two has one is not known."""
        folders = [
            one
            for one in self.declaration.inputs.values()
            if one.is_stream and isinstance(one.declared_source.source, FilesSource)
        ]
        newest = -1 if start is None else int(start["logOffset"])
        log = open_checkpoint_files(self.checkpoint, self.settings.object_store)
        before = files_read_up_to(newest, log) if newest >= 0 else frozenset[str]()
        if before is None or len(folders) > 1:
            yield from _unseen(name, start, end)
            return
        root = self.settings.connection(source.connection, FilesConnection).root
        present = present_files(source, root=root, object_store=self.settings.object_store)
        if gone := read_file_times(log).keys() - before - present.keys():
            yield InputLoss(input=name, kind=LossKind.REMOVED, sentence=gone_phrase(gone))


def refuse_gone_input(reach: SourceReach, seen: StreamPosition, written: CheckpointRepair) -> Iterator[Refusal]:
    """A refusal for each input that does not have any more, or may not have, what a checkpoint has read again."""
    stream = seen.stream
    for loss in reach.losses_of(written):
        if loss.kind is LossKind.UNSEEN:
            continue
        step = f"`sluice stream reset {stream} --dry-run` shows what can still be read."
        if loss.kind is LossKind.REMOVED and reach.is_of_table(loss):
            step = f"`sluice stream continue {stream} --leave-out --dry-run` shows what is given up. {step}"
        if loss.kind in (LossKind.MOVED, LossKind.WITHDRAWN):
            back = reach.newest_reachable(seen, before=written.stands_at + (loss.kind is LossKind.WITHDRAWN))
            if back is not None and not seen.has_other_outputs:  # of these nothing is taken back
                step = (
                    f"`sluice stream rewind {stream} --to-batch {back} --dry-run` shows what is lost where it goes "
                    "back to what its input still leads on from."
                )
        yield Refusal(
            reason=RefusalReason.SOURCE_GONE,
            sentence=f"A batch of {stream} has to be read again from its input {loss.input}: {loss.sentence}.",
            next_step=step,
        )


def _can_stand_at(seen: StreamPosition, batch: int) -> bool:
    return isinstance(decide_repair(seen.as_behind(batch)), CheckpointRepair)


def _unseen(name: str, _start: Any, _end: Any) -> Iterator[InputLoss]:
    yield InputLoss(input=name, kind=LossKind.UNSEEN, sentence="whether it still has all of that is not looked at")


def _places(offset: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, int, int]]:
    for topic, parts in offset.items():
        for partition, next_offset in parts.items():
            yield topic, int(partition), int(next_offset)


def _offset_in(offset: Any, topic: str, partition: int) -> int:
    return int((offset or {}).get(topic, {}).get(str(partition), 0))


def find_moved_sources(catalog: Catalog, declaration: StreamDeclaration, seen: StreamPosition) -> Iterator[MovedSource]:
    """The source tables whose main does not lead on from the end of the newest batch that every output has.

    A table that is another one by its id is not among them.

    Raises
    ------
    LakehouseError: when the catalog does not answer, or earlier metadata cannot be read.
    DeliveryError: when a mark on such a table cannot be read.
    """
    done = seen.batches.get(seen.done) if seen.done is not None else None
    ends = json.loads(done.ends) if done is not None else {}
    for name, declared in declaration.inputs.items():
        source = declared.declared_source.source if declared.is_stream else None
        position = stream_offset_of(json.dumps(ends.get(name))) if isinstance(source, IcebergSource) else None
        if not isinstance(source, IcebergSource) or position is None:
            continue
        table = None if _is_replaced(seen, source.table) else load_table(catalog, source.table)
        if table is None:
            continue
        branch = find_branch(table, name=source.table, position=position.snapshot_id)
        gap = None if branch else find_gap(table, name=source.table, position=position.snapshot_id)
        if branch is None and gap is None:
            continue
        waits = source.table if rolled_back_marks(table) else ""
        yield MovedSource(input=name, is_expired=branch is None, sentence=str(branch or gap), waits=waits)


def _is_replaced(seen: StreamPosition, table: str) -> bool:
    return any(one.is_input_table(table) for one in seen.replaced)
