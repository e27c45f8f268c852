"""How far a shadow reads: exactly as far as the stream has read, batch by batch.

Rows that a shadow has read and the stream has not would become visible by the swap, which is an overwrite, and streams
that read the appended rows of the table would never get them. So each batch of a shadow is planned with an end of its
own, at the offsets of the stream's mark or before them, and Spark runs a planned batch as it is. The batches are as
large as the limits of the inputs allow.

What it does not do: it divides neither the files that one snapshot of a table added, nor those of one batch of files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog

from sluice.backfill.observe_backfill import published_batch
from sluice.checkpoints.compatibility import SOURCES
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.source_declarations import FilesSource, IcebergSource, KafkaSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import UnpublishableError
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import find_generation
from sluice.publication.marks import load_target_state
from sluice.refresh.observe_refresh import changed_inputs, refreshed_output
from sluice.settings import Settings
from sluice.sources.iceberg_positions import BEGINNING, StreamOffset, TableStep, stream_offset_of
from sluice.sources.source_identities import replaced_inputs

_LOG_OFFSET = "logOffset"
NO_ENTRY = -1

Offset = Any
"""The offset of a source, as its JSON text has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowBound:
    """How far the stream has read.

    offsets: by source, of the batch of its mark. checkpoint: of its generation, with its sources in order.
    """

    offsets: Mapping[str, Offset]
    checkpoint: str
    sources: tuple[str, ...]

    def of(self, source: str) -> Offset | None:
        """The end for a source of the query; an input that is read twice has two, and maybe had one."""
        return self.offsets.get(source, self.offsets.get(input_of(source)))


def input_of(source: str) -> str:
    """The input that a source of a query reads; the second source of an input is `<input> (2)`."""
    return source.split(" (")[0]


def observe_bound(catalog: Catalog, ledger: Ledger, stream: LoadedStream, settings: Settings) -> ShadowBound | None:
    """How far a stream has read; none when its inputs were changed since, so that this says nothing of them.

    Raises
    ------
    UnpublishableError: when neither the table nor the ledger has the offsets of the newest published batch, or an input
        was created again, so that they are those of another one.
    DeliveryError, LakehouseError, LedgerError: when the mark, the table or the ledger cannot be read.
    """
    generation, output = find_generation(ledger, stream.name), refreshed_output(stream.declaration)
    state = load_target_state(catalog, output)
    position = state.position(output)
    if generation is None or changed_inputs(stream.declaration, generation.fingerprint):
        return None
    if another := replaced_inputs(stream.declaration, generation.identities, settings, catalog):
        raise UnpublishableError(
            f"{'; '.join(another.values())}. The offsets up to which a refresh of {stream.name} reads are those of "
            "the old one.",
            next_step=f"Continue the stream at the new one first: `sluice stream continue {stream.name}`.",
        )
    published = published_batch(ledger, state, output, position)
    if published is None or position.generation != generation.generation:
        raise UnpublishableError(
            f"Neither {output.target} nor the ledger has the offsets of batch {position.generation}:{position.batch} "
            f"of {stream.name}, up to which its refresh is to read.",
            next_step="The next batch of the stream says them: repeat the command then.",
        )
    return ShadowBound(
        offsets=published.end_offsets,
        checkpoint=generation.checkpoint,
        sources=tuple(generation.fingerprint.get(SOURCES, "").split(", ")),
    )


def next_of_topics(
    at: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]], *, most: int | None
) -> Offset | None:
    """The next end in topics; none when all is read.

    Parameters
    ----------
    at: the next offset to read, by topic and partition; a partition that is left out begins with 0.
    end: where the stream continues. most: how many offsets a batch may have; unset: all of them.
    """
    left = {
        (topic, number): max(0, int(last) - int(at.get(topic, {}).get(number, 0)))
        for topic, numbers in end.items()
        for number, last in numbers.items()
    }
    total = sum(left.values())
    if total == 0:
        return None
    share = 1.0 if most is None else min(1.0, most / total)
    return {
        topic: {
            number: int(last) - left[topic, number] + _part(left[topic, number], share)
            for number, last in numbers.items()
        }
        for topic, numbers in end.items()
    }


def _part(offsets: int, share: float) -> int:
    """A share of the offsets of a partition, at least one of them, so that each batch reads on."""
    return min(offsets, max(1, int(offsets * share))) if offsets else 0


def next_of_files(at: Offset | None, end: Offset, *, is_limited: bool) -> Offset | None:
    """The next end in the log of files; none when all is read. is_limited: whether the batches of the input are."""
    read = NO_ENTRY if at is None else int(at[_LOG_OFFSET])
    last = int(end[_LOG_OFFSET])
    if read >= last:
        return None
    return {_LOG_OFFSET: read + 1 if is_limited else last}


def next_of_table(
    at: StreamOffset, end: StreamOffset, history: Sequence[TableStep], source: IcebergSource
) -> StreamOffset | None:
    """The next end in a table; none when all is read.

    Parameters
    ----------
    at: where the next batch starts. history: of the table, newest first.

    Raises
    ------
    UnpublishableError: when the history does not have the snapshot of the end.
    """
    places = {step.snapshot_id: place for place, step in enumerate(history)}
    if end.snapshot_id == BEGINNING:
        return None
    if end.snapshot_id not in places:
        raise UnpublishableError(
            f"The history of {source.table} does not have snapshot {end.snapshot_id} any more, up to which the stream "
            "has read.",
            next_step="Let the stream read on, and repeat the command.",
        )
    if _is_read(at, end, history, places):
        return None
    start = places.get(at.snapshot_id, len(history) - 1)
    files = rows = 0
    for place in range(start, places[end.snapshot_id], -1):
        step = history[place]
        if not step.is_append or (place == start and step.is_read_by(at)):
            continue
        files, rows = files + step.appended_files, rows + step.appended_rows
        if _is_full(files, rows, source):
            return StreamOffset(snapshot_id=step.snapshot_id, position=step.appended_files, scan_all_files=False)
    return end


def _is_read(at: StreamOffset, end: StreamOffset, history: Sequence[TableStep], places: Mapping[int, int]) -> bool:
    if at.snapshot_id != end.snapshot_id:
        return at.snapshot_id in places and places[at.snapshot_id] < places[end.snapshot_id]
    return history[places[end.snapshot_id]].is_read_by(at) or (
        at.scan_all_files == end.scan_all_files and at.position >= end.position
    )


def _is_full(files: int, rows: int, source: IcebergSource) -> bool:
    most_files, most_rows = source.max_files_per_batch, source.max_rows_per_batch
    return (most_files is not None and files >= most_files) or (most_rows is not None and rows >= most_rows)


def next_ends(
    sources: Sequence[str],
    at: Sequence[Offset | None],
    bound: ShadowBound,
    declaration: StreamDeclaration,
    *,
    histories: Mapping[str, Sequence[TableStep]],
) -> tuple[Offset | None, ...] | None:
    """Where the next batch of a shadow ends in each source; none when all of them are read up to the bound.

    Parameters
    ----------
    sources: the source of each place in the query. at: where the next batch starts, by place; none: at the beginning.
    histories: of the tables that are read, by name, newest first.
    """
    found = tuple(
        _next_end(name, offset, bound.of(name), declaration, histories)
        for name, offset in zip(sources, at, strict=True)
    )
    if all(end is None for end in found):
        return None
    return tuple(offset if end is None else end for offset, end in zip(at, found, strict=True))


def _next_end(
    name: str,
    at: Offset | None,
    end: Offset | None,
    declaration: StreamDeclaration,
    histories: Mapping[str, Sequence[TableStep]],
) -> Offset | None:
    if end is None:
        return None
    match declaration.inputs[input_of(name)].declared_source.source:
        case KafkaSource() as source:
            return next_of_topics(at or {}, end, most=source.max_offsets_per_batch)
        case FilesSource() as source:
            return next_of_files(at, end, is_limited=source.max_files_per_batch is not None)
        case IcebergSource() as source:
            start, last = stream_offset_of(at), stream_offset_of(end)
            if start is None or last is None:
                return None
            found = next_of_table(start, last, histories[source.table], source)
            return None if found is None else json.loads(found.text())
    raise AssertionError(f"{name} is no source that a refresh reads")


def require_not_beyond(
    sources: Sequence[str],
    at: Sequence[Offset | None],
    bound: ShadowBound,
    declaration: StreamDeclaration,
    *,
    histories: Mapping[str, Sequence[TableStep]],
) -> None:
    """Require that a shadow has read nothing that the stream has not read. Parameters as of `next_ends`.

    Raises
    ------
    UnpublishableError: with the input and the offsets.
    """
    for name, offset in zip(sources, at, strict=True):
        end = bound.of(name)
        if offset is not None and end is not None and _is_beyond(name, offset, end, declaration, histories):
            raise UnpublishableError(
                f"The shadow has read input {name} further than the stream: up to {json.dumps(offset)}, and the stream "
                f"up to {json.dumps(end)}.",
                next_step="Let the stream read on and repeat the command, or give the refresh up: `--abandon`.",
            )


def _is_beyond(
    name: str,
    at: Offset,
    end: Offset,
    declaration: StreamDeclaration,
    histories: Mapping[str, Sequence[TableStep]],
) -> bool:
    match declaration.inputs[input_of(name)].declared_source.source:
        case KafkaSource():
            return any(
                int(last) > int(end.get(topic, {}).get(number, 0))
                for topic, numbers in at.items()
                for number, last in numbers.items()
            )
        case FilesSource():
            return int(at[_LOG_OFFSET]) > int(end[_LOG_OFFSET])
        case IcebergSource() as source:
            start, last = stream_offset_of(at), stream_offset_of(end)
            return start is not None and last is not None and _is_behind_in(histories[source.table], last, start)
    return False


def _is_behind_in(history: Sequence[TableStep], end: StreamOffset, at: StreamOffset) -> bool:
    """Whether an offset has rows that another one has not."""
    places = {step.snapshot_id: place for place, step in enumerate(history)}
    if at.snapshot_id not in places or end.snapshot_id not in places:
        return False
    newer, older = places[at.snapshot_id], places[end.snapshot_id]
    if newer == older:
        return not history[older].is_read_by(end) and at.position > end.position
    return any(step.appended_files for step in history[newer:older])


def tables_of(sources: Sequence[str], declaration: StreamDeclaration) -> Iterator[str]:
    """The Iceberg tables that the sources of a query read."""
    for name in dict.fromkeys(map(input_of, sources)):
        source = declaration.inputs[name].declared_source.source
        if isinstance(source, IcebergSource):
            yield source.table
