"""The values: what each witness of a position says, what is known of the batches around it, and the end offsets of a
batch as the offset log has them, line by line, and as tables and ledger do, by source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from uuid import NAMESPACE_URL, uuid5

from sluice.checkpoints.checkpoint_layout import (
    COMMITS,
    METADATA,
    OFFSETS,
    CheckpointContents,
    log_files,
    query_id_in,
    replayed_batches,
    replayed_through,
)
from sluice.checkpoints.compatibility import SOURCES, STATE_MEANING, STATE_OPERATORS
from sluice.ledger.generations import GenerationObservation
from sluice.ledger.recorded_checks import CheckpointObservation
from sluice.publication.chain import MarkPosition
from sluice.publication.marks import UNNAMED_SOURCE
from sluice.publication.staged_batch import StagedOutput, canonical_offsets
from sluice.sources.iceberg_positions import stream_offset_of
from sluice.sources.source_identities import NONE_KNOWN, Identities, Replaced


def canonical_end(texts: Sequence[str | None], sources: Sequence[str]) -> str:
    """The offsets of an entry of the offset log, which has one for each source.

    Parameters
    ----------
    texts: as the sources write them; none for a source without an offset.
    sources: the input of each source, in Spark's order.
    """
    offsets: dict[str, str | None] = dict.fromkeys(sources)
    for index, text in enumerate(texts):
        offsets[sources[index] if index < len(sources) else f"{UNNAMED_SOURCE}{index}"] = text
    return canonical_offsets(offsets)


def reads_within_snapshot(ends: Sequence[str | None], following: Sequence[str | None]) -> bool:
    """Whether a batch continues in a snapshot that the one before has begun to read file by file. Spark would plan
    other files behind the same offset. A batch that reads files one by one never ends in a later snapshot: the plans of
    a continuation stay within one.

    Parameters
    ----------
    ends, following: where the two batches end, source by source; empty where that is unknown.
    """
    return any(
        first is not None
        and then is not None
        and first.scan_all_files
        and first.snapshot_id == then.snapshot_id
        and first != then
        and first.position <= then.position
        for first, then in zip(map(stream_offset_of, ends), map(stream_offset_of, following), strict=False)
    )


def source_lines(ends: str, sources: tuple[str, ...]) -> tuple[str | None, ...] | None:
    """The offsets of a batch as the lines of its entry; none when their order is unknown.

    Parameters
    ----------
    ends: from `canonical_end`. sources: in Spark's order.
    """
    offsets = json.loads(ends)
    names = (*sources, *(f"{UNNAMED_SOURCE}{place}" for place in range(len(sources), len(offsets))))
    if set(names) != set(offsets):
        return None
    return tuple(_line(offsets[name]) for name in names)


def _line(offset: object) -> str | None:
    """An offset as its source writes it: text as it is, JSON as Spark's and Iceberg's sources order it."""
    if offset is None or isinstance(offset, str):
        return offset
    text = json.dumps(offset, separators=(",", ":"))
    position = stream_offset_of(text)
    return text if position is None else position.text()


_STATIC = "static"
"""The folder of a checkpoint with the copies of tables of databases, below it by input: `BATCH-…` is read from that
batch on."""


class Witness(StrEnum):
    """Who remembers the position of a stream. MARK: its tables, by their marks, snapshots and staged batches."""

    MARK = "mark"
    LEDGER = "ledger"
    CHECKPOINT = "checkpoint"
    SOURCES = "sources"


class Agreement(StrEnum):
    """How a witness stands to the others.

    BEHIND: it does not know what the others know. AHEAD: it knows what the others have lost.
    DIVERGED: it knows something else in the same place. REPLACED: it is another thing of the same name.
    DAMAGED: it is lost, or cannot be read any more. UNKNOWN: it did not answer, and nothing is concluded from that.
    """

    AGREES = "agrees"
    BEHIND = "behind"
    AHEAD = "ahead"
    DIVERGED = "diverged"
    REPLACED = "replaced"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionFinding:
    """What one witness says beside the others.

    message: for a person. next_step: the one command or thing to do; empty while it agrees.
    """

    witness: Witness
    agreement: Agreement
    message: str
    next_step: str = ""

    @property
    def agrees(self) -> bool:
        """Whether nothing is to be done about it."""
        return self.agreement is Agreement.AGREES

    def __str__(self) -> str:
        return f"{self.witness} {self.agreement}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWitness:
    """One output as its target and its staging table show it.

    position: how far it is published; unset without a mark, and while there is a problem.
    newest_waiting: the newest batch that is visible or waits behind the mark.
    adopted: where persons have set the mark on main as it was, after it was set back.
    lost: the file that is gone without which nothing can be read in its staging table; empty while it can be. Nothing
        counts as staged there then.
    problem, next_step: why the position cannot be read.
    is_declared: whether the stream still declares it. is_direct: whether Iceberg's own sink writes it, without a mark.
    """

    output: StagedOutput
    position: MarkPosition | None
    newest_waiting: int = -1
    adopted: tuple[MarkPosition, ...] = ()
    lost: str = ""
    problem: str = ""
    next_step: str = ""
    is_declared: bool = True
    is_direct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBatch:
    """What the tables or the ledger know of a batch.

    starts, ends: from `canonical_offsets`; starts are unset where only those of several batches together are known.
    rows: its input rows, where known; state_rows: those of the state behind it. planned_at: at about that time.
    token: of the run that staged it, where the tables have it. is_recorded: whether the ledger has it.
    """

    number: int
    ends: str
    starts: str | None = None
    watermark: datetime | None = None
    rows: int | None = None
    state_rows: int | None = None
    planned_at: datetime | None = None
    token: int | None = None
    is_recorded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedSource:
    """A source table whose main does not lead on from where the stream stands. is_expired: snapshots are gone that it
    has not read; otherwise main was rolled back, or replaced. waits: the table, where main was rolled back behind the
    mark of who writes it, so that it has to be adopted first; empty otherwise."""

    input: str
    is_expired: bool
    sentence: str
    waits: str = ""

    def __str__(self) -> str:
        return f"input {self.input}: {self.sentence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """What the witnesses of a stream say.

    generation: the newest one of the ledger; unset when it knows none.
    newest_begun: the newest generation that has begun, where outputs have no mark that would show it; otherwise 0.
    checkpoint: where the checkpoint of the newest generation lies that the ledger or a mark knows. contents: its files;
        unset when its storage does not answer, or that of its copies where they are looked for.
    health: what a check of these alone finds.
    tables: one for each output that is published by Sluice and has been opened.
    batches: those of the newest generation that are known, by number.
    identities: the ids of what it reads and writes as they are, where they are compared or written back.
    replaced: what has its name and another id. moved: the sources that do not lead on from where the stream stands.
    unknown: why a witness did not answer.
    is_live: whether a driver runs: then the witnesses move while they are read.
    has_other_outputs: whether something is delivered that no mark shows. remembers_batches: whether it knows a batch by
        its number. repeating: the outputs that do not: what is read again comes to them a second time.
    own_memory: the inputs whose sources keep in the checkpoint what they have read, beside the offsets.
    puts_files_away: whether files of an input are deleted or archived once the batch behind theirs begins.
    has_static_inputs: whether it reads inputs as they are at each batch.
    has_copies: whether copies of the checkpoint are there, which only a query with state has. They are looked for where
        the ledger does not know whether it keeps state.
    back_from: the newest batch that is known, where a person takes the stream back to this position; unset otherwise.
        What was planned behind the position does not count then.
    """

    stream: str
    generation: GenerationObservation | None
    checkpoint: str
    contents: CheckpointContents | None
    newest_begun: int = 0
    health: CheckpointObservation | None = None
    tables: tuple[TableWitness, ...] = ()
    batches: Mapping[int, KnownBatch] = field(default_factory=dict, hash=False)
    identities: Identities = field(default_factory=lambda: NONE_KNOWN, hash=False)
    replaced: tuple[Replaced, ...] = ()
    moved: tuple[MovedSource, ...] = ()
    unknown: Mapping[Witness, str] = field(default_factory=dict, hash=False)
    is_live: bool = False
    has_other_outputs: bool = False
    remembers_batches: bool = False
    repeating: tuple[str, ...] = ()
    own_memory: tuple[str, ...] = ()
    puts_files_away: bool = False
    has_static_inputs: bool = False
    has_copies: bool = False
    back_from: int | None = None

    @property
    def number(self) -> int:
        """The newest generation that the ledger or a mark knows, or has begun; 0 without any."""
        recorded = 0 if self.generation is None else self.generation.generation
        return max(
            (recorded, self.newest_begun, *(one.position.generation for one in self.tables if one.position is not None))
        )

    @property
    def opened(self) -> tuple[TableWitness, ...]:
        """The outputs in which the newest generation is open. The others follow at the next start."""
        return tuple(one for one in self.tables if one.position is not None and one.position.generation == self.number)

    @property
    def done(self) -> int | None:
        """The newest batch that is visible or staged in every output; unset while no output shows it, -1 before the
        first."""
        return min((one.newest_waiting for one in self.opened), default=None)

    @property
    def rolled_back_direct(self) -> str:
        """The table of Iceberg's own sink that does not show what the checkpoint has committed; empty without one."""
        if self.done is None or self.committed <= self.done:
            return ""
        return next((one.output.target for one in self.opened if one.is_direct), "")

    def is_another_since(self, batch: int, token: int) -> bool:
        """Whether a batch may be another one than it was when a run with a token ended: persons have set tables back
        behind it since, and no earlier run has staged it."""
        known = self.batches.get(batch)
        if known is not None and known.token is not None and known.token <= token:
            return False
        moves = [at for one in self.opened for at in one.adopted if at.generation == self.number]
        return any(at.batch < batch and at.token >= token for at in moves)

    @property
    def newest_visible(self) -> int:
        """The newest batch that is visible in some output."""
        return max((one.position.batch for one in self.opened if one.position is not None), default=-1)

    @property
    def newest_held(self) -> int | None:
        """The newest batch that an output shows or all of them have; unset while no output shows it."""
        return None if self.done is None else max(self.done, self.newest_visible)

    @property
    def newest_taken_back(self) -> int:
        """The newest batch that the ledger has recorded and no table holds any more; -1 without any, and while a table
        that was rolled back waits for a person, who may bring it back."""
        if any(one.problem for one in self.tables):
            return -1
        newest = max((number for number, one in self.batches.items() if one.is_recorded), default=-1)
        return newest if self.newest_held is not None and newest > self.newest_held else -1

    @property
    def planned(self) -> int:
        """The newest batch that the checkpoint has planned, or that the next run takes its state through; -1 without
        any."""
        files = self.contents.files if self.contents is not None else ()
        return max((replayed_through(files), *log_files(files, OFFSETS)))

    @property
    def left_to_replay(self) -> int:
        """The newest batch that is left to be run again for the state alone; -1 without any."""
        return max(replayed_batches(self.contents.files if self.contents is not None else ()), default=-1)

    @property
    def committed(self) -> int:
        """The newest batch that the checkpoint has committed; -1 without any."""
        return max(log_files(self.contents.files, COMMITS), default=-1) if self.contents is not None else -1

    def end_of(self, batch: int) -> str | None:
        """Where a batch ends, as tables or ledger know it; none where they do not. From `canonical_offsets`."""
        if (known := self.batches.get(batch)) is not None:
            return known.ends
        following = self.batches.get(batch + 1)
        return None if following is None else following.starts

    @property
    def query_id(self) -> str:
        """The id of the query: as the ledger knows it, or the checkpoint, or otherwise a new one, always the same."""
        is_known = self.generation is not None and self.generation.generation == self.number
        known = self.generation.query_id if self.generation is not None and is_known else None
        texts = self.contents.texts if self.contents is not None else {}
        return known or query_id_in(texts.get(METADATA, "")) or str(uuid5(NAMESPACE_URL, self.checkpoint))

    def lost_input(self, batch: int) -> str:
        """What a batch has read that is gone once the next one has begun, for half a sentence; empty where nothing is.
        Spark reads a file that is gone as an empty one, and a table of a database as it is now."""
        if self.puts_files_away:
            return "the files that it has read are put away once the next batch begins"
        copies: dict[str, list[int]] = {}
        for one in self.contents.files if self.contents is not None else ():
            folder, _, rest = one.path.partition("/")
            table, _, made_for = rest.partition("/")
            number = made_for.partition("-")[0]
            if folder == _STATIC and number.isdecimal():
                copies.setdefault(table, []).append(int(number))
        gone = [table for table, numbers in sorted(copies.items()) if min(numbers) > batch]
        return f"the copy of {gone[0]} that it has read is gone" if gone else ""

    def as_behind(self, batch: int) -> StreamPosition:
        """The position as if the tables held nothing behind a batch."""

        def at(one: TableWitness) -> TableWitness:
            if one not in self.opened or one.position is None:
                return one
            return replace(
                one, position=replace(one.position, batch=batch, end_offsets_digest=None), newest_waiting=batch
            )

        return replace(self, tables=tuple(map(at, self.tables)))

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """To what the ledger knows the newest generation to be bound; empty where it does not."""
        is_known = self.generation is not None and self.generation.generation == self.number
        return self.generation.fingerprint if self.generation is not None and is_known else {}

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of the query in Spark's order, as far as the ledger knows them; empty otherwise."""
        known = self.fingerprint.get(SOURCES, "")
        return tuple(known.split(", ")) if known else ()

    @property
    def keeps_state(self) -> bool:
        """Whether the query keeps state, by what the ledger, the checkpoint or its copies know."""
        known = {} if self.generation is None else self.generation.fingerprint
        files = self.contents.files if self.contents is not None else ()
        is_known = self.has_copies or known.get(STATE_OPERATORS) or known.get(STATE_MEANING)
        return bool(is_known) or any(seen.path.startswith("state/") for seen in files)
