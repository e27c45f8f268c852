"""What the topics of a Kafka source hold, asked in three requests whatever the number of partitions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sluice.declarations.sources import KafkaSource
from sluice.ledger.records.lag import PartitionBounds
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import client_settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

ANSWER_SECONDS = 5.0
"""How long Kafka may take for an answer: a broker that is there answers within milliseconds."""

_ERRORS_ONLY = 2
"""librdkafka's log level: it would write each failed attempt to stderr, and our sentence says it once."""


def open_admin(connection: KafkaConnection) -> AdminClient:
    """A client of a cluster. Nothing is connected before the first question."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({**client_settings(connection), "log_level": _ERRORS_ONLY})


def partitions_of(admin: AdminClient, source: KafkaSource) -> Mapping[str, Iterable[int]]:
    """The partitions of those topics of a source that exist.

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
    """What each partition holds.

    Parameters
    ----------
    partitions: by topic.
    isolation: `read_committed` to leave out what an open transaction has written.

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
    """The offset of the first record that each partition still holds, by topic and partition.

    Parameters
    ----------
    partitions: by topic.

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
