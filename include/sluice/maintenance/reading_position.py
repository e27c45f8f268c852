"""Observes from where a stream would read its Iceberg input next, from the files of its checkpoint.

Known limitation: the offsets in a checkpoint have no names. They are read for a stream with one Iceberg input; several
are left to Iceberg's own check.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from sluice.checkpoints.checkpoint_files import CheckpointFiles
from sluice.checkpoints.checkpoint_layout import log_files
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.maintenance.table_readers import streamed_tables
from sluice.publication.marks import read_target_state
from sluice.publication.staged_batch import StagedOutput
from sluice.sources.iceberg_positions import StreamOffset, stream_offset_of
from sluice.tables.declared_tables import load_table

_HEADER_LINES = 2
"""The version, and the metadata of the batch; then comes a line for each source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPosition:
    """Where a stream continues in its one Iceberg input.

    batch: the newest batch that is done: committed in the checkpoint, or visible in every table of the stream.
    offsets: the text of that batch's entry in the offset log. line: the line that holds the input's offset.
    """

    input: str
    table: str
    batch: int
    offsets: str
    line: int
    offset: StreamOffset

    def moved_to(self, offset: StreamOffset) -> str:
        """The text of the entry with another offset of the input."""
        lines = self.offsets.splitlines()
        lines[self.line] = offset.text()
        return "\n".join(lines)


def observe_reading_position(
    catalog: Catalog, checkpoint: CheckpointFiles, stream: StreamDeclaration, *, generation: int
) -> ReadingPosition | None:
    """Where a stream continues; none when no batch is done, or when it has not exactly one Iceberg input.

    Raises
    ------
    CheckpointError: when the checkpoint cannot be read.
    DeliveryError, LakehouseError: when a table of the stream cannot be read.
    """
    inputs = list(streamed_tables(stream))
    if len(inputs) != 1:
        return None
    planned = max(log_files(checkpoint.list_files("offsets"), "offsets"), default=-1)
    committed = max(log_files(checkpoint.list_files("commits"), "commits"), default=-1)
    done = planned if planned > committed and _visible(catalog, stream, generation) >= planned else committed
    offsets = checkpoint.read_text(f"offsets/{done}") if done >= 0 else None
    lines = offsets.splitlines() if offsets is not None else []
    found = [(number, offset) for number, text in enumerate(lines) if (offset := _offset_in(number, text)) is not None]
    if offsets is None or len(found) != 1:
        return None
    (name, source), (line, offset) = inputs[0], found[0]
    return ReadingPosition(input=name, table=source.table, batch=done, offsets=offsets, line=line, offset=offset)


def _offset_in(number: int, text: str) -> StreamOffset | None:
    return stream_offset_of(text) if number >= _HEADER_LINES else None


def _visible(catalog: Catalog, stream: StreamDeclaration, generation: int) -> int:
    """The newest batch of the generation that is visible in every table of the stream; -1 when none is known to be."""
    batches = []
    for name, declared in stream.outputs.items():
        table = load_table(catalog, declared.iceberg.table) if declared.iceberg is not None else None
        if declared.iceberg is None or declared.iceberg.is_direct or table is None:
            return -1  # there is no mark
        output = StagedOutput(stream=stream.stream, output=name, target=declared.iceberg.table)
        state = read_target_state(table, output)
        if state.mark is None:
            return -1
        position = state.position(output)
        batches.append(position.batch if position.generation == generation else -1)
    return min(batches, default=-1)
