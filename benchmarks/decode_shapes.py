"""The records of `decode_time`: two shapes, in every format, in topics and in files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.delivery_time import kafka_of
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from fastavro import parse_schema, schemaless_writer
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from tests.fixtures.stack import Stack

from sluice.declarations.column_types import ColumnType, ListType, PrimitiveType, StructType, parse_column_type
from sluice.declarations.protobuf_schemas import compiled, message_of
from sluice.sources.kafka_clients import client_settings

Record = Callable[[int], dict[str, Any]]
Encode = Callable[[dict[str, Any]], bytes]

SMALL = {"id": "long", "word": "string", "amount": "double", "at": "timestamptz"}
WIDE = {
    "id": "long",
    **{f"text_{number}": "string" for number in range(12)},
    **{f"whole_{number}": "long" for number in range(10)},
    **{f"number_{number}": "double" for number in range(6)},
    **{f"is_{number}": "boolean" for number in range(4)},
    **{f"at_{number}": "timestamptz" for number in range(3)},
    "tags": "list<string>",
    "customer": "struct<name: string, street: string, zip: int>",
    "lines": "list<struct<item: long, price: double>>",
    "notes": "string",
}

_AVRO = {"timestamptz": {"type": "long", "logicalType": "timestamp-micros"}}
_PROTOBUF = {
    "long": "int64",
    "int": "int32",
    "boolean": "bool",
    "timestamptz": "google.protobuf.Timestamp",
}


def small_record(number: int) -> dict[str, Any]:
    """A record of four fields."""
    at = f"2026-01-01T00:{number % 60:02}:00Z"
    return {"id": number, "word": f"word {number % 97}", "amount": number / 7, "at": at}


def wide_record(number: int) -> dict[str, Any]:
    """A record of forty fields, some of them with fields of their own."""
    return {
        "id": number,
        **{f"text_{index}": f"text {(number + index) % 89}" for index in range(12)},
        **{f"whole_{index}": number * index for index in range(10)},
        **{f"number_{index}": (number + index) / 7 for index in range(6)},
        **{f"is_{index}": (number + index) % 2 == 0 for index in range(4)},
        **{f"at_{index}": f"2026-01-01T{index:02}:{number % 60:02}:00.{number % 1000:03}Z" for index in range(3)},
        "tags": [f"tag {index}" for index in range(number % 4)],
        "customer": {"name": f"name {number % 977}", "street": "a street", "zip": number % 100000},
        "lines": [{"item": index, "price": index / 3} for index in range(number % 3)],
        "notes": None,
    }


def avro_schema(columns: Mapping[str, str]) -> dict[str, Any]:
    """The Avro schema of a shape: each field may be null, as the columns may be."""
    types = {name: _avro_type(parse_column_type(kind), name) for name, kind in columns.items()}
    fields = [{"name": name, "type": ["null", kind], "default": None} for name, kind in types.items()]
    return {"type": "record", "name": "Shape", "fields": fields}


def _avro_type(kind: ColumnType, name: str) -> Any:
    match kind:
        case PrimitiveType(primitive):
            return _AVRO.get(primitive, primitive)
        case ListType(element):
            return {"type": "array", "items": _avro_type(element, name)}
        case StructType(fields):
            inner = [{"name": key, "type": _avro_type(one, f"{name}_{key}")} for key, one in fields]
            return {"type": "record", "name": name, "fields": inner}
    raise ValueError(f"no Avro type for {kind}")


def protobuf_schema(columns: Mapping[str, str]) -> str:
    """The Protobuf schema of a shape: fields that are no lists and no messages have a presence."""
    messages: list[str] = []
    types = [(name, parse_column_type(kind)) for name, kind in columns.items()]
    fields = [_protobuf_field(name, kind, number, messages) for number, (name, kind) in enumerate(types, 1)]
    head = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; '
    return f"{head}message Shape {{ {' '.join(fields)} }} {' '.join(messages)}"


def _protobuf_field(name: str, kind: ColumnType, number: int, messages: list[str]) -> str:
    label = "repeated" if isinstance(kind, ListType) else "optional"
    element = kind.element if isinstance(kind, ListType) else kind
    if isinstance(element, StructType):
        inner = [_protobuf_field(key, one, place, messages) for place, (key, one) in enumerate(element.fields, 1)]
        messages.append(f"message {name.title()} {{ {' '.join(inner)} }}")
        return f"{label} {name.title()} {name} = {number};"
    primitive = element.name if isinstance(element, PrimitiveType) else ""
    return f"{label} {_PROTOBUF.get(primitive, primitive)} {name} = {number};"


def json_encoder(record: dict[str, Any]) -> bytes:
    """A record as JSON."""
    return json.dumps(record).encode()


def with_undeclared(record: dict[str, Any]) -> bytes:
    """A record as JSON with two fields that no column takes."""
    return json_encoder({**record, "version": 7, "origin": {"host": "shop", "tags": ["web"]}})


def avro_encoder(columns: Mapping[str, str]) -> Encode:
    """Makes Avro of records."""
    schema = parse_schema(avro_schema(columns))
    times = [name for name, kind in columns.items() if kind == "timestamptz"]

    def encode(record: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        typed = {name: datetime.fromisoformat(record[name]) for name in times}
        schemaless_writer(stream, schema, record | typed)
        return stream.getvalue()

    return encode


def protobuf_encoder(columns: Mapping[str, str]) -> Encode:
    """Makes Protobuf messages of records."""
    message = GetMessageClass(message_of(compiled(protobuf_schema(columns)), None))
    return lambda record: ParseDict(record, message()).SerializeToString()


def malformed(encode: Encode, *, every: int) -> Encode:
    """The same, but one of so many loses its last byte."""
    return lambda record: encode(record)[: -1 if record["id"] % every == 0 else None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One kind of records. columns: with their types. rows: of a batch, of which there are so many."""

    columns: Mapping[str, str]
    record: Record
    rows: int
    batches: int

    def topic(self, stack: Stack, encode: Encode) -> str:
        """A topic of two partitions with all records; its name."""
        name = f"b{uuid4().hex}"
        admin = AdminClient(client_settings(kafka_of(stack)))
        admin.create_topics([NewTopic(name, 2, 1)])[name].result()
        options = {"linger.ms": 50, "queue.buffering.max.messages": 2_000_000}
        producer = Producer({**client_settings(kafka_of(stack)), **options})
        for number in range(self.rows * self.batches):
            producer.produce(name, value=encode(self.record(number)), partition=number % 2)
            producer.poll(0)
            if number % 10_000 == 0:
                producer.flush(300)
        if left := producer.flush(300):
            raise SystemExit(f"{left} records did not reach the broker")
        return name

    def files(self, folder: Path, form: str) -> Path:
        """A folder with two files for each batch, in csv or in JSON lines."""
        folder.mkdir(parents=True)
        part = self.rows // 2
        for number in range(2 * self.batches):
            records = map(self.record, range(number * part, (number + 1) * part))
            with (folder / f"{number:03}.{form}").open("w", newline="") as file:
                if form == "csv":
                    writer = csv.DictWriter(file, list(self.columns))
                    writer.writeheader()
                    writer.writerows(records)
                else:
                    file.writelines(f"{json.dumps(record)}\n" for record in records)
        return folder
