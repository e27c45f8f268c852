"""Values that are decoded become columns; what cannot be decoded is in the quarantine, each record once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.fixtures.workshop import Workshop

from sluice.record_values.arrow_columns import DecodedBlock
from sluice.record_values.rejection import LARGEST_VALUE_BYTES, too_large
from sluice.record_values.schemas import ValueSchema
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import client_settings
from sluice_spark.query.stream_preview import preview
from sluice_spark.sources import value_decoding

COLUMNS = [
    {"name": "id", "type": "long", "required": True},
    {"name": "word", "type": "string"},
    {"name": "ordered_at", "type": "timestamptz"},
]
CONTINUOUS = {"mode": "continuous", "trigger": {"processing_time": "1 second"}}
VALUES: list[tuple[bytes | None, str | None]] = [
    (b'{"id": 1, "word": "one", "ordered_at": "2026-01-31T12:00:00Z", "more": [1]}', None),
    (b'{"id": 2, "word": null}', None),
    (
        b'{"id": "three"}',
        "the value does not fit the declared columns: Expected `int | null`, got `str`, at `$.id`",
    ),
    (b"{", "the value is not JSON: Input data was truncated"),
    (b'{"word": "nameless"}', "the value lacks required columns: id"),
    (b"\xff\xfe", "the value is not UTF-8 text"),
    (None, "the record has no value"),
]
"""What is sent, and why it is refused."""


def sent(workshop: Workshop, values: list[bytes | None], topic: str = "") -> str:
    """Send values to a topic, a new one when none is named; its name."""
    configuration: dict[str, Any] = {**client_settings(workshop.settings.connection("flights_kafka", KafkaConnection))}
    most = max(2**20, 2 * max(len(value or b"") for value in values))
    if not topic:
        topic = f"t{uuid4().hex}"
        admin = AdminClient(configuration)
        wanted = NewTopic(topic, 1, 1, config={"max.message.bytes": str(most)})
        admin.create_topics([wanted])[topic].result()
    producer = Producer({**configuration, "message.max.bytes": most})
    for value in values:
        producer.produce(topic, value=value)
    assert producer.flush(60) == 0
    return topic


def declared(
    workshop: Workshop,
    topic: str,
    sql: str = "SELECT id, word, record.offset FROM orders",
    *,
    how: Any = None,
    **kafka: Any,
) -> str:
    """Declare a stream of a topic's values; its name. how: more keys of the stream. kafka: more keys of the source."""
    stream = f"d{uuid4().hex[:12]}"
    table = workshop.declare_table(stream, {"id": "long", "word": "string", "offset": "long"})
    value = {"format": "json", "columns": COLUMNS}
    source = {"connection": "flights_kafka", "topics": [topic], "value": value, **kafka}
    workshop.declare_stream(
        stream,
        sql=sql,
        inputs={"orders": {"stream": {"kafka": source}, "watermark": {"column": "ordered_at", "delay": "1 hour"}}},
        outputs={"main": {"iceberg": {"table": table}}},
        quarantine=True,
        **(how or {}),
    )
    return stream


def refused_offsets(workshop: Workshop, stream: str) -> list[int]:
    """The offsets of the records in the quarantine, each as often as it is there."""
    return sorted(json.loads(row["position"])["offset"] for row in workshop.rows(f"quarantine.{stream}"))


def test_what_cannot_be_decoded_is_refused_with_its_place_and_its_reason(workshop: Workshop) -> None:
    topic = sent(workshop, [value for value, _ in VALUES])
    stream = declared(workshop, topic)

    batches = workshop.run(stream).batches

    assert workshop.rows(stream) == [{"id": 1, "word": "one", "offset": 0}, {"id": 2, "word": None, "offset": 1}]
    refused = {json.loads(row["position"])["offset"]: row for row in workshop.rows(f"quarantine.{stream}")}
    assert {offset: row["reason"] for offset, row in refused.items()} == {
        offset: reason for offset, (_, reason) in enumerate(VALUES) if reason is not None
    }
    assert {offset: (row["kind"], row["path"], row["quotes_data"]) for offset, row in refused.items()} == {
        2: ("mismatch", "$.id", False),
        3: ("not_json", None, False),
        4: ("lacking", None, False),
        5: ("not_text", None, False),
        6: ("no_value", None, False),
    }
    assert json.loads(refused[3]["position"]) == {"topic": topic, "partition": 0, "offset": 3}
    assert [refused[offset]["payload"] for offset in (3, 5, 6)] == ["{", "0xFFFE", None]
    total = sum(batch.input_rows for batch in batches)
    assert (total, sum(batch.refused_rows for batch in batches)) == (7, 5)
    assert [batch.undeclared_fields for batch in batches if batch.undeclared_fields] == [{"orders": {"more": 1}}]


@pytest.mark.full  # every run: `test_unavailable_values.py`, without Spark
def test_a_marker_of_a_value_that_the_sender_does_not_have_is_no_text(workshop: Workshop) -> None:
    topic = sent(workshop, [b'{"id": 1, "word": "__debezium_unavailable_value"}', b'{"id": 2, "word": "two"}'])
    stream = declared(workshop, topic)

    workshop.run(stream)

    assert [row["word"] for row in workshop.rows(stream)] == ["two"]
    (row,) = workshop.rows(f"quarantine.{stream}")
    assert (row["kind"], row["path"], json.loads(row["position"])["offset"]) == ("unavailable", "word", 0)
    seen = preview(workshop.spark, workshop.stream(stream), workshop.settings, sample=100, shown=100)
    assert sum(seen.refused.values()) == 1


@pytest.mark.full  # every run: a topic and its preview (`test_tombstones.py`)
def test_a_continuous_stream_an_incremental_one_and_a_preview_decode_alike(workshop: Workshop) -> None:
    topic = sent(workshop, [value for value, _ in VALUES])
    incremental, continuous = declared(workshop, topic), declared(workshop, topic, how=CONTINUOUS)

    workshop.run(incremental)
    workshop.run(continuous, stop_after_batches=1)
    seen = preview(workshop.spark, workshop.stream(incremental), workshop.settings, sample=100, shown=100)

    def refused(stream: str) -> list[tuple[Any, ...]]:
        return [(row["reason"], row["position"], row["payload"]) for row in workshop.rows(f"quarantine.{stream}")]

    assert workshop.rows(incremental) == workshop.rows(continuous) == list(seen.outputs[0].first)
    assert sorted(refused(incremental), key=str) == sorted(refused(continuous), key=str)
    assert seen.refused == Counter(reason for _, reason in VALUES if reason is not None)


@pytest.mark.full  # every run: of a table (`test_stored_values.py`)
def test_a_field_that_nobody_declared_stops_the_stream_where_that_is_declared(workshop: Workshop) -> None:
    topic = sent(workshop, [b'{"id": 1}', b'{"id": 2, "more": 1}'])
    value = {"format": "json", "columns": COLUMNS, "on_unknown_field": "fail"}
    stream = declared(workshop, topic, value=value)

    with pytest.raises(Exception, match=r"fields that are not declared: `more`, at \{.*\"offset\":1\}"):
        workshop.run(stream)

    assert workshop.rows(stream) == []


@pytest.mark.full  # every run: some of them
def test_more_rejected_records_than_the_driver_keeps_are_all_in_the_quarantine(workshop: Workshop) -> None:
    topic = sent(workshop, [b'{"id": 1}', *[b"{"] * 700, b'{"id": 2}'])
    stream = declared(workshop, topic)

    batches = workshop.run(stream).batches

    assert [row["id"] for row in workshop.rows(stream)] == [1, 2]
    assert refused_offsets(workshop, stream) == list(range(1, 701))
    assert sum(batch.refused_rows for batch in batches) == 700


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, word, record.offset FROM orders WHERE 1 = 0",
        pytest.param(
            "SELECT o.id, o.word, o.record.offset "
            "FROM orders o JOIN (SELECT 1 AS id WHERE rand() > 2) e ON o.id = e.id",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "SELECT id, word, max(record.offset) AS offset FROM orders GROUP BY id, word, window(ordered_at, '1 hour')",
            marks=pytest.mark.full,
        ),
    ],
)
def test_rejected_records_are_kept_whatever_becomes_of_the_others(workshop: Workshop, sql: str) -> None:
    topic = sent(workshop, [b"{", b'{"id": 1}', None])
    stream = declared(workshop, topic, sql)

    workshop.run(stream)

    assert workshop.rows(stream) == []
    assert refused_offsets(workshop, stream) == [0, 2]


def test_an_event_time_far_ahead_of_the_clock_does_not_move_the_watermark(workshop: Workshop) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    ahead = [timedelta(0), timedelta(days=2), timedelta(hours=23)]
    values = [f'{{"id": {number}, "ordered_at": "{(now + by).isoformat()}"}}' for number, by in enumerate(ahead)]
    topic = sent(workshop, [value.encode() for value in values])
    stream = declared(workshop, topic)
    workshop.run(stream)
    sent(workshop, [b'{"id": 3}'], topic)

    batches = workshop.run(stream).batches

    assert [row["id"] for row in workshop.rows(stream)] == [0, 2, 3]
    assert refused_offsets(workshop, stream) == [1]
    (reason,) = {row["reason"] for row in workshop.rows(f"quarantine.{stream}")}
    assert reason.startswith("the event time is too far ahead of the clock: ")
    assert reason.endswith(" is more than 1 day, 0:00:00 ahead, at `ordered_at`")
    assert [batch.watermark for batch in batches] == [now + timedelta(hours=22)]


@pytest.mark.full  # every run: other starts (`test_sources.py`)
def test_a_start_time_works_on_a_partition_without_later_records(workshop: Workshop) -> None:
    topic = sent(workshop, [b'{"id": 1}'])
    stream = declared(workshop, topic, starting=datetime.now(UTC) + timedelta(minutes=5))
    workshop.run(stream)
    sent(workshop, [b'{"id": 2}'], topic)

    workshop.run(stream)

    assert [row["id"] for row in workshop.rows(stream)] == [2]


@pytest.mark.full  # every run: `test_decoding_apart.py`, without Spark
def test_values_that_end_or_stall_the_decoder_stop_no_stream(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_soundly = value_decoding.judged

    def decode(schema: ValueSchema, values: Sequence[bytes | None]) -> DecodedBlock:  # this runs in Spark's workers
        if b"kill" in values:
            os.kill(os.getpid(), signal.SIGKILL)
        while b"stall" in values:
            time.sleep(1)  # the decoder that never ends
        return decode_soundly(schema, values)

    monkeypatch.setattr(value_decoding, "judged", decode)
    topic = sent(workshop, [b'{"id": 0}', b"kill", b'{"id": 2}', b"stall", b'{"id": 4}', b'{"id": 5}'])
    value = {"format": "json", "columns": COLUMNS, "decoding_timeout": "1 second", "decoding_tries": 1}
    stream = declared(workshop, topic, how=CONTINUOUS, value=value, max_offsets_per_batch=4)

    result = workshop.run(stream, stop_after_batches=2)

    assert [batch.input_rows for batch in result.batches] == [4, 2]
    assert [row["id"] for row in workshop.rows(stream)] == [0, 2, 4, 5]
    refused = {json.loads(row["position"])["offset"]: row for row in workshop.rows(f"quarantine.{stream}")}
    assert {offset: (row["payload"], row["reason"]) for offset, row in refused.items()} == {
        1: ("kill", "the process that decoded the value has ended: it died of SIGKILL (tries: 1)"),
        3: ("stall", "the process that decoded the value has ended: it took longer than 1 seconds (tries: 1)"),
    }


@pytest.mark.full  # every run bounds them without Spark (`test_bounded_values.py`)
def test_a_value_that_is_too_large_is_in_the_quarantine_and_the_stream_goes_on(workshop: Workshop) -> None:
    large = b'{"id": 1, "word": "' + b"x" * LARGEST_VALUE_BYTES + b'"}'
    topic = sent(workshop, [b'{"id": 0}', large, b'{"id": 2}', b'{"id": 3}'])
    stream = declared(workshop, topic, how=CONTINUOUS, max_offsets_per_batch=3)

    result = workshop.run(stream, stop_after_batches=2)

    assert [batch.input_rows for batch in result.batches] == [3, 1]
    assert [row["id"] for row in workshop.rows(stream)] == [0, 2, 3]
    (refused,) = workshop.rows(f"quarantine.{stream}")
    assert json.loads(refused["position"])["offset"] == 1
    assert refused["reason"] == too_large(len(large)).sentence
    assert refused["payload"] == large.decode()
