"""Reads the partitions of a Kafka source and their first and last offsets, in at most three requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.declarations.source_declarations import KafkaSource
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import client_settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

ANSWER_SECONDS = 5.0
"""Timeout of a request. A reachable broker answers within milliseconds."""

_ERRORS_ONLY = 2
"""librdkafka's log level: otherwise it writes each failed attempt to stderr, which the error message repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBounds:
    """The offset of the first record of a partition, and the offset that its next record will get."""

    first: int
    end: int


def open_admin(connection: KafkaConnection) -> AdminClient:
    """Create an admin client of a cluster. It connects with the first request."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({**client_settings(connection), "log_level": _ERRORS_ONLY})


def partitions_of(admin: AdminClient, source: KafkaSource) -> Mapping[str, Iterable[int]]:
    """The partitions of a source, by topic; topics that do not exist are left out.

    Raises
    ------
    KafkaException: when the cluster does not answer.
    """
    if source.assignment is not None:
        return source.assignment
    known = admin.list_topics(timeout=ANSWER_SECONDS).topics
    if source.topic_pattern is not None:
        wanted = [topic for topic in known if re.fullmatch(source.topic_pattern, topic)]
    else:
        wanted = [topic for topic in source.topics or () if topic in known]
    return {topic: sorted(known[topic].partitions) for topic in wanted}


def read_bounds(
    admin: AdminClient, partitions: Mapping[str, Iterable[int]], *, isolation: str
) -> Mapping[str, Mapping[int, PartitionBounds]]:
    """The bounds of each partition, by topic and partition.

    Parameters
    ----------
    partitions: the partition numbers by topic.
    isolation: `read_committed` to exclude the records of open transactions.

    Raises
    ------
    KafkaException: when the cluster does not answer.
    """
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # documented, and left out of its types

    level = IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
    places = [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers]
    ends, firsts = (
        admin.list_offsets(dict.fromkeys(places, spec), isolation_level=level, request_timeout=ANSWER_SECONDS)
        for spec in (OffsetSpec.latest(), OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # as above
    )
    topics: dict[str, dict[int, PartitionBounds]] = {}
    for place in places:
        bounds = PartitionBounds(first=firsts[place].result().offset, end=ends[place].result().offset)
        topics.setdefault(place.topic, {})[place.partition] = bounds
    return topics


def read_firsts(admin: AdminClient, partitions: Mapping[str, Iterable[int]]) -> Mapping[str, Mapping[int, int]]:
    """The offset of the first record of each partition, by topic and partition.

    Parameters
    ----------
    partitions: the partition numbers by topic.

    Raises
    ------
    KafkaException: when the cluster does not answer.
    """
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # documented, and left out of its types

    places = [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers]
    earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # as above
    found = admin.list_offsets(dict.fromkeys(places, earliest), request_timeout=ANSWER_SECONDS)
    topics: dict[str, dict[int, int]] = {}
    for place in places:
        topics.setdefault(place.topic, {})[place.partition] = found[place].result().offset
    return topics
