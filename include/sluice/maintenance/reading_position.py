"""Observes from where a stream would read its Iceberg inputs next, from the files of its checkpoint.

The offsets in a checkpoint have no names, and Spark repeats one for each place where the plan reads its source. With
several Iceberg inputs, the snapshot in an offset says which table it is of: ids of snapshots are random numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.checkpoints.checkpoint_files import CheckpointFiles
from sluice.checkpoints.checkpoint_layout import (
    COMMITS,
    HEADER_LINES,
    METADATA,
    OFFSETS,
    log_files,
    metadata_of,
    planned_time,
    query_id_in,
)
from sluice.checkpoints.health_decision import commit_problem, offset_problem
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError, DivergedError
from sluice.maintenance.table_readers import streamed_tables
from sluice.publication.chain import BEFORE_THE_FIRST_BATCH
from sluice.publication.direct_history import direct_batches, refuse_unknown_batch
from sluice.publication.mark_moves import former_positions
from sluice.publication.staged_batch import StagedOutput, staged_outputs
from sluice.publication.undeclared_outputs import load_output_tables
from sluice.sources.iceberg_positions import BEGINNING, StreamOffset, stream_offset_of
from sluice.sources.input_gap import knows_snapshot
from sluice.tables.declared_tables import load_table, require_table


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """Where a stream continues in one Iceberg input, as one line of its checkpoint has it; there may be several.

    line: the line of the entry in the offset log that holds the offset.
    planned: where the batch ends there that is planned next; none without one.
    """

    input: str
    table: str
    line: int
    offset: StreamOffset
    planned: StreamOffset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPosition:
    """Where a stream continues.

    batch: the newest batch that is done: committed in the checkpoint, or visible in every output of the stream.
    is_committed: whether it is committed.
    planned: the newest batch that is planned. query_id: of the checkpoint.
    unshown: the outputs of which nothing shows whether they have the planned batch, while that is not committed.
    offsets: the text of that batch's entry in the offset log.
    sources: the lines of Iceberg inputs in it; none for a stream without such an input.
    """

    batch: int
    is_committed: bool
    planned: int
    query_id: str
    offsets: str
    sources: tuple[SourcePosition, ...]
    unshown: tuple[str, ...] = ()

    def moved_to(self, offsets: Mapping[int, str], *, metadata: str | None = None) -> str:
        """The text of the entry with other offsets, by line.

        Parameters
        ----------
        metadata: takes the place of the metadata of the batch, where it is given.
        """
        lines = self.offsets.splitlines()
        if metadata is not None:
            lines[HEADER_LINES - 1] = metadata
        for line, offset in offsets.items():
            lines[line] = offset
        return "\n".join(lines)

    @property
    def metadata(self) -> str:
        """The metadata of the batch, as JSON."""
        return metadata_of(self.offsets)


def observe_reading_position(
    catalog: Catalog,
    checkpoint: CheckpointFiles,
    stream: StreamDeclaration,
    *,
    generation: int,
    begun_since: datetime | None = None,
    is_left: bool = False,
    gives_up: bool = False,
    delivered: int = BEFORE_THE_FIRST_BATCH,
) -> ReadingPosition | None:
    """Where a stream continues; none when no batch is done, or when it is unknown of which table an offset is. A stream
    without an Iceberg input has no such offset.

    Parameters
    ----------
    begun_since: for a checkpoint that is left: since when a batch of the generation may be delivered; none while no run
        has begun in it, and a continuation has planned its batch.
    is_left: whether the checkpoint is left. A start has Iceberg's own sink skip a batch that it has written, and reads
        the input of that again; when the checkpoint is left, it is done.
    gives_up: take a batch for done that one output shows, or may have, although another does not.
    delivered: the newest batch of the generation that the ledger has: every output has it.

    Raises
    ------
    CheckpointError: when the checkpoint cannot be read.
    DeliveryError, LakehouseError: when a table of the stream cannot be read.
    """
    tables = {name: source.table for name, source in streamed_tables(stream)}
    planned = max(log_files(checkpoint.list_files(OFFSETS), OFFSETS), default=-1)
    committed = max(log_files(checkpoint.list_files(COMMITS), COMMITS), default=-1)
    entry = checkpoint.read_text(f"{OFFSETS}/{planned}") if planned > committed else None
    shown: Mapping[str, int | None] = {}
    if entry is not None and (is_left or stream.direct_output is None):
        shown = dict(
            _shown(catalog, checkpoint, stream, generation, entry=entry, begun_since=begun_since, gives_up=gives_up)
        )
    unshown = tuple(name for name, batch in shown.items() if batch is None) if delivered < planned else ()
    has = [batch >= planned for batch in shown.values() if batch is not None]
    is_visible = bool(unshown) or any(has) if gives_up else bool(shown) and not unshown and all(has)
    done = planned if is_visible else committed
    offsets = _entry_of(checkpoint, done, stream.stream) if done >= 0 else None
    if offsets is None:
        return None
    following = entry.splitlines() if entry is not None and done < planned else ()
    sources = _sources(catalog, offsets, tables, following) if tables else ()
    if tables and not sources:
        return None
    return ReadingPosition(
        batch=done,
        is_committed=not is_visible,
        planned=planned,
        query_id=_query_of(checkpoint, stream.stream),
        offsets=offsets,
        sources=sources,
        unshown=unshown,
    )


def _sources(
    catalog: Catalog, offsets: str, tables: Mapping[str, str], following: Sequence[str]
) -> tuple[SourcePosition, ...]:
    """The lines of Iceberg inputs in an entry of the offset log; none when the input of one is unknown. following: the
    lines of the entry behind it."""
    found = {
        number: offset
        for number, text in enumerate(offsets.splitlines())
        if number >= HEADER_LINES and (offset := stream_offset_of(text)) is not None
    }
    inputs = {offset.snapshot_id: _input_of(catalog, offset, tables) for offset in found.values()}
    if any(name is None for snapshot_id, name in inputs.items() if snapshot_id != BEGINNING):
        return ()
    return tuple(
        SourcePosition(
            input=name,
            table=tables[name],
            line=line,
            offset=offset,
            planned=stream_offset_of(following[line]) if line < len(following) else None,
        )
        for line, offset in found.items()
        if (name := inputs[offset.snapshot_id]) is not None
    )


def _input_of(catalog: Catalog, offset: StreamOffset, tables: Mapping[str, str]) -> str | None:
    """The first input whose table knows the snapshot. Nothing is said of an input that found its table empty, while
    there are others."""
    if len(tables) == 1:
        return next(iter(tables))
    if offset.snapshot_id == BEGINNING:
        return None
    for name, table_name in tables.items():
        table = load_table(catalog, table_name)
        if table is not None and knows_snapshot(table, offset.snapshot_id, name=table_name):
            return name
    return None


def _shown(
    catalog: Catalog,
    checkpoint: CheckpointFiles,
    stream: StreamDeclaration,
    generation: int,
    *,
    entry: str,
    begun_since: datetime | None,
    gives_up: bool,
) -> Iterator[tuple[str, int | None]]:
    """The newest batch of a generation that each output shows, by name; none where nothing shows what it has. Left out
    are outputs that are new, and those that the stream has continued without.

    Parameters
    ----------
    entry: of the batch in the offset log that is planned and not committed.
    """
    for output in staged_outputs(stream):
        tables = load_output_tables(catalog, output)
        if tables.is_left or tables.target is None:
            continue
        at = tables.position
        if at is not None:
            yield output.output, at.batch if at.generation == generation else BEFORE_THE_FIRST_BATCH
        elif former := [one.batch for one in former_positions(tables.target, output, generation=generation)]:
            yield output.output, max(former)
    for name, declared in stream.outputs.items():
        if declared.iceberg is None:
            yield name, BEFORE_THE_FIRST_BATCH if begun_since is None else None
        elif declared.iceberg.is_direct:
            table = require_table(catalog, declared.iceberg.table)
            output = StagedOutput(stream=stream.stream, output=name, target=declared.iceberg.table)
            written = _newest_direct(
                table, output, checkpoint, generation, planned=entry, begun_since=begun_since, gives_up=gives_up
            )
            yield name, written


def _entry_of(checkpoint: CheckpointFiles, batch: int, stream: str) -> str | None:
    """The entry of a batch that is done in the offset log, if there is one. It and its commit can be read."""
    found = None
    for log, problem_of in ((COMMITS, commit_problem), (OFFSETS, offset_problem)):
        found = checkpoint.read_text(f"{log}/{batch}")
        if found is not None and (problem := problem_of(found)) is not None:
            raise _unreadable(checkpoint, f"{log}/{batch}", problem, stream)
    return found


def _query_of(checkpoint: CheckpointFiles, stream: str) -> str:
    """The id of the query. A checkpoint that has planned a batch has one."""
    found = query_id_in(checkpoint.read_text(METADATA) or "")
    if found is None:
        raise _unreadable(checkpoint, METADATA, "it has no id of a query", stream)
    return found


def _unreadable(checkpoint: CheckpointFiles, path: str, problem: str, stream: str) -> CheckpointError:
    """The error of a file that is not what Spark wrote, as when the power failed before it was on the disk."""
    return CheckpointError(
        f"{path} of the checkpoint {checkpoint.location} cannot be read: {problem}.",
        next_step=f"`sluice stream repair {stream} --dry-run` shows what writes it back.",
    )


def _newest_direct(
    table: Table,
    output: StagedOutput,
    checkpoint: CheckpointFiles,
    generation: int,
    *,
    planned: str,
    begun_since: datetime | None,
    gives_up: bool,
) -> int | None:
    """The newest batch that Iceberg's own sink has written; none where that is unknown, and given up. It skips one of
    the same query that is no newer, whatever is in that: another must not be planned under its number."""
    newest = next(direct_batches(table, stream=output.stream, output=output.output), None)
    if newest is not None and newest.query_id == _query_of(checkpoint, output.stream):
        return newest.batch if newest.generation == generation else BEFORE_THE_FIRST_BATCH
    if begun_since is None:
        return BEFORE_THE_FIRST_BATCH
    if (problem := offset_problem(planned)) is not None:
        raise _unreadable(checkpoint, f"The newest plan in {OFFSETS}", problem, output.stream)
    since = max(planned_time(json.loads(metadata_of(planned))), begun_since)
    try:
        if newest is None:  # behind a batch of another query none of this one is hidden
            refuse_unknown_batch(table, stream=output.stream, unfinished_since=since)
    except DivergedError:
        if gives_up:
            return None
        raise
    return BEFORE_THE_FIRST_BATCH
