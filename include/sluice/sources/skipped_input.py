"""Skipped input: what a reader's source lost before it was read, or what the declaration excludes.

Pure functions of offsets and of what the sources hold; `skipped_input_watch` reads both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sluice.sources.iceberg_positions import TableStep, snapshot_of


def lost_offsets(start: Any, end: Any, *, firsts: Mapping[str, Mapping[int, int]]) -> Mapping[str, int]:
    """Count the offsets of a batch of Kafka records that had been removed when the batch began.

    Offsets also count transaction markers and records that compaction removed; the result is then slightly too large.
    Records that are removed between the start of the batch and their reading, a matter of seconds, are not counted.

    Parameters
    ----------
    start, end: the batch's offsets as Spark's Kafka source writes them: topic → partition → next offset. `start` is
        None for the first batch, which begins with the records that exist.
    firsts: the offset of the first record of each partition when the batch began, by topic.

    Returns
    -------
    The number of lost offsets by `<topic>/<partition>`, only for partitions that lost any.
    """
    if not isinstance(start, Mapping) or not isinstance(end, Mapping):
        return {}
    lost = {}
    for topic, partitions in end.items():
        for partition, until in partitions.items():
            first = firsts.get(topic, {}).get(int(partition), 0)
            # A partition that was added since the last batch is read from its beginning, offset 0.
            gone = min(int(until), first) - int(start.get(topic, {}).get(partition, 0))
            if gone > 0:
                lost[f"{topic}/{partition}"] = gone
    return lost


def skipped_rows(
    start: Any, end: Any, *, history: Sequence[TableStep], begins_at: datetime | None = None
) -> Mapping[str, int]:
    """Count the rows of skipped snapshots between two offsets of a reader of appended rows.

    Parameters
    ----------
    start, end: the batch's offsets as Iceberg's source writes them. `start` is None for the first batch.
    history: the snapshots of the table, newest first; see `history_of`.
    begins_at: the time at which the first batch begins; None when it begins with the oldest snapshot.

    Returns
    -------
    The rows that each skipped snapshot added or removed, by `snapshot <id>`, only for snapshots with such rows.
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
