"""Skipped input: what a reader's source lost before it was read, or what the declaration excludes.

Pure functions of offsets and of what the sources hold; `skipped_input_watch` reads both.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sluice.sources.iceberg_positions import StreamOffset, TableStep, snapshot_of, stream_offset_of


def declared_offsets(starting: object) -> Mapping[str, Mapping[str, int]] | None:
    """The offsets at which a first batch is declared to start, as Spark writes them; none when no offsets are declared.

    Parameters
    ----------
    starting: of a Kafka input. A negative offset is an end of its partition, from which nothing is lost.
    """
    if not isinstance(starting, Mapping):
        return None
    return {
        topic: {str(partition): offset if offset >= 0 else sys.maxsize for partition, offset in partitions.items()}
        for topic, partitions in starting.items()
    }


def lost_offsets(start: Any, end: Any, *, firsts: Mapping[str, Mapping[int, int]]) -> Mapping[str, int]:
    """Count the offsets of a batch of Kafka records that had been removed when the batch began.

    Offsets also count transaction markers and records that compaction removed; the result is then slightly too large.
    Records that are removed between the start of the batch and their reading, a matter of seconds, are not counted.

    Parameters
    ----------
    start, end: the batch's offsets as Spark's Kafka source writes them: topic → partition → next offset. `start` is
        None for a first batch that begins with the records that exist.
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
    start: Any, end: Any, *, history: Sequence[TableStep], first: StreamOffset | None = None
) -> Mapping[str, int]:
    """Count the rows of skipped snapshots between two offsets of a reader of appended rows.

    Parameters
    ----------
    start, end: the batch's offsets as Iceberg's source writes them. `start` is None for the first batch.
    history: the snapshots of the table, newest first; see `history_of`.
    first: where the first batch starts; None when that is unknown, and it starts with the oldest snapshot.

    Returns
    -------
    The rows that each skipped snapshot added or removed, by `snapshot <id>`, only for snapshots with such rows.
    """
    skipped = {}
    begins_at = first if start is None else stream_offset_of(start)
    includes_start = start is None and first is not None and first.position == 0 and not first.scan_all_files
    is_read = False
    for step in history:
        is_read = is_read or step.snapshot_id == snapshot_of(end)
        is_start = begins_at is not None and step.snapshot_id == begins_at.snapshot_id
        if is_start and not includes_start:
            break
        if is_read and step.changed_rows:
            skipped[f"snapshot {step.snapshot_id}"] = step.changed_rows
        if is_start:
            break
    return skipped
