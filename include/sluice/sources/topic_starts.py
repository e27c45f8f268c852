"""Decides whether Kafka still has what a declared start asks for. Pure.

Purpose: Kafka removes old records. A start at an offset or a time from before the first record that it kept would begin
with that record, and nothing would say that others are missing.

Known limitation: Kafka does not say of when the records were that it removed. When records were removed and the first
one that is left is not older than the declared time, others of that time may be gone; that counts as gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from sluice.sources.unread_input import PartitionBounds

Bounds = Mapping[str, Mapping[int, PartitionBounds]]
Offsets = Mapping[str, Mapping[int, int]]


def missing_offsets(declared: Offsets, bounds: Bounds) -> Iterator[str]:
    """A phrase for each partition that does not have its declared offset any more.

    Parameters
    ----------
    declared: the offsets by topic and partition; negative ones are the ends of the partition.
    bounds: of the partitions that exist.
    """
    for topic, partitions in declared.items():
        for partition, offset in partitions.items():
            kept = bounds.get(topic, {}).get(partition)
            if kept is not None and 0 <= offset < kept.first:
                yield f"{topic}/{partition} begins with offset {kept.first}, and {offset} is declared"


def missing_times(instant: datetime, found: Offsets, bounds: Bounds) -> Iterator[str]:
    """A phrase for each partition that may have had records since a time that are gone.

    Parameters
    ----------
    found: the offset of the first record since the time, by topic and partition; negative where there is none.
    bounds: of the same partitions.
    """
    for topic, partitions in bounds.items():
        for partition, kept in partitions.items():
            since = found[topic][partition]
            older_ones_are_left = kept.first < (kept.end if since < 0 else since)
            if kept.first > 0 and not older_ones_are_left:
                yield (
                    f"{topic}/{partition} begins with offset {kept.first}, and no record from before "
                    f"{instant.isoformat()} is left"
                )
