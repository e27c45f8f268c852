"""Avro, Protobuf and framed JSON of a real broker, by files and by a real registry: columns, or the quarantine.

Every test run decodes JSON of a topic (`test_decoding.py`), the other formats without Spark (`unit/record_values`),
and asks a real registry (`test_schema_registry.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pydantic import SecretStr
from tests.fixtures.deployment import PLANTED_SECRET
from tests.fixtures.kinesis import Kinesis
from tests.fixtures.ports import free_port
from tests.fixtures.registry import Registry
from tests.fixtures.workshop import Workshop
from tests.unit.record_values.test_avro_values import framed, record
from tests.unit.record_values.test_avro_values import written as avro
from tests.unit.record_values.test_protobuf_values import written as protobuf

from sluice.failure_reasons import FailureReason
from sluice.failures.classification import classify
from sluice.failures.error_chains import chain_of
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.source_schemas import FieldChange, source_schemas
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import client_settings

OLD = record(("id", "long"), ("word", ["null", "string"], None))
NEW = record(("id", "long"), ("word", ["null", "string"], None), ("more", "double"))
OTHER = record(("id", "string"))
PROTO = 'syntax = "proto3"; package shop; message Order { int64 id = 1; optional string word = 2; }'
NEW_PROTO = PROTO.replace("}", "double more = 3; }")
TYPES = {"id": "long", "word": "string", "offset": "long"}


@pytest.fixture
def registered(workshop: Workshop, registry: Registry) -> Workshop:
    """A workshop whose deployment has the registry, and one that nobody listens at."""
    away = registry.connection.model_copy(
        update={"url": f"http://127.0.0.1:{free_port()}", "username": "reader", "password": SecretStr(PLANTED_SECRET)}
    )
    connections = {**workshop.settings.connections, "registry": registry.connection, "away": away}
    settings = workshop.settings.model_copy(update={"connections": connections})
    return Workshop(spark=workshop.spark, settings=settings, ledger=workshop.ledger, namespace=workshop.namespace)


def sent(workshop: Workshop, values: Sequence[bytes | None], topic: str = "") -> str:
    """Send values to a topic, a new one when none is named; its name."""
    kafka = workshop.settings.connection("flights_kafka", KafkaConnection)
    configuration: dict[str, Any] = {**client_settings(kafka)}
    if not topic:
        topic = f"t{uuid4().hex}"
        admin = AdminClient(configuration)  # it must live until the topic does
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    producer = Producer(configuration)
    for value in values:
        producer.produce(topic, value=value)
    assert producer.flush(60) == 0
    return topic


def declare(workshop: Workshop, topic: str, value: dict[str, Any]) -> str:
    """Declare a stream of a topic's values into a table of its own; its name."""
    stream = f"v{uuid4().hex[:12]}"
    table = workshop.declare_table(stream, TYPES)
    source = {"connection": "flights_kafka", "topics": [topic], "value": value}
    workshop.declare_stream(
        stream,
        sql="SELECT id, word, record.offset FROM orders",
        inputs={"orders": {"stream": {"kafka": source}}},
        outputs={"main": {"iceberg": {"table": table}}},
        quarantine=True,
    )
    return stream


def refused(workshop: Workshop, stream: str) -> dict[int, tuple[str, str | None]]:
    """Reason and payload of what is in the quarantine, by offset."""
    rows = workshop.rows(f"quarantine.{stream}")
    return {json.loads(row["position"])["offset"]: (row["reason"], row["payload"]) for row in rows}


@pytest.mark.full  # every run: a registry without Spark (`test_schema_registry.py`)
def test_avro_of_a_registry_goes_on_with_a_newer_schema(registered: Workshop, registry: Registry) -> None:
    subject = f"s{uuid4().hex}"
    old = registry.register(subject, OLD)
    topic = sent(registered, [framed(old, avro(OLD, {"id": 1, "word": "one"})), b"{}", None, framed(99999, b"\x02")])
    stream = declare(registered, topic, {"format": "avro", "registry": "registry", "subject": subject, "version": 1})
    assert [batch.refused_rows for batch in registered.run(stream).batches] == [3]

    new, other = registry.register(subject, NEW), registry.register(f"{subject}-other", OTHER)
    newer = framed(new, avro(NEW, {"id": 2, "word": None, "more": 0.5}))
    sent(registered, [newer, framed(other, avro(OTHER, {"id": "x"})), framed(new, b"\x02")], topic)
    assert [batch.refused_rows for batch in registered.run(stream).batches] == [2]
    events = recent_events(registered.ledger, EventSubject.STREAM, stream, limit=50)
    seen = [(one.evidence["now"], one.evidence["answer"]) for one in events if one.action == "see_schema"]
    assert seen == [
        (f"schema {other} of registry", "0 of the 1 values with it in batch 1:1 are decoded, the others are rejected."),
        (f"schema {new} of registry", "1 of the 2 values with it in batch 1:1 are decoded, the others are rejected."),
        ("schema 99999 of registry", "0 of the 1 values with it in batch 1:0 are decoded, the others are rejected."),
    ]
    (last,) = source_schemas(registered.ledger, stream)
    assert (last.source, last.source_before) == (f"schema {other} of registry", f"schema {new} of registry")
    assert FieldChange(field="id", was="required long", now="required string") in last.changes

    assert registered.rows(stream) == [{"id": 1, "word": "one", "offset": 0}, {"id": 2, "word": None, "offset": 4}]
    found = refused(registered, stream)
    assert found[1] == ("the value does not begin with the id of a schema in a registry", "0x7B7D")
    assert found[2] == ("the record has no value", None)
    assert found[3] == (
        "schema 99999: the schema of the value cannot be used: the registry does not have it",
        "0x000001869F02",
    )
    assert found[5][0].startswith(f"schema {other}: the schema of the value does not resolve to the declared one: ")
    assert found[6][0].startswith(f"schema {new}: the value is not valid Avro of its schema: ")


@pytest.mark.full  # every run: the decoder without Spark (`test_protobuf_values.py`)
def test_protobuf_by_a_file_and_by_a_registry(registered: Workshop, registry: Registry) -> None:
    (registered.folder / "order.proto").write_text(PROTO)
    one, broken = protobuf(PROTO, {"id": 1, "word": "one"}), b"\x0a\x01x"
    by_file = declare(registered, sent(registered, [one, broken]), {"format": "protobuf", "schema_file": "order.proto"})
    subject = f"s{uuid4().hex}"
    registry.register(subject, PROTO, kind="PROTOBUF")
    new = registry.register(subject, NEW_PROTO, kind="PROTOBUF")
    newer = framed(new, b"\x00" + protobuf(NEW_PROTO, {"id": 2, "more": 0.5}))
    how = {"format": "protobuf", "schema_file": "order.proto", "registry": "registry"}
    by_registry = declare(registered, sent(registered, [newer, one]), how)

    registered.run(by_file)
    registered.run(by_registry)

    assert registered.rows(by_file) == [{"id": 1, "word": "one", "offset": 0}]
    assert refused(registered, by_file) == {
        1: ("the value is not a valid message of its type: field 1 was sent as another type, at `id`", "0x0A0178")
    }
    assert registered.rows(by_registry) == [{"id": 2, "word": None, "offset": 0}]
    assert list(refused(registered, by_registry)) == [1]


@pytest.mark.full  # every run: JSON without such bytes (`test_decoding.py`)
def test_framed_json(registered: Workshop) -> None:
    columns = [{"name": "id", "type": "long", "required": True}, {"name": "word", "type": "string"}]
    topic = sent(registered, [framed(1, b'{"id": 1}'), b'{"id": 2}', framed(1, b"{")])
    stream = declare(registered, topic, {"format": "json", "registry": "registry", "columns": columns})
    registered.run(stream)
    assert registered.rows(stream) == [{"id": 1, "word": None, "offset": 0}]
    assert {offset: reason for offset, (reason, _) in refused(registered, stream).items()} == {
        1: "the value does not begin with the id of a schema in a registry",
        2: "the value is not JSON: Input data was truncated",
    }


@pytest.mark.full  # every run: one that is away, without Spark (`test_schema_registry.py`)
def test_a_registry_that_is_away_fails_the_run_and_refuses_nothing(
    registered: Workshop, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = sent(registered, [framed(77, avro(OLD, {"id": 1, "word": "one"}))])
    columns = [{"name": name, "type": TYPES[name]} for name in ("id", "word")]
    stream = declare(registered, topic, {"format": "avro", "registry": "away", "columns": columns})
    with pytest.raises(Exception) as raised:  # noqa: PT011  # Spark has one around the worker's
        registered.run(stream)
    assert classify(chain_of(raised.value)).reason is FailureReason.REGISTRY_UNREACHABLE
    assert registered.rows(f"quarantine.{stream}") == []
    assert PLANTED_SECRET not in str(raised.value) + "".join(capfd.readouterr())


@pytest.mark.full
def test_values_of_kinesis(registered: Workshop, kinesis: Kinesis) -> None:
    connections = {**registered.settings.connections, "kinesis": kinesis.connection}
    settings = registered.settings.model_copy(update={"connections": connections})
    workshop = Workshop(
        spark=registered.spark, settings=settings, ledger=registered.ledger, namespace=registered.namespace
    )
    name, stream = kinesis.create_stream(shards=1), f"v{uuid4().hex[:12]}"
    (workshop.folder / "order.avsc").write_text(OLD)
    table = workshop.declare_table(stream, {"id": "long", "shard": "string"})
    source = {"connection": "kinesis", "stream": name, "value": {"format": "avro", "schema_file": "order.avsc"}}
    workshop.declare_stream(
        stream,
        sql="SELECT id, record.shard FROM orders",
        inputs={"orders": {"stream": {"kinesis": source}}},
        outputs={"main": {"iceberg": {"table": table}}},
        quarantine=True,
    )
    kinesis.client.put_record(StreamName=name, Data=avro(OLD, {"id": 1, "word": "one"}), PartitionKey="a")
    kinesis.client.put_record(StreamName=name, Data=b"\xff", PartitionKey="a")
    workshop.run(stream)
    (shard,) = kinesis.shards(name)
    assert workshop.rows(stream) == [{"id": 1, "shard": shard}]
    (row,) = workshop.rows(f"quarantine.{stream}")
    position = json.loads(row["position"])
    assert (position["stream"], position["shard"], row["payload"]) == (name, shard, "0xFF")
    assert position["sequence_number"]
