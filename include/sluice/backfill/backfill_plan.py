"""Decides whether an interval of a stream can be backfilled now, from what was observed; says why when it cannot.

After a reset a stream reads again what it had read. Until it is there, its mark says less than its table holds: an
interval that is computed from what the mark says would lose the rows that only the former generation has read.

Files are not compared: each generation counts its own. The brake for fewer rows remains for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.backfill.intervals import Interval
from sluice.backfill.read_bounds import InputBound, ShortenedLookup
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.source_declarations import IcebergSource, KafkaSource
from sluice.operations import NO_FEWER, OperationPlan, OperationVerb, Refusal, RefusalReason, Stake, steps_of
from sluice.publication.chain import MarkPosition
from sluice.publication.staged_batch import StagedOutput
from sluice.tables.declared_tables import require_table


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


def inputs_behind(
    catalog: Catalog, stream: LoadedStream, *, before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[str]:
    """The inputs that were read less far, by their names.

    Parameters
    ----------
    before, now: the end offsets of the newest batches of the former and of the open generation, by input.

    Raises
    ------
    LakehouseError: when a table cannot be loaded.
    """
    for name, declared in stream.declaration.inputs.items():
        source, earlier = declared.declared_source.source, before.get(name)
        if not declared.is_stream or not isinstance(earlier, Mapping):
            continue
        match source:
            case IcebergSource():
                table = require_table(catalog, source.table)
                if is_table_behind(table, before=earlier, now=now.get(name)):
                    yield name
            case KafkaSource() if are_topics_behind(before=earlier, now=now.get(name)):
                yield name


def is_table_behind(table: Table, *, before: Mapping[str, Any], now: object) -> bool:
    """Whether an offset of a table lies before another one, in the history of main. An earlier offset whose snapshot is
    expired lies before what can be read at all."""
    earlier = table.snapshot_by_id(int(before["snapshot_id"]))
    if earlier is None:
        return False
    if not isinstance(now, Mapping):
        return True
    if int(now["snapshot_id"]) == earlier.snapshot_id:
        return _is_less_of(earlier, before=before, now=now)
    place = table.snapshot_by_id(int(now["snapshot_id"]))
    while place is not None and place.snapshot_id != earlier.snapshot_id:
        parent = place.parent_snapshot_id
        place = table.snapshot_by_id(parent) if parent is not None else None
    return place is None


def _is_less_of(snapshot: Snapshot, *, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether less of one snapshot was read. A scan counts all files of the table, and other offsets the new ones: what
    a scan has read of these is known when it is complete."""
    scans, did_scan = bool(now.get("scan_all_files")), bool(before.get("scan_all_files"))
    read, was_read = int(now.get("position", 0)), int(before.get("position", 0))
    if scans == did_scan:
        return read < was_read
    files = snapshot.summary.additional_properties.get("total-data-files") if snapshot.summary is not None else None
    return scans and (files is None or read < int(files))


def are_topics_behind(*, before: Mapping[str, Any], now: object) -> bool:
    """Whether a partition of a topic was read less far."""
    topics = now if isinstance(now, Mapping) else {}
    return any(
        int(topics.get(topic, {}).get(partition, 0)) < int(end)
        for topic, partitions in before.items()
        for partition, end in partitions.items()
    )
