"""Whether a real topic still has what a repair would read again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from tests.integration.sources.test_source_heads import reader, settings, topic

from sluice.positions.source_reach import InputLoss, LossKind, SourceReach
from sluice.publication.staged_batch import canonical_offsets
from sluice.settings import KafkaConnection, Settings
from sluice.sources.kafka_clients import client_settings
from sluice.tables.catalog import open_catalog

__all__ = ["settings", "topic"]


def losses(settings: Settings, topic: str, start: int, until: int = 0) -> Sequence[InputLoss]:
    """What is lost of reading each of the three partitions again from an offset on."""
    reach = SourceReach(
        catalog=open_catalog(settings),
        declaration=reader(kafka={"connection": "flights_kafka", "topics": [topic]}).declaration,
        settings=settings,
        checkpoint="",
    )
    starts, ends = (
        canonical_offsets({"records": {topic: {str(partition): offset for partition in range(3)}}})
        for offset in (start, until)
    )
    return tuple(reach.losses(starts, ends))


def test_records_that_are_gone_are_counted(settings: Settings, topic: str) -> None:
    admin = AdminClient(client_settings(settings.connection("flights_kafka", KafkaConnection)))
    assert losses(settings, topic, 2, 10) == ()
    for done in admin.delete_records([TopicPartition(topic, 0, 6), TopicPartition(topic, 1, 3)]).values():
        done.result()

    (loss,) = losses(settings, topic, 2)

    assert (loss.input, loss.kind, loss.rows) == ("records", LossKind.REMOVED, 5)
    assert loss.sentence == "5 records behind it were removed from the topic"
    assert losses(settings, topic, 6) == ()


@pytest.mark.parametrize(("start", "kind", "rows"), [(8, LossKind.WITHDRAWN, 12), (11, LossKind.MOVED, None)])
def test_a_topic_that_ends_before_what_was_read_has_lost_it(
    settings: Settings, topic: str, start: int, kind: LossKind, rows: int | None
) -> None:
    """Each partition has ten records, and fourteen were read."""
    (loss,) = losses(settings, topic, start, 14)

    assert (loss.kind, loss.rows) == (kind, rows)


def test_a_topic_that_is_not_there_any_more_has_lost_all(settings: Settings, topic: str) -> None:
    admin = AdminClient(client_settings(settings.connection("flights_kafka", KafkaConnection)))
    for done in admin.delete_topics([topic]).values():
        done.result()

    (loss,) = losses(settings, topic, 2, 10)

    assert (loss.input, loss.kind, loss.rows) == ("records", LossKind.REMOVED, None)
    assert loss.sentence == f"the topic {topic} is not there any more"
