"""Finds the streams that have read beyond where the main of a table is to stand, and what takes each of them back; and
those that look the table up, of which nothing shows what they have found."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice.checkpoints.checkpoint_layout import METADATA, OFFSETS, log_files, offsets_of
from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.declarations.source_declarations import IcebergSource
from sluice.positions.rewind_target import RewoundTable
from sluice.positions.stream_position import StreamPosition, Witness
from sluice.sources.iceberg_positions import snapshot_of


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
