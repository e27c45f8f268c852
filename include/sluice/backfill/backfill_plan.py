"""Decides whether an interval of a stream can be backfilled now, from what was observed; says why when it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sluice.backfill.intervals import Interval
from sluice.backfill.read_bounds import InputBound, ShortenedLookup
from sluice.operations import NO_FEWER, OperationPlan, OperationVerb, Refusal, RefusalReason, Stake, steps_of
from sluice.publication.chain import MarkPosition
from sluice.publication.staged_batch import StagedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBatch:
    """The newest published batch of an output: how far its sources were read when the plan was made.

    end_offsets: by input. watermark: of the batch; unset without one.
    """

    end_offsets: Mapping[str, Any]
    watermark: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReader:
    """A stream that reads the target: the rows appended to it, or the whole table as a static input.

    on_overwrite: of its declaration, `fail` or `skip`; a static input has none. follows: whether it is backfilled right
        after its source.
    """

    stream: str
    input: str
    on_overwrite: Literal["fail", "skip"] | None
    follows: bool = False

    @property
    def meaning(self) -> str:
        """What an overwrite of the interval means to this reader."""
        if self.on_overwrite == "fail":
            return f"{self.stream} (input {self.input}) stops at the overwrite, as its `on_overwrite: fail` asks for"
        if self.on_overwrite is None:
            return f"{self.stream} (input {self.input}) looks rows up in it: what it wrote before keeps the former ones"
        if self.follows:
            return f"{self.stream} (input {self.input}) leaves the overwrite out, and its own interval is replaced next"
        return (
            f"{self.stream} (input {self.input}) leaves the overwrite out: its own tables keep what they hold of the "
            "interval until it is backfilled too"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillObservation:
    """What was seen before a backfill, all of the target in one load.

    head: the snapshot of the target from which everything else was read; unset for an empty table.
    position: how far the stream has published; unset without a mark.
    behind: the inputs of which the open generation has read less than the one before.
    other_writers: the other streams that write into the target, or have written.
    published: the newest published batch; unset when its offsets are not known.
    lookups: the static inputs whose tables have removed old rows.
    """

    output: StagedOutput
    interval: Interval
    margin: timedelta
    head: int | None
    position: MarkPosition | None
    published: PublishedBatch | None
    sources: tuple[InputBound, ...] = ()
    behind: tuple[str, ...] = ()
    readers: tuple[TargetReader, ...] = ()
    other_writers: tuple[str, ...] = ()
    lookups: tuple[ShortenedLookup, ...] = ()

    @property
    def upto(self) -> tuple[int, int] | None:
        """The generation and the batch of the mark; none without one."""
        return None if self.position is None else (self.position.generation, self.position.batch)


BackfillPlan = OperationPlan[BackfillObservation]


def plan_backfill(seen: BackfillObservation) -> BackfillPlan:
    """Decide whether an interval can be backfilled now."""
    return OperationPlan(
        verb=OperationVerb.BACKFILL,
        subject=seen.output.stream,
        part=seen.interval.spoken,
        seen=seen,
        steps=steps_of(*_sentences(seen)),
        refusals=tuple(_refusals(seen)),
        at_stake=Stake.ROWS,
        evidence={
            "table": seen.output.target,
            "interval": seen.interval,
            "snapshot_id": seen.head,
            "inputs": {source.input: source.what for source in seen.sources},
            "readers": [f"{reader.stream}, input {reader.input}" for reader in seen.readers],
        },
    )


def _sentences(seen: BackfillObservation) -> Iterator[str]:
    yield f"Replace the rows of {seen.interval.spoken} in {seen.output.target}."
    for source in seen.sources:
        if not source.problem:
            part = f"where {source.column} is in the interval" if source.column is not None else "whole"
            yield f"Read input {source.input}: {source.what}, {part}."
    for lookup in seen.lookups:
        if not _is_missed(lookup, seen):
            yield f"Look rows up as they are now: {lookup}."
    closes_at, watermark = seen.interval.end + seen.margin, seen.published.watermark if seen.published else None
    if watermark is not None and watermark < closes_at:
        yield (
            f"Refuse it when the stream keeps windows or joins: they are incomplete, because its watermark is "
            f"{watermark:%Y-%m-%d %H:%M}."
        )
    yield NO_FEWER
    for reader in seen.readers:
        if reader.on_overwrite != "fail":  # one that stops is a refusal
            yield f"Reader {reader.meaning}."


def _refusals(seen: BackfillObservation) -> Iterator[Refusal]:
    stream = seen.output.stream
    if seen.position is None or seen.position.end_offsets_digest is None:
        yield Refusal(
            reason=RefusalReason.NOTHING_PUBLISHED,
            sentence=f"{stream} has published no batch in its open generation.",
            next_step="Start the stream and wait for its first batch.",
        )
    elif seen.published is None:
        yield Refusal(
            reason=RefusalReason.OFFSETS_UNKNOWN,
            sentence=f"The offsets of batch {seen.position.generation}:{seen.position.batch} of {stream} are "
            f"neither in {seen.output.target} nor in the ledger.",
            next_step="Wait for the next batch of the stream.",
        )
    else:
        yield from _unreadable_sources(seen)
        yield from _missed_lookups(seen)
        yield from _reset_generation(seen, seen.position.generation)
    if seen.other_writers:
        yield Refusal(
            reason=RefusalReason.OTHER_WRITERS,
            sentence=f"{seen.output.target} also holds rows of {', '.join(seen.other_writers)}, which a backfill of "
            f"{stream} would delete.",
            next_step="Backfill only tables that one stream writes.",
        )
    yield from readers_that_stop(seen.readers)


def _unreadable_sources(seen: BackfillObservation) -> Iterator[Refusal]:
    for source in seen.sources:
        if source.problem:
            yield Refusal(
                reason=RefusalReason.SOURCE_GONE if source.is_gone else RefusalReason.SOURCE_UNREADABLE,
                sentence=f"Input {source.input}: {source.problem}",
                next_step=source.way_out or "Try again after the next batch of the stream.",
            )


def _is_missed(lookup: ShortenedLookup, seen: BackfillObservation) -> bool:
    """Whether rows as old as those of the interval are gone from a table that it looks up."""
    return seen.interval.start - seen.margin < lookup.removed.before


def _missed_lookups(seen: BackfillObservation) -> Iterator[Refusal]:
    """The rows of the interval would be replaced by ones without the matches that they have."""
    for lookup in seen.lookups:
        if _is_missed(lookup, seen):
            yield Refusal(
                reason=RefusalReason.SOURCE_GONE,
                sentence=f"The interval has rows as old as those that are gone: {lookup}.",
                next_step="Choose an interval that begins, with its margin, after "
                f"{lookup.removed.before:%Y-%m-%d %H:%M:%S} UTC, or declare the `tag`, `snapshot_id` or `as_of` of "
                f"a state of {lookup.table} that still has them.",
            )


def _reset_generation(seen: BackfillObservation, generation: int) -> Iterator[Refusal]:
    if seen.behind:
        yield Refusal(
            reason=RefusalReason.GENERATION_BEHIND,
            sentence=f"Generation {generation} of {seen.output.stream} has read less of {', '.join(seen.behind)} than "
            f"the one before it: rows that {seen.output.target} holds would be lost.",
            next_step="Wait until the stream has read as far again.",
        )


def readers_that_stop(readers: Iterable[TargetReader]) -> Iterator[Refusal]:
    """Why the readers of a table block that it is overwritten."""
    for reader in readers:
        if reader.on_overwrite == "fail":
            yield Refusal(
                reason=RefusalReason.READER_STOPS,
                sentence=f"{reader.meaning}.",
                next_step=f"Declare `on_overwrite: skip` for the input {reader.input} of {reader.stream}.",
            )
