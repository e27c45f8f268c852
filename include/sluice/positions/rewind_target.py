"""Where main of a table has to stand so that it shows a stream up to a batch, what that hides, and from which readers.

How it works: the history of main says after each snapshot how far every output of the stream was published. The newest
one at which all of them stood at the batch is the goal, so that what others committed right behind the batch stays.
What main shows beyond it is the stream's own, or the rewind is refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.checkpoints.checkpoint_layout import METADATA, OFFSETS, log_files, offsets_of
from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.declarations.source_declarations import IcebergSource
from sluice.positions.adoption import AdoptedOutput, Adoption, AdoptionWay
from sluice.positions.rolled_back_table import HiddenCommit, hidden_commits, missing_commits, with_main_at
from sluice.positions.stream_position import StreamPosition, Witness
from sluice.publication.chain import MarkPosition
from sluice.publication.marks import (
    Mark,
    RolledBackMark,
    entries_of,
    history_of_main,
    position_in_history,
    read_mark,
    rolled_back_marks,
)
from sluice.publication.staged_batch import StagedOutput, read_summary
from sluice.sources.iceberg_positions import snapshot_of
from sluice.tables.table_observation import removed_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedReader:
    """A stream that has read rows which main will not show. batches: that have read some. rows: their input rows; unset
    when their number is unknown. back_to: its newest batch before them; unset when none is known."""

    stream: str
    table: str
    batches: tuple[int, ...]
    rows: int | None
    back_to: int | None

    def __str__(self) -> str:
        rows = "an unknown number of" if self.rows is None else f"{self.rows:,}"
        return (
            f"{self.stream} has read {self.table} beyond that, in batches {self.batches[0]} to {self.batches[-1]} with "
            f"{rows} rows"
        )

    @property
    def command(self) -> str:
        """What takes it back, or shows its ways."""
        if self.back_to is None:
            return f"sluice stream reset {self.stream} --dry-run"
        return f"sluice stream rewind {self.stream} --to-batch {self.back_to}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownReader:
    """A stream that reads the table, and does not show how far. problem: which witness did not answer, and why."""

    stream: str
    table: str
    problem: str

    def __str__(self) -> str:
        return f"Whether {self.stream} has read {self.table} beyond that is unknown: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewoundTable:
    """A table, and what takes it back. commits: main and the marks that are still to be set. goal: where main has to
    stand; unset where no snapshot shows the batch. foreign: hidden commits of rows, or of batches, that the stream has
    not made. left: outputs of other streams whose marks the goal would not hold. broken: those whose marks main does
    not hold now. missing: the commits of others that were taken out with these; unset where not all are listed.
    positions: where each output stands then."""

    table: Table
    name: str
    outputs: tuple[StagedOutput, ...]
    goal: Snapshot | None
    commits: Adoption | None = None
    foreign: tuple[HiddenCommit, ...] = ()
    left: tuple[StagedOutput, ...] = ()
    broken: tuple[StagedOutput, ...] = ()
    missing: tuple[HiddenCommit, ...] | None = ()
    positions: Mapping[str, MarkPosition] = field(default_factory=dict, hash=False)

    @property
    def hidden(self) -> tuple[HiddenCommit, ...]:
        """What readers do not see any more."""
        return () if self.commits is None else self.commits.hidden

    @property
    def hidden_ids(self) -> frozenset[int]:
        """The listed snapshots beyond where main will stand. One that was expired is not among them: it is older."""
        after = self.table if self.goal is None else with_main_at(self.table, self.goal)
        kept = {one.snapshot_id for one in history_of_main(after)}
        return frozenset(one.snapshot_id for one in self.table.snapshots() if one.snapshot_id not in kept)


def rewound(table: Table, outputs: Sequence[StagedOutput], *, generation: int, batch: int) -> RewoundTable:
    """What takes the outputs of a stream in one loaded table back to a batch.

    Raises
    ------
    DeliveryError: when a mark or the summary of a snapshot cannot be read.
    """
    goal = _goal(table, outputs, generation=generation, batch=batch)
    broken = tuple(one.output for one in rolled_back_marks(table))
    found = RewoundTable(table=table, name=outputs[0].target, outputs=tuple(outputs), goal=goal, broken=broken)
    if goal is None:
        return found
    then, hides = with_main_at(table, goal), hidden_commits(table, goal)
    return replace(
        found,
        commits=_commits(found, goal, hides),
        foreign=tuple(one for one in hides if not _is_own(table, one, outputs)),
        left=tuple(
            one.output for one in rolled_back_marks(then) if one.output not in outputs and one.output not in broken
        ),
        missing=missing_commits(table),
        positions={one.output: held for one in outputs if (held := position_in_history(then, one)) is not None},
    )


def _commits(found: RewoundTable, goal: Snapshot, hides: tuple[HiddenCommit, ...]) -> Adoption | None:
    """What sets main and the marks; none where they stand there."""
    table, then = found.table, with_main_at(found.table, goal)
    moves = tuple(one for output in found.outputs for one in _moved(then, output))
    is_there = goal.snapshot_id == table.metadata.current_snapshot_id
    if is_there and not moves:
        return None
    return Adoption(
        table=found.name,
        way=AdoptionWay.REREAD,
        uuid=str(table.metadata.table_uuid),
        head=table.metadata.current_snapshot_id,
        goal=None if is_there else goal.snapshot_id,
        hidden=hides,
        outputs=moves,
    )


def batch_at(table: Table, outputs: Sequence[StagedOutput], then: datetime) -> MarkPosition | None:
    """How far every output of a stream was published in a table at an instant; none when its history does not say."""
    at = next((one for one in history_of_main(table) if one.timestamp_ms <= then.timestamp() * 1000), None)
    found = [] if at is None else [position_in_history(with_main_at(table, at), one) for one in outputs]
    known = [one for one in found if one is not None]
    return min(known, key=lambda one: (one.generation, one.batch)) if found and len(known) == len(found) else None


def _goal(table: Table, outputs: Sequence[StagedOutput], *, generation: int, batch: int) -> Snapshot | None:
    """The newest snapshot of main at which every output stands at the batch, and no other batch is beyond it."""
    wanted = (generation, batch)
    for snapshot in history_of_main(table):
        then = with_main_at(table, snapshot)
        found = [position_in_history(then, one) for one in outputs]
        places = [(one.generation, one.batch) for one in found if one is not None]
        if len(places) < len(found) or any(place < wanted for place in places):
            return None
        if all(place == wanted for place in places):
            return snapshot
    return None


def _moved(then: Table, output: StagedOutput) -> Iterator[AdoptedOutput]:
    """The mark of an output that main will not lead to. then: the table with main where it will be."""
    mark = read_mark(then, stream=output.stream, output=output.output)
    held = position_in_history(then, output)
    if mark is None or held is None or not _is_beyond(then, mark, output):
        return
    found = RolledBackMark(output=output, mark=mark, problem="")
    yield AdoptedOutput(found=found, held=held, becomes=replace(held, token=mark.token), rows=None)


def _is_beyond(then: Table, mark: Mark, output: StagedOutput) -> bool:
    return any(one.output == output and one.mark == mark for one in rolled_back_marks(then))


def _is_own(table: Table, commit: HiddenCommit, outputs: Sequence[StagedOutput]) -> bool:
    """Whether a commit may be hidden: a batch of the stream, or nothing that anybody counts on. Old rows that come back
    go again with the next maintenance."""
    snapshot = table.snapshot_by_id(commit.snapshot_id)
    entries = {} if snapshot is None else entries_of(snapshot)
    summary = read_summary(entries)
    if summary is None:
        return not commit.rows or removed_rows(entries) is not None
    return any((summary.key.stream, summary.output) == (one.stream, one.output) for one in outputs)


def readers_of(declarations: Declarations, tables: Sequence[str], *, but: Collection[str]) -> Iterator[LoadedStream]:
    """The declared streams that read one of these tables batch by batch. but: are none of them."""
    for name, stream in sorted(declarations.streams.items()):
        if name not in but and any(reads(stream, one) for one in tables):
            yield stream


def reads(stream: LoadedStream, table: str) -> bool:
    """Whether a stream reads a table batch by batch."""
    sources = [one.declared_source.source for one in stream.declaration.inputs.values() if one.is_stream]
    return any(isinstance(one, IcebergSource) and one.table == table for one in sources)


def passed_reader(seen: StreamPosition, rewound: RewoundTable) -> PassedReader | UnknownReader | None:
    """What a reader has read of a table, or planned to, that main will not show; none when that is nothing."""
    if problem := seen.unknown.get(Witness.CHECKPOINT) or seen.unknown.get(Witness.MARK):
        return UnknownReader(stream=seen.stream, table=rewound.name, problem=problem)
    hidden = rewound.hidden_ids
    known, planned = _known(seen), _planned(seen)
    ends = {number: {*known.get(number, ()), *planned.get(number, ())} for number in {*known, *planned}}
    gone = sorted(number for number, snapshots in ends.items() if not hidden.isdisjoint(snapshots))
    if not gone:
        return None
    is_half_back = not _is_whole(seen) or (seen.done is not None and seen.committed > seen.done)
    newest = min(gone[0] - 1, seen.done) if is_half_back and seen.done is not None else gone[0] - 1
    before = [one for one in ends if one <= newest]
    rows = [seen.batches[one].rows if one in seen.batches else None for one in gone]
    counted = [one for one in rows if one is not None]
    is_whole = len(counted) == len(gone) and (bool(before) or gone[0] == 0)
    return PassedReader(
        stream=seen.stream,
        table=rewound.name,
        batches=tuple(gone),
        rows=sum(counted) if is_whole else None,
        back_to=max(before, default=None),
    )


def _known(seen: StreamPosition) -> Mapping[int, Collection[int]]:
    """The snapshots in which the batches end that the reader has. The ledger may know more, which were taken back; but
    where a rewind was interrupted, these are what is left of it."""
    newest = max(seen.planned, -1 if seen.done is None else seen.done)
    return {
        number: _snapshots(json.loads(one.ends).values())
        for number, one in seen.batches.items()
        if number <= newest or not _is_whole(seen)
    }


def _is_whole(seen: StreamPosition) -> bool:
    """Whether a driver could start; an interrupted rewind has taken the `metadata` away."""
    return seen.contents is None or METADATA in seen.contents.texts


def _planned(seen: StreamPosition) -> Mapping[int, Collection[int]]:
    """Those of its checkpoint. A snapshot has no other table, so it does not matter which line is of which source."""
    if seen.contents is None:
        return {}
    texts = {
        number: seen.contents.texts.get(one.path) for number, one in log_files(seen.contents.files, OFFSETS).items()
    }
    return {number: _snapshots(offsets_of(text)) for number, text in texts.items() if text}


def _snapshots(offsets: Iterator[object] | Collection[object]) -> frozenset[int]:
    return frozenset(found for one in offsets if (found := snapshot_of(one)) is not None)
