"""What is unread, told from where a reader stands and what its source holds. Pure; `source_heads` does the asking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.ledger.records.lag import LagObservation, PartitionBounds, TableStep
from sluice.sources.iceberg_offsets import snapshot_of

BEFORE_ALL_SNAPSHOTS = -1
"""The snapshot id in the first offset of Iceberg's source, when the table had no snapshot yet."""


def unread_records(
    offset: Any, *, topics: Mapping[str, Mapping[int, PartitionBounds]], from_the_beginning: bool
) -> LagObservation:
    """The records of topics that a reader has not read.

    Records that were removed before they were read are not counted: they are no longer there to be read. In a topic
    with transactions the offsets count the transactions' marks, too, so this is at most a little too much.

    Parameters
    ----------
    offset: where the reader stands, as Spark's Kafka source writes it: topic → partition → next offset. None before its
        first batch.
    topics: what the topics hold.
    from_the_beginning: whether a partition that the reader has not met yet is read from its first record.
    """
    if offset is None and not from_the_beginning:
        return LagObservation(rows=None, problem="it starts with what comes next, and has not started yet")
    stands = offset if isinstance(offset, Mapping) else {}
    return LagObservation(
        rows=sum(
            max(0, bounds.end - max(bounds.first, int(stands.get(topic, {}).get(str(partition), bounds.first))))
            for topic, partitions in topics.items()
            for partition, bounds in partitions.items()
        )
    )


def unread_rows(offset: Any, *, history: Sequence[TableStep]) -> LagObservation:
    """The appended rows of a table that a reader has not read.

    Parameters
    ----------
    offset: where the reader stands: what Iceberg's source writes, read from its JSON; None before its first batch.
    history: the snapshots of the table from the newest one back to the oldest that is left.
    """
    stands_at = snapshot_of(offset)
    rows = 0
    for step in history:
        if step.snapshot_id == stands_at:
            return LagObservation(rows=rows + _unread_of(step, position=int(offset["position"])))
        rows += step.appended_rows
    if stands_at is None or stands_at == BEFORE_ALL_SNAPSHOTS:
        return LagObservation(rows=rows)
    return LagObservation(rows=None, problem=f"its snapshot {stands_at} is no longer in the table's history")


def _unread_of(step: TableStep, *, position: int) -> int:
    """The rows of a snapshot whose first `position` files have been read, supposing files of equal size."""
    if step.appended_files == 0:
        return 0
    unread_files = max(0, step.appended_files - position)
    return -(-step.appended_rows * unread_files // step.appended_files)
