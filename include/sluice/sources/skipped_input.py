"""What a reader leaves behind and no batch will ever bring: gone before it was read, or left out by declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sluice.ledger.records.lag import TableStep
from sluice.sources.iceberg_offsets import snapshot_of


def lost_offsets(start: Any, end: Any, *, firsts: Mapping[str, Mapping[int, int]]) -> Mapping[str, int]:
    """The offsets of a batch of Kafka records that were gone when the batch began.

    Offsets count the marks of transactions and what compaction removed, too, so this is at most a little too much. What
    is removed while the batch runs and before it is read is not in it: that is a matter of seconds.

    Parameters
    ----------
    start, end: the batch's offsets, as Spark's Kafka source writes them: topic → partition → next offset. No start
        means the first batch, which begins with what is there.
    firsts: the first offset that each partition held when the batch began.

    Returns
    -------
    The number of offsets by `<topic>/<partition>`, without those that lost nothing.
    """
    if not isinstance(start, Mapping) or not isinstance(end, Mapping):
        return {}
    lost = {}
    for topic, partitions in end.items():
        for partition, until in partitions.items():
            first = firsts.get(topic, {}).get(int(partition), 0)
            # A partition that appeared since the last batch is read from its beginning, which is offset 0.
            gone = min(int(until), first) - int(start.get(topic, {}).get(partition, 0))
            if gone > 0:
                lost[f"{topic}/{partition}"] = gone
    return lost


def skipped_rows(
    start: Any, end: Any, *, history: Sequence[TableStep], begins_at: datetime | None = None
) -> Mapping[str, int]:
    """The rows that snapshots of a table added or removed between two offsets of a reader of its appended rows.

    Parameters
    ----------
    start, end: the batch's offsets, as Iceberg's source writes them. No start means the first batch.
    history: the snapshots of the table from the newest one back to the oldest that is left.
    begins_at: where the first batch begins, when that is not the oldest snapshot.

    Returns
    -------
    The rows by `snapshot <id>`, without snapshots of which nothing was left out.
    """
    skipped = {}
    begins_after, is_read = snapshot_of(start), False
    for step in history:
        is_read = is_read or step.snapshot_id == snapshot_of(end)
        if step.snapshot_id == begins_after or (start is None and begins_at is not None and step.is_before(begins_at)):
            break
        if is_read and step.changed_rows:
            skipped[f"snapshot {step.snapshot_id}"] = step.changed_rows
    return skipped
