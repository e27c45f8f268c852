"""Decides whether Kafka still has what a declared start asks for, the very first records too.

Purpose: Kafka removes old records. A start at an offset or a time from before the first record that it kept would begin
with that record, and nothing would say that others are missing.

Known limitation: Kafka does not say of when the records were that it removed. When records were removed and the first
one that is left is not older than the declared time, others of that time may be gone; that counts as gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sluice.declarations.source_declarations import KafkaSource
from sluice.sources.unread_input import PartitionBounds

if TYPE_CHECKING:
    from sluice.sources.kafka_topics import KafkaTopics

_NONE_SINCE = -1
"""Kafka's answer for a time after the last record of a partition, and the end of a partition in a declared start."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBeginning:
    """What the topics of an input hold. rows: offsets from the start to the end, at least. missing: what is gone."""

    rows: int
    missing: tuple[str, ...]


def beginning_of(topics: KafkaTopics, source: KafkaSource) -> Mapping[str, Mapping[str, int]]:
    """The offset with which an input begins as it is declared, by topic and partition, as Spark's source writes it.

    Raises
    ------
    LakehouseError: when Kafka does not answer.
    """
    known = topics.partitions_of(source)
    bounds = topics.bounds_of(known, isolation="read_uncommitted")
    declared: Offsets = {}
    if isinstance(source.starting, dict):
        declared = source.starting
    elif isinstance(source.starting, datetime):
        declared = topics.offsets_since(known, source.starting)
    return {
        topic: {
            str(number): _first_of(kept, declared.get(topic, {}).get(number, kept.first)) for number, kept in of.items()
        }
        for topic, of in bounds.items()
    }


def _first_of(kept: PartitionBounds, declared: int) -> int:
    """Where a partition begins; a time after the last record of a partition has no offset there."""
    return kept.end if declared == _NONE_SINCE else max(kept.first, declared)


def missing_from_beginning(topics: KafkaTopics, source: KafkaSource) -> TopicBeginning:
    """What topics hold from the declared start of an input on.

    Raises
    ------
    LakehouseError: when Kafka does not answer.
    """
    partitions = topics.partitions_of(source)
    bounds = topics.bounds_of(partitions, isolation="read_uncommitted")
    gone = tuple(compacted_topics(topics.compacted_among(partitions)))
    rows = sum(kept.end - kept.first for of_topic in bounds.values() for kept in of_topic.values())
    if isinstance(source.starting, dict):
        missing = tuple(missing_offsets(source.starting, bounds))
    elif isinstance(source.starting, datetime):
        missing = tuple(missing_times(source.starting, topics.offsets_since(partitions, source.starting), bounds))
    else:
        missing = tuple(removed_records(bounds))
    return TopicBeginning(rows=rows, missing=(*gone, *missing))


def compacted_topics(compacted: Collection[str]) -> Iterator[str]:
    """A phrase for each topic from whose middle records are removed.

    Whether that matters cannot be known. It would not, if an output merged by the record's key; the key of an output
    is a column that the transformation has computed, and a removed record may also have changed other rows.
    """
    for topic in sorted(compacted):
        yield f"{topic} is compacted (`cleanup.policy`): Kafka removes records in its middle, and does not say which"


def removed_records(bounds: Bounds) -> Iterator[str]:
    """A phrase for each partition whose first records were removed, with the oldest offset that is left."""
    for topic, partitions in bounds.items():
        for partition, kept in partitions.items():
            if kept.first > 0:
                yield f"the oldest record of {topic}/{partition} has offset {kept.first}; those before it were removed"
