"""Finds out whether topics still hold every record from the declared start of an input on, the very first ones too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sluice.declarations.source_declarations import KafkaSource
from sluice.sources.topic_starts import Bounds, missing_offsets, missing_times

if TYPE_CHECKING:
    from sluice.sources.kafka_topics import KafkaTopics


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBeginning:
    """What the topics of an input hold. rows: offsets from the start to the end, at least. missing: what is gone."""

    rows: int
    missing: tuple[str, ...]


def missing_from_beginning(topics: KafkaTopics, source: KafkaSource) -> TopicBeginning:
    """What topics hold from the declared start of an input on.

    Raises
    ------
    LakehouseError: when Kafka does not answer.
    """
    partitions = topics.partitions_of(source)
    bounds = topics.bounds_of(partitions, isolation="read_uncommitted")
    rows = sum(kept.end - kept.first for of_topic in bounds.values() for kept in of_topic.values())
    if isinstance(source.starting, dict):
        missing = tuple(missing_offsets(source.starting, bounds))
    elif isinstance(source.starting, datetime):
        missing = tuple(missing_times(source.starting, topics.offsets_since(partitions, source.starting), bounds))
    else:
        missing = tuple(removed_records(bounds))
    return TopicBeginning(rows=rows, missing=missing)


def removed_records(bounds: Bounds) -> Iterator[str]:
    """A phrase for each partition whose first records were removed, with the oldest offset that is left."""
    for topic, partitions in bounds.items():
        for partition, kept in partitions.items():
            if kept.first > 0:
                yield f"the oldest record of {topic}/{partition} has offset {kept.first}; those before it were removed"
