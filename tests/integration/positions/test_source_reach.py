"""Whether a real topic still has what a repair would read again."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from tests.integration.sources.test_source_heads import reader, settings, topic

from sluice.operations import Refusal, RefusalReason
from sluice.positions.source_reach import refuse_gone_input
from sluice.publication.staged_batch import canonical_offsets
from sluice.settings import KafkaConnection, Settings
from sluice.sources.kafka_clients import client_settings
from sluice.tables.catalog import open_catalog

__all__ = ["settings", "topic"]


def refused(settings: Settings, topic: str, first_unread: int) -> Sequence[Refusal]:
    """What is said about reading each of the three partitions again from an offset on."""
    stream = reader(kafka={"connection": "flights_kafka", "topics": [topic]}).declaration
    starts = canonical_offsets({"records": {topic: {str(partition): first_unread for partition in range(3)}}})
    return tuple(refuse_gone_input(open_catalog(settings), stream, settings, starts))


def test_records_that_are_gone_are_counted_and_nothing_is_read_again_without_them(
    settings: Settings, topic: str
) -> None:
    admin = AdminClient(client_settings(settings.connection("flights_kafka", KafkaConnection)))
    assert refused(settings, topic, 2) == ()
    for done in admin.delete_records([TopicPartition(topic, 0, 6), TopicPartition(topic, 1, 3)]).values():
        done.result()

    (refusal,) = refused(settings, topic, 2)

    assert refusal.reason is RefusalReason.SOURCE_GONE
    assert "its input records: 5 records behind it were removed from the topic" in refusal.sentence
    assert refused(settings, topic, 6) == ()
