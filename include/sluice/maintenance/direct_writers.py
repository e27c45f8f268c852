"""Observes the streams that write a table with `delivery: direct`: the newest snapshot that each of their sinks wrote.

Iceberg's sink recognises a repeated batch by walking from main to the newest snapshot of its own. When expiry has
removed it, a batch that was planned and not committed in the checkpoint could be written twice, so the stream refuses
to start. A stream that runs, or whose checkpoint has such a batch, therefore needs that snapshot and all that follow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pyiceberg.table import Table

from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import log_files
from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import find_generation
from sluice.maintenance.pin_plan import WriterObservation
from sluice.publication.direct_history import direct_batches
from sluice.settings import ObjectStoreSettings


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
