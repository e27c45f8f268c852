"""Values that are decoded become columns; what cannot be decoded is in the quarantine, each record once."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.fixtures.workshop import Workshop

from sluice.settings import KafkaConnection

COLUMNS = [
    {"name": "id", "type": "long", "required": True},
    {"name": "word", "type": "string"},
    {"name": "ordered_at", "type": "timestamptz"},
]
VALUES: list[tuple[bytes | None, str | None]] = [
    (b'{"id": 1, "word": "one", "ordered_at": "2026-01-31T12:00:00Z", "more": [1]}', None),
    (b'{"id": 2, "word": null}', None),
    (b'{"id": "three"}', "the value is not a JSON object of the declared columns"),
    (b"{", "the value is not a JSON object of the declared columns"),
    (b'{"word": "nameless"}', "the value lacks id"),
    (b"\xff\xfe", "the value is not UTF-8 text"),
    (None, "the record has no value"),
]
"""What is sent, and why it is refused."""


def test_what_cannot_be_decoded_is_refused_with_its_place_and_its_reason(workshop: Workshop) -> None:
    configuration: dict[str, Any] = {
        "bootstrap.servers": workshop.settings.connection("flights_kafka", KafkaConnection).bootstrap_servers
    }
    topic, stream = f"t{uuid4().hex}", f"d{uuid4().hex[:12]}"
    admin = AdminClient(configuration)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    producer = Producer(configuration)
    for value, _ in VALUES:
        producer.produce(topic, value=value)
    assert producer.flush(60) == 0
    table = workshop.declare_table(stream, {"id": "long", "word": "string", "offset": "long"})
    source = {"connection": "flights_kafka", "topics": [topic], "value": {"format": "json", "columns": COLUMNS}}
    workshop.declare_stream(
        stream,
        sql="SELECT id, word, record.offset FROM orders",
        inputs={
            "orders": {"stream": {"kafka": source}, "watermark": {"column": "ordered_at", "delay": "1 hour"}},
        },
        outputs={"main": {"iceberg": {"table": table}}},
        quarantine=True,
    )

    batches = workshop.run(stream).batches

    assert workshop.rows(stream) == [{"id": 1, "word": "one", "offset": 0}, {"id": 2, "word": None, "offset": 1}]
    refused = {json.loads(row["position"])["offset"]: row for row in workshop.rows(f"quarantine.{stream}")}
    assert {offset: row["reason"] for offset, row in refused.items()} == {
        offset: reason for offset, (_, reason) in enumerate(VALUES) if reason is not None
    }
    assert json.loads(refused[3]["position"]) == {"topic": topic, "partition": 0, "offset": 3}
    assert [refused[offset]["payload"] for offset in (3, 5, 6)] == ["{", "0xFFFE", None]
    total = sum(batch.input_rows for batch in batches)
    assert (total, sum(batch.refused_rows for batch in batches)) == (7, 5)
