"""Observes from where a stream would read its Iceberg inputs next, from the files of its checkpoint.

The offsets in a checkpoint have no names, and Spark repeats one for each place where the plan reads its source. With
several Iceberg inputs, the snapshot in an offset says which table it is of: ids of snapshots are random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from sluice.checkpoints.checkpoint_files import CheckpointFiles
from sluice.checkpoints.checkpoint_layout import log_files
from sluice.checkpoints.checkpoint_logs import HEADER_LINES, metadata_of
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.maintenance.table_readers import streamed_tables
from sluice.publication.marks import find_lost_mark, read_target_state
from sluice.publication.staged_batch import StagedOutput
from sluice.sources.iceberg_positions import BEGINNING, StreamOffset, stream_offset_of
from sluice.sources.input_gap import knows_snapshot
from sluice.tables.declared_tables import load_table


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """Where a stream continues in one Iceberg input, as one line of its checkpoint has it; there may be several.

    line: the line of the entry in the offset log that holds the offset.
    """

    input: str
    table: str
    line: int
    offset: StreamOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPosition:
    """Where a stream continues.

    batch: the newest batch that is done: committed in the checkpoint, or visible in every table of the stream.
    is_committed: whether it is committed.
    offsets: the text of that batch's entry in the offset log.
    sources: the lines of Iceberg inputs in it; none for a stream without such an input.
    """

    batch: int
    is_committed: bool
    offsets: str
    sources: tuple[SourcePosition, ...]

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
    catalog: Catalog, checkpoint: CheckpointFiles, stream: StreamDeclaration, *, generation: int
) -> ReadingPosition | None:
    """Where a stream continues; none when no batch is done, or when it is unknown of which table an offset is. A stream
    without an Iceberg input has no such offset.

    Raises
    ------
    CheckpointError: when the checkpoint cannot be read.
    DeliveryError, LakehouseError: when a table of the stream cannot be read.
    """
    tables = {name: source.table for name, source in streamed_tables(stream)}
    planned = max(log_files(checkpoint.list_files("offsets"), "offsets"), default=-1)
    committed = max(log_files(checkpoint.list_files("commits"), "commits"), default=-1)
    is_visible = planned > committed and _visible(catalog, stream, generation) >= planned
    done = planned if is_visible else committed
    offsets = checkpoint.read_text(f"offsets/{done}") if done >= 0 else None
    if offsets is None:
        return None
    sources = _sources(catalog, offsets, tables) if tables else ()
    if tables and not sources:
        return None
    return ReadingPosition(batch=done, is_committed=not is_visible, offsets=offsets, sources=sources)


def _sources(catalog: Catalog, offsets: str, tables: Mapping[str, str]) -> tuple[SourcePosition, ...]:
    """The lines of Iceberg inputs in an entry of the offset log; none when the input of one is unknown."""
    found = {
        number: offset
        for number, text in enumerate(offsets.splitlines())
        if number >= HEADER_LINES and (offset := stream_offset_of(text)) is not None
    }
    inputs = {offset.snapshot_id: _input_of(catalog, offset, tables) for offset in found.values()}
    if any(name is None for snapshot_id, name in inputs.items() if snapshot_id != BEGINNING):
        return ()
    return tuple(
        SourcePosition(input=name, table=tables[name], line=line, offset=offset)
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


def _visible(catalog: Catalog, stream: StreamDeclaration, generation: int) -> int:
    """The newest batch of the generation that is visible in every table of the stream; -1 when none is known to be."""
    batches = []
    for name, declared in stream.outputs.items():
        table = load_table(catalog, declared.iceberg.table) if declared.iceberg is not None else None
        if declared.iceberg is None or declared.iceberg.is_direct or table is None:
            return -1  # there is no mark
        output = StagedOutput(stream=stream.stream, output=name, target=declared.iceberg.table)
        state = read_target_state(table, output)
        position = state.position(output) if state.mark is not None else find_lost_mark(table, output)
        if position is None:  # it is new
            continue
        batches.append(position.batch if position.generation == generation else -1)
    return min(batches, default=-1)
