"""Observes the streams that read a table, or write it with `delivery: direct`: from which snapshot each would continue.

The earliest position of a reader is the end of its newest recorded batch when the checkpoint has committed that batch,
and its start otherwise: a driver that died between delivering a batch and committing it runs the batch again. A reader
without a recorded batch continues from the first offset in its checkpoint.

Iceberg's sink recognises a repeated batch by walking from main to the newest snapshot of its own. When expiry has
removed it, a batch that was planned and not committed in the checkpoint could be written twice, so the stream refuses
to start. A stream that runs, or whose checkpoint has such a batch, therefore needs that snapshot and all that follow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from pyiceberg.table import Table

from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import log_files
from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError
from sluice.ledger.batches import BatchObservation, newest_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import find_generation
from sluice.maintenance.pin_plan import Knowledge, ReaderObservation, WriterObservation
from sluice.publication.direct_history import direct_batches
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


def observe_direct_writers(
    ledger: Ledger,
    declarations: Declarations,
    table: Table,
    name: str,
    *,
    live_streams: Collection[str],
    object_store: ObjectStoreSettings,
) -> tuple[WriterObservation, ...]:
    """Observe every declared output that Iceberg's own sink writes into a table, and that may repeat a batch.

    Parameters
    ----------
    table, name: the table, freshly loaded, and its name. live_streams: the streams that have a live run.

    Raises
    ------
    LedgerError: when the ledger cannot be reached. A checkpoint that cannot be read counts as unfinished.
    """
    streams = [loaded.declaration for loaded in declarations.streams.values()]
    return tuple(
        writer
        for stream in streams
        for writer in newest_written(stream, table, name)
        if stream.stream in live_streams or _has_unfinished_batch(ledger, stream, object_store)
    )


def newest_written(stream: StreamDeclaration, table: Table, name: str) -> Iterator[WriterObservation]:
    """The newest snapshot in main's history of each output of a stream that its sink writes into this table."""
    for output, declared in stream.outputs.items():
        if declared.iceberg is None or not declared.iceberg.is_direct or declared.iceberg.table != name:
            continue
        newest = next(direct_batches(table, stream=stream.stream, output=output), None)
        if newest is not None:
            yield WriterObservation(stream=stream.stream, output=output, position=newest.snapshot_id)


def _has_unfinished_batch(ledger: Ledger, stream: StreamDeclaration, object_store: ObjectStoreSettings) -> bool:
    generation = find_generation(ledger, stream.stream)
    if generation is None:
        return False
    try:
        checkpoint = open_checkpoint_files(generation.checkpoint, object_store)
        planned = log_files(checkpoint.list_files("offsets"), "offsets")
        committed = log_files(checkpoint.list_files("commits"), "commits")
    except CheckpointError:  # unknown, so the batch may be there
        return True
    return max(planned, default=-1) > max(committed, default=-1)
