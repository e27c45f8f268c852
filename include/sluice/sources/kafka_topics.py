"""Reads the partitions of Kafka sources and their first and last offsets, in at most three requests per source.

Importing confluent-kafka loads a native library, so this module is imported only where a source is Kafka's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # OffsetSpec is documented, and left out of its types
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from sluice.declarations.source_declarations import KafkaSource
from sluice.errors import LakehouseError, SourceRefusedError
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import client_settings
from sluice.sources.unread_input import PartitionBounds

ANSWER_SECONDS = 5.0
"""Timeout of a request. A reachable broker answers within milliseconds."""

_REFUSALS = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # librdkafka's own word for the same
    }
)
"""What Kafka answers to a user that may not read."""

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of a topic in an answer of a broker that knows none: all bits are zero."""

_ERRORS_ONLY = 2
"""librdkafka's log level: otherwise it writes each failed attempt to stderr, which the error message repeats."""


class KafkaTopics:
    """The topics of one cluster. The client connects with the first request.

    Every method raises a LakehouseError when the cluster does not answer, and a SourceRefusedError when it refuses.

    Parameters
    ----------
    connection: the connection to the cluster.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._servers = connection.bootstrap_servers
        self._admin = AdminClient({**client_settings(connection), "log_level": _ERRORS_ONLY})

    def partitions_of(self, source: KafkaSource) -> Mapping[str, Iterable[int]]:
        """The partitions of a source, by topic; topics that do not exist are left out."""
        if source.assignment is not None:
            return source.assignment
        with self._requests():
            known = self._admin.list_topics(timeout=ANSWER_SECONDS).topics
        if source.topic_pattern is not None:
            topics = [topic for topic in known if re.fullmatch(source.topic_pattern, topic)]
        else:
            topics = [topic for topic in source.topics or () if topic in known]
        return {topic: sorted(known[topic].partitions) for topic in topics}

    def ids_of(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The id of each topic, by name. A topic that is deleted and created again has another one; those that do not
        exist are left out, and so are all of a broker that gives none (before Kafka 2.8)."""
        asked = list(topics)
        found: dict[str, str] = {}
        with self._requests():
            answers = (
                self._admin.describe_topics(TopicCollection(asked), request_timeout=ANSWER_SECONDS) if asked else {}
            )
            for topic, answer in answers.items():
                try:
                    identity = str(answer.result().topic_id)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
                    continue
                if identity != _NO_ID:
                    found[topic] = identity
        return found

    def bounds_of(
        self, partitions: Mapping[str, Iterable[int]], *, isolation: str
    ) -> Mapping[str, Mapping[int, PartitionBounds]]:
        """The bounds of each partition, by topic and partition.

        Parameters
        ----------
        partitions: the partition numbers by topic.
        isolation: `read_committed` to exclude the records of open transactions.
        """
        level = IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
        latest, earliest = OffsetSpec.latest(), OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # as above
        ends, firsts = (self._offsets(partitions, spec, level=level) for spec in (latest, earliest))
        return {
            topic: {number: PartitionBounds(first=firsts[topic][number], end=end) for number, end in of_topic.items()}
            for topic, of_topic in ends.items()
        }

    def firsts_of(self, partitions: Mapping[str, Iterable[int]]) -> Mapping[str, Mapping[int, int]]:
        """The offset of the first record of each partition, by topic and partition.

        Parameters
        ----------
        partitions: the partition numbers by topic.
        """
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # as above

    def offsets_since(
        self, partitions: Mapping[str, Iterable[int]], instant: datetime
    ) -> Mapping[str, Mapping[int, int]]:
        """The offset of the first record since a time in each partition, by topic and partition; -1 where none is.

        Parameters
        ----------
        partitions: the partition numbers by topic.
        """
        spec = OffsetSpec.for_timestamp(round(instant.timestamp() * 1000))
        return self._offsets(partitions, spec)

    def oldest_times_of(self, partitions: Mapping[str, Iterable[int]]) -> Mapping[str, Mapping[int, datetime | None]]:
        """The time of the first record of each partition, by topic and partition; none where no record has one.

        Parameters
        ----------
        partitions: the partition numbers by topic.
        """
        found = self._found(partitions, OffsetSpec.for_timestamp(0))
        return {
            topic: {number: _time_of(one.timestamp) for number, one in numbers.items()}
            for topic, numbers in found.items()
        }

    def compacted_among(self, topics: Iterable[str]) -> frozenset[str]:
        """The topics from whose middle Kafka removes records: those with the `cleanup.policy` `compact`, alone or with
        `delete`.

        Raises
        ------
        SourceRefusedError: also when the user may not read the configuration of a topic (`DescribeConfigs`).
        """
        asked = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        compacted = set()
        with self._requests():
            answers = self._admin.describe_configs(asked, request_timeout=ANSWER_SECONDS) if asked else {}
            for resource, answer in answers.items():
                policies = answer.result()["cleanup.policy"].value.split(",")
                if "compact" in (policy.strip() for policy in policies):
                    compacted.add(resource.name)
        return frozenset(compacted)

    def _offsets(
        self, partitions: Mapping[str, Iterable[int]], spec: OffsetSpec, *, level: IsolationLevel | None = None
    ) -> dict[str, dict[int, int]]:
        found = self._found(partitions, spec, level=level)
        return {topic: {number: one.offset for number, one in numbers.items()} for topic, numbers in found.items()}

    def _found(
        self, partitions: Mapping[str, Iterable[int]], spec: OffsetSpec, *, level: IsolationLevel | None = None
    ) -> dict[str, dict[int, Any]]:
        places = [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers]
        options = {"isolation_level": level} if level is not None else {}
        answers: dict[str, dict[int, Any]] = {}
        with self._requests():
            found = self._admin.list_offsets(dict.fromkeys(places, spec), request_timeout=ANSWER_SECONDS, **options)
            for place in places:
                answers.setdefault(place.topic, {})[place.partition] = found[place].result()
        return answers

    @contextmanager
    def _requests(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            if error.args[0].code() in _REFUSALS:
                raise SourceRefusedError(f"Kafka at {self._servers} refuses: {error.args[0].str()}.") from error
            raise LakehouseError(f"Kafka at {self._servers} does not answer: {error.args[0].str()}.") from error


def _time_of(milliseconds: int) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds >= 0 else None
