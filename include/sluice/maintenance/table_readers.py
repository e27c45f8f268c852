"""Observes the streams that read a table: from which snapshot each of them would continue.

The earliest position of a reader is the end of its newest recorded batch when the checkpoint has committed that batch,
and its start otherwise: a driver that died between delivering a batch and committing it runs the batch again. A reader
without a recorded batch continues from the first offset in its checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError
from sluice.ledger.batches import BatchObservation, newest_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import find_generation
from sluice.maintenance.pin_plan import Knowledge, ReaderObservation
from sluice.settings import ObjectStoreSettings
from sluice.sources.iceberg_positions import BEGINNING, StreamOffset, first_offsets, stream_offset_of


def observe_readers(
    ledger: Ledger,
    declarations: Declarations,
    table: str,
    *,
    listed: Collection[int],
    object_store: ObjectStoreSettings,
) -> tuple[ReaderObservation, ...]:
    """Observe every declared input that reads a table's appended rows.

    Parameters
    ----------
    listed: the snapshots that the table lists; they distinguish its offsets from those of other tables.

    Raises
    ------
    LedgerError: when the ledger cannot be reached. A checkpoint that cannot be reached makes its reader UNKNOWN.
    """
    return tuple(
        reader
        for loaded in declarations.streams.values()
        for reader in observe_stream_inputs(ledger, loaded.declaration, table, listed=listed, object_store=object_store)
    )


def observe_stream_inputs(
    ledger: Ledger,
    stream: StreamDeclaration,
    table: str,
    *,
    listed: Collection[int],
    object_store: ObjectStoreSettings,
) -> tuple[ReaderObservation, ...]:
    """Observe the inputs of one stream that read a table's appended rows, as `observe_readers` does."""
    return tuple(
        _observe_reader(ledger, stream, name, listed, object_store)
        for name, source in streamed_tables(stream)
        if source.table == table
    )


def streamed_tables(stream: StreamDeclaration) -> Iterator[tuple[str, IcebergSource]]:
    """The inputs of a stream that read the appended rows of an Iceberg table."""
    for name, declared in stream.inputs.items():
        if declared.is_stream and isinstance(source := declared.declared_source.source, IcebergSource):
            yield name, source


def _observe_reader(
    ledger: Ledger,
    stream: StreamDeclaration,
    name: str,
    listed: Collection[int],
    object_store: ObjectStoreSettings,
) -> ReaderObservation:
    generation = find_generation(ledger, stream.stream)
    if generation is None:
        return ReaderObservation(stream=stream.stream, input=name, knowledge=Knowledge.NOT_STARTED)
    batch = newest_batch(ledger, stream.stream)
    if batch is not None and batch.key.generation != generation.generation:
        batch = None
    try:
        checkpoint = open_checkpoint_files(generation.checkpoint, object_store)
        started = batch is not None or bool(checkpoint.list_files("offsets")) or bool(checkpoint.list_files("sources"))
        first = _first_offset(checkpoint, stream, listed)
        is_committed = batch is not None and checkpoint.read_text(f"commits/{batch.key.batch}") is not None
    except CheckpointError as error:
        return _unknown(stream, name, error.message)
    if not started:
        return ReaderObservation(stream=stream.stream, input=name, knowledge=Knowledge.NOT_STARTED)
    recorded = _recorded_offset(batch, name, is_committed=is_committed)
    offset = first if recorded is None else recorded
    if offset is None:
        return _unknown(stream, name, f"neither the ledger nor the checkpoint {generation.checkpoint} has its offset")
    return ReaderObservation(
        stream=stream.stream, input=name, knowledge=Knowledge.KNOWN, position=offset.snapshot_id, offset=offset
    )


def _recorded_offset(batch: BatchObservation | None, name: str, *, is_committed: bool) -> StreamOffset | None:
    """Where the newest recorded batch ends once the checkpoint has committed it, and where it starts before that.

    Unset for an uncommitted first batch, which starts at the first offset.
    """
    if batch is None:
        return None
    return stream_offset_of((batch.end_offsets if is_committed else batch.start_offsets).get(name))


def _first_offset(
    checkpoint: CheckpointFiles, stream: StreamDeclaration, listed: Collection[int]
) -> StreamOffset | None:
    """The first offset of the input; unset when several inputs may have it.

    With one Iceberg input all are of it: a query may read it at several places, of which the earliest counts. Among
    several inputs, those of this table have a snapshot that it lists.
    """
    firsts = tuple(first_offsets(checkpoint).values())
    if len(list(streamed_tables(stream))) == 1:
        return earliest_offset(firsts, listed)
    own = [offset for offset in firsts if offset.snapshot_id in listed]
    if own:
        return min(own, key=lambda offset: list(listed).index(offset.snapshot_id))
    return firsts[0] if firsts and all(offset.snapshot_id == BEGINNING for offset in firsts) else None


def earliest_offset(offsets: Iterable[StreamOffset], listed: Collection[int]) -> StreamOffset | None:
    """The earliest of some offsets in one table; none of none. What is before all that it lists comes first.

    Parameters
    ----------
    listed: the snapshots that the table lists, oldest first.
    """
    places = {snapshot_id: place for place, snapshot_id in enumerate(listed)}
    return min(offsets, key=lambda one: (places.get(one.snapshot_id, -1), one.position), default=None)


def _unknown(stream: StreamDeclaration, name: str, problem: str) -> ReaderObservation:
    return ReaderObservation(stream=stream.stream, input=name, knowledge=Knowledge.UNKNOWN, problem=problem)
