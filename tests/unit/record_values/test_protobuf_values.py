"""Protobuf values become their columns by the numbers of their fields, or are refused with the reason."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.rejections import sentence
from tests.unit.record_values.test_avro_values import REGISTRY, framed

from sluice.declarations.protobuf_schemas import compiled, message_columns, message_of
from sluice.record_values.block_decoding import ValueDecoder
from sluice.record_values.schemas import RegisteredSchema, SchemaText, ValueSchema

EVERYTHING = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Kind { NONE = 0; BOOK = 1; }
message Order {
  message Place { double x = 1; optional int32 y = 2; }
  double d = 1; float f = 2; int32 i = 3; int64 l = 4; uint32 u = 5; uint64 ul = 6; sint32 si = 7; sint64 sl = 8;
  fixed32 fi = 9; fixed64 fl = 10; sfixed32 sfi = 11; sfixed64 sfl = 12; bool b = 13; string s = 14; bytes by = 15;
  Kind kind = 16;
  optional int32 maybe = 17;
  google.protobuf.Timestamp at = 18;
  google.protobuf.StringValue note = 19;
  repeated string tags = 20;
  repeated Place places = 21;
  map<string, int32> sizes = 22;
  map<int32, Place> by_number = 23;
  oneof payment { string card = 24; int64 cash = 25; }
  Place home = 26;
}
"""
TYPES = {
    "d": "double", "f": "float", "i": "int", "l": "long", "u": "long", "ul": "decimal(20, 0)", "si": "int",
    "sl": "long", "fi": "long", "fl": "decimal(20, 0)", "sfi": "int", "sfl": "long", "b": "boolean", "s": "string",
    "by": "binary", "kind": "string", "maybe": "int", "at": "timestamptz", "note": "string", "tags": "list<string>",
    "places": "list<struct<x: double, y: int>>", "sizes": "map<string, int>",
    "by_number": "map<int, struct<x: double, y: int>>", "card": "string", "cash": "long",
    "home": "struct<x: double, y: int>",
}  # fmt: skip
UNSET = {
    "d": 0.0, "f": 0.0, "i": 0, "l": 0, "u": 0, "ul": 0, "si": 0, "sl": 0, "fi": 0, "fl": 0, "sfi": 0, "sfl": 0,
    "b": False, "s": "", "by": b"", "kind": "NONE", "maybe": None, "at": None, "note": None, "tags": [], "places": [],
    "sizes": [], "by_number": [], "card": None, "cash": None, "home": None,
}  # fmt: skip


def written(schema: str, fields: dict[str, Any], message: str | None = None) -> bytes:
    """A value, as a sender writes it. fields: in Protobuf's own JSON."""
    return ParseDict(fields, GetMessageClass(message_of(compiled(schema), message))()).SerializeToString()


def decoder(schema: str, known: dict[int, str] | None = None, *, message: str | None = None) -> ValueDecoder:
    """A decoder for a schema. known: the schemas of a registry by their ids; unset: values without ids."""
    columns = message_columns(message_of(compiled(schema), message))
    registry = None if known is None else REGISTRY
    reader = SchemaText(text=schema)
    how = ValueSchema(format="protobuf", columns=columns, reader=reader, message=message, registry=registry)
    schemas = {
        key: RegisteredSchema(format="protobuf", schema=SchemaText(text=text)) for key, text in (known or {}).items()
    }
    return ValueDecoder(how, lookup=None if known is None else schemas.get)


def fields_of(value: bytes, by: ValueDecoder) -> Any:
    """The fields of a value that must be sound."""
    told = by.decode(value)
    assert told.rejection is None
    return told.fields


def test_every_kind_of_field_has_its_column() -> None:
    assert {column.name: column.type for column in message_columns(message_of(compiled(EVERYTHING), None))} == TYPES


def test_what_was_not_sent_is_null_where_that_is_known_and_the_default_elsewhere() -> None:
    assert fields_of(b"", decoder(EVERYTHING)) == UNSET


def test_every_kind_of_value_arrives() -> None:
    sent = {
        "ul": str(2**64 - 1), "l": str(-(2**63)), "u": 2**32 - 1, "by": "/w==", "kind": "BOOK", "maybe": 0,
        "at": "2026-01-31T12:00:00.000005Z", "note": "", "tags": ["a", ""], "places": [{"x": 0.5}, {"y": 0}],
        "sizes": {"a": 1}, "byNumber": {"7": {"x": 1}}, "cash": "0", "home": {},
    }  # fmt: skip
    assert fields_of(written(EVERYTHING, sent), decoder(EVERYTHING)) == UNSET | {
        "ul": 2**64 - 1, "l": -(2**63), "u": 2**32 - 1, "by": b"\xff", "kind": "BOOK", "maybe": 0,
        "at": datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC), "note": "", "tags": ["a", ""],
        "places": [{"x": 0.5, "y": None}, {"x": 0.0, "y": 0}], "sizes": [("a", 1)],
        "by_number": [(7, {"x": 1.0, "y": None})], "cash": 0, "home": {"x": 0.0, "y": None},
    }  # fmt: skip


def order(*fields: str, more: str = "") -> str:
    """A schema of one message with these fields."""
    return f'syntax = "proto3"; package shop; message Order {{ {" ".join(fields)} }} {more}'


ORDER = order("int64 id = 1;", "optional string word = 2;")
GOOD = written(ORDER, {"id": 1, "word": "one"})
UNUSABLE = "schema 1: the schema of the value cannot be used: "


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff", "the value is not a valid message of its type: "),
        (GOOD[:-1], "the value is not a valid message of its type: "),
        (b"\x12\x01\xff", "the value is not a valid message of its type: "),
        (
            written(order("string id = 1;"), {"id": "x"}),
            "the value is not a valid message of its type: field 1 was sent as another type, at `id`",
        ),
    ],
)
def test_bytes_that_are_no_such_message_are_refused(value: bytes, reason: str) -> None:
    assert sentence(decoder(ORDER).decode(value).rejection).startswith(reason)


def test_a_writer_with_a_new_field_is_read_and_a_renamed_one_is_known_by_its_number() -> None:
    newer = order("int64 number = 1;", "string word = 2;", "double more = 3;")
    by = decoder(ORDER, {1: ORDER, 2: newer})
    assert fields_of(framed(1, b"\x00" + GOOD), by) == {"id": 1, "word": "one"}
    sent = written(newer, {"number": 2, "word": "two", "more": 0.5})
    assert fields_of(framed(2, b"\x00" + sent), by) == {"id": 2, "word": "two"}


def test_the_message_is_the_one_that_the_value_names() -> None:
    nested = order("int64 id = 1;", "message Line { int32 n = 1; }", more="message Other { string s = 1; }")
    by = decoder(nested, {1: nested}, message="shop.Order.Line")
    line = written(nested, {"n": 3}, "shop.Order.Line")
    assert fields_of(framed(1, b"\x04\x00\x00" + line), by) == {"n": 3}
    rejections = [by.decode(framed(1, content)).rejection for content in (b"\x02\x02" + line, b"\x02\x08" + line, b"")]
    assert [sentence(rejection) for rejection in rejections] == [
        f"{UNUSABLE}it is of a shop.Other, not of a shop.Order.Line",
        f"{UNUSABLE}it has no message at 4",
        "the value does not name its message",
    ]


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("sint64 id = 1;", "id (1) was sint64 and is int64"),
        ("string id = 1;", "id (1) was string and is int64"),
        ("repeated int64 id = 1;", "id (1) was repeated int64 and is int64"),
        ("map<string, int64> id = 1;", "id (1) was map and is int64"),
    ],
)
def test_a_schema_with_another_kind_under_a_number_is_refused(field: str, told: str) -> None:
    by = decoder(ORDER, {1: order(field)})
    rejection = by.decode(framed(1, b"\x00")).rejection
    assert sentence(rejection) == f"{UNUSABLE}it is incompatible with the declared one: {told}"


@pytest.mark.parametrize(
    ("text", "message", "problem"),
    [
        ('syntax = "proto3"; message A {\n int64 id 1; }', None, "protoc refuses it: a.proto:2:11: "),
        ('syntax = "proto3";', None, "it has no message at all; it has none"),
        (ORDER, "shop.Nothing", "it has no message shop.Nothing; it has shop.Order"),
        (order("Order inner = 1;"), None, "inner.inner.inner"),
        (order("Empty inner = 1;", more="message Empty {}"), None, "inner is shop.Empty, which has no fields"),
        ('syntax = "proto3"; import "b.proto"; message A {}', None, "protoc refuses it: b.proto: File not found"),
    ],
)
def test_a_schema_that_cannot_be_used_is_reported(text: str, message: str | None, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        message_columns(message_of(compiled(text, name="a.proto"), message))


def test_a_schema_may_import_others() -> None:
    text = 'syntax = "proto3"; import "b/c.proto"; message A { B b = 1; }'
    file = compiled(text, (("b/c.proto", 'syntax = "proto3"; message B { int32 n = 1; }'),))
    assert [column.type for column in message_columns(message_of(file, None))] == ["struct<n: int>"]
    with pytest.raises(ValueError, match="not a path below its own folder"):
        compiled(text, (("../c.proto", ""),))


WHOLE, REGISTERED = decoder(EVERYTHING), decoder(EVERYTHING, {0: EVERYTHING})


@given(st.binary(max_size=64))
def test_no_bytes_make_a_decoder_fail(value: bytes) -> None:
    for by in (WHOLE, REGISTERED):
        told = by.decode(value)
        assert (told.fields is None) == (told.rejection is not None)
