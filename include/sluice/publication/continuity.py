"""Refuses a start when the checkpoint and the tables of a stream have different histories.

Spark numbers batches by its checkpoint. With a checkpoint that is older than a table it plans a known number again, up
to the present end of its input: the batch would count as visible, and its new rows would be lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table import Table

from sluice.errors import DivergedError
from sluice.publication.chain import CheckpointPosition, MarkPosition
from sluice.publication.staged_batch import (
    BatchSummary,
    StagedOutput,
    offsets_digest,
    read_summary,
)

NO_OFFSETS = "an unknown offset"


def published_beyond(table: Table, output: StagedOutput, checkpoint: CheckpointPosition) -> tuple[BatchSummary, ...]:
    """The publications in a table's history that hold batches which its stream's checkpoint has not planned, oldest
    first; fewer than there were when some are expired."""
    found = []
    for snapshot in sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0):
        summary = read_summary(snapshot.summary.additional_properties) if snapshot.summary is not None else None
        if summary is None or (summary.key.stream, summary.output) != (output.stream, output.output):
            continue
        if summary.key.generation == checkpoint.generation and summary.key.batch > checkpoint.newest_planned:
            found.append(summary)
    return tuple(found)


def refuse_newer_table(
    position: MarkPosition, checkpoint: CheckpointPosition, *, output: StagedOutput, known: Sequence[BatchSummary]
) -> None:
    """Refuse to start when a table holds batches that the checkpoint has not planned, or planned with other offsets.

    Parameters
    ----------
    position: how far the output is published.
    known: from `published_beyond`, for the message.

    Raises
    ------
    DivergedError: with the batches, rows and offsets in which they differ.
    """
    if position.generation != checkpoint.generation or position.batch < 0:
        return
    if position.batch > checkpoint.newest_planned:
        raise DivergedError(
            f"The checkpoint of stream {output.stream}, generation {checkpoint.generation}, is older than "
            f"{output.target}: it ends with batch {checkpoint.newest_planned} at "
            f"{checkpoint.end_offsets.get(checkpoint.newest_planned, NO_OFFSETS)}, and the table holds "
            f"{_beyond(position, checkpoint, known)}. The start would plan other batches under these numbers, whose "
            "rows would be lost.",
            next_step=_ways_out(output.stream, position.batch),
        )
    planned = checkpoint.end_offsets.get(position.batch)
    if planned is not None and position.end_offsets_digest not in (None, offsets_digest(planned)):
        raise DivergedError(
            f"{output.target} already holds another batch {output.stream}:{position.generation}:{position.batch}: its "
            f"end offsets differ from those that the checkpoint has planned, {planned}.",
            next_step=_ways_out(output.stream, position.batch),
        )


def refuse_missing_batches(position: MarkPosition, checkpoint: CheckpointPosition, *, output: StagedOutput) -> None:
    """Refuse to start when the checkpoint has committed batches that are neither visible nor staged any more.

    Parameters
    ----------
    position: how far the output is published, once everything that was staged is.

    Raises
    ------
    DivergedError: with the batches and offsets that are missing.
    """
    if position.generation != checkpoint.generation or position.batch >= checkpoint.newest_committed:
        return
    first, last = position.batch + 1, checkpoint.newest_committed
    number = last - position.batch
    raise DivergedError(
        f"The checkpoint of stream {output.stream} has committed batches up to {last}, and {output.target} holds them "
        f"up to {position.batch}: {number} {'batch is' if number == 1 else 'batches are'} missing, {first} to {last}, "
        f"from {checkpoint.end_offsets.get(position.batch, NO_OFFSETS)} to "
        f"{checkpoint.end_offsets.get(last, NO_OFFSETS)}. They were staged and the staging table {output.staging} no "
        "longer has them.",
        next_step=f"Restore that table, or read the inputs again into a new generation: `sluice stream reset "
        f"{output.stream}`.",
    )


def _beyond(position: MarkPosition, checkpoint: CheckpointPosition, known: Sequence[BatchSummary]) -> str:
    """The batches that only the table has: how many, and as far as known their rows and offsets."""
    number = position.batch - checkpoint.newest_planned
    batches = f"{number} {'batch' if number == 1 else 'batches'} more, up to {position.batch}"
    if not known:
        return f"{batches}, whose rows and offsets its history no longer lists"
    rows = sum(summary.rows or 0 for summary in known)
    return f"{batches}, with {rows:,} rows, from {known[0].start_offsets} to {known[-1].end_offsets}"


def _ways_out(stream: str, batch: int) -> str:
    return (
        f"Restore the newest checkpoint, the one that has planned batch {batch}, or read the inputs again into a new "
        f"generation: `sluice stream reset {stream}` shows what that repeats."
    )
