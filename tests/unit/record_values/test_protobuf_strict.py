"""What the parser of Protobuf takes for another value is rejected, with the reason and the path; the rest is not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.fixtures.rejections import sentence
from tests.unit.record_values.test_avro_values import framed
from tests.unit.record_values.test_binary_columnar import of_protobuf
from tests.unit.record_values.test_protobuf_values import decoder, fields_of, order

LARGE = 2**32
INVALID = "the value is not a valid message of its type: "
KIND = "enum Kind { NONE = 0; BOOK = 1; }"
PLACE = "message Place { int32 x = 1; repeated int32 many = 2; }"
WRAPPERS = 'import "google/protobuf/wrappers.proto";'
TIMESTAMP = 'import "google/protobuf/timestamp.proto";'


def varint(number: int) -> bytes:
    """A number of seven bits a byte."""
    rest, octet = number >> 7, number & 0x7F
    return bytes([octet | 0x80]) + varint(rest) if rest else bytes([octet])


def sent(content: bytes, *, number: int = 1) -> bytes:
    """A field of bytes, or of a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def whole(number: int, *, field: int = 1) -> bytes:
    """A field of a number of variable length."""
    return varint(field << 3) + varint(number)


def both(value: bytes, text: str) -> str:
    """Why a value is rejected, alone and as one of a block."""
    decoded = decoder(text).decode(value)
    columnar = of_protobuf(text)
    block = pa.array([value, b""], pa.binary())
    found = columnar.completed(columnar.columnar(block), block, columnar.decode_values)
    assert found.rejections == ({} if decoded.rejection is None else {0: decoded.rejection})
    assert (decoded.fields is None) == (decoded.rejection is not None)
    return sentence(decoded.rejection)


PAIR = sent(b"a") + whole(1, field=2)
NUMBER_PAIR = whole(7) + whole(1, field=2)


@pytest.mark.parametrize(
    ("field", "content", "reason"),
    [
        ("int32 k = 1;", whole(LARGE), f"the number {LARGE} is no int32, at `k`"),
        ("int32 k = 1;", whole(LARGE - 1), f"the number {LARGE - 1} is no int32, at `k`"),
        ("int32 k = 1;", whole(2**64 - 2**31 - 1), f"the number {-(2**31) - 1} is no int32, at `k`"),
        ("uint32 k = 1;", whole(LARGE), f"the number {LARGE} is no uint32, at `k`"),
        ("uint32 k = 1;", whole(2**64 - 1), f"the number {2**64 - 1} is no uint32, at `k`"),
        ("sint32 k = 1;", whole(LARGE), f"the number {2**31} is no sint32, at `k`"),
        ("Kind k = 1;", whole(LARGE + 1), f"the number {LARGE + 1} is no enum, at `k`"),
        ("bool k = 1;", whole(LARGE), f"the number {LARGE} is no bool, at `k`"),
        ("bool k = 1;", whole(2), "the number 2 is no bool, at `k`"),
        ("int64 k = 1;", b"\x08" + b"\xff" * 9 + b"\x02", "the number has more than 64 bits, at `k`"),
        ("uint64 k = 1;", b"\x08" + b"\xff" * 9 + b"\x03", "the number has more than 64 bits, at `k`"),
        ("sint64 k = 1;", b"\x08" + b"\xff" * 9 + b"\x7f", "the number has more than 64 bits, at `k`"),
        ("optional int32 k = 1;", whole(LARGE) + whole(1), f"the number {LARGE} is no int32, at `k`"),
        ("oneof o { int32 k = 1; bool l = 2; }", whole(2, field=2), "the number 2 is no bool, at `l`"),
        ("repeated int32 k = 1;", sent(varint(1) + varint(LARGE)), f"the number {LARGE} is no int32, at `k[]`"),
        ("repeated int32 k = 1;", whole(1) + whole(LARGE), f"the number {LARGE} is no int32, at `k[]`"),
        ("Place k = 1;", sent(whole(LARGE)), f"the number {LARGE} is no int32, at `k.x`"),
        ("repeated Place k = 1;", sent(b"") + sent(whole(LARGE)), f"the number {LARGE} is no int32, at `k[].x`"),
        ("Place k = 1;", sent(sent(varint(LARGE), number=2)), f"the number {LARGE} is no int32, at `k.many[]`"),
        ("map<string, int32> k = 1;", sent(PAIR) * 2, "the map has the key a twice, at `k`"),
        ("map<int32, int32> k = 1;", sent(NUMBER_PAIR) * 2, "the map has the key 7 twice, at `k`"),
        ("map<sint32, int32> k = 1;", sent(NUMBER_PAIR) * 2, "the map has the key -4 twice, at `k`"),
        ("map<bool, int32> k = 1;", sent(whole(0)) + sent(b""), "the map has the key 0 twice, at `k`"),
        ("map<string, int32> k = 1;", sent(b"") + sent(sent(b"")), "the map has the key  twice, at `k`"),
        ("map<sfixed32, int32> k = 1;", sent(b"\x0d" + b"\xff" * 4) * 2, "the map has the key -1 twice, at `k`"),
        ("map<fixed64, int32> k = 1;", sent(b"\x09" + bytes(8)) + sent(b""), "the map has the key 0 twice, at `k`"),
        ("map<string, int32> k = 1;", sent(whole(LARGE, field=2)), f"the number {LARGE} is no int32, at `k{{}}.value`"),
        ("map<int32, int32> k = 1;", sent(whole(LARGE)), f"the number {LARGE} is no int32, at `k{{}}.key`"),
        ("map<int32, Place> k = 1;", sent(sent(whole(LARGE), number=2)), f"{LARGE} is no int32, at `k{{}}.value.x`"),
        ("Tree k = 1;", sent(sent(PAIR)) * 2, "the map has the key a twice, at `k.m`"),
    ],
)
def test_what_the_parser_takes_for_another_value_is_rejected_with_its_path(
    field: str, content: bytes, reason: str
) -> None:
    text = order(field, more=f"{KIND} {PLACE} message Tree {{ map<string, int32> m = 1; }}")
    rejection = both(content, text)

    assert rejection.startswith(INVALID)
    assert rejection.endswith(reason)


@pytest.mark.parametrize(
    ("imported", "kind", "content", "reason"),
    [
        (WRAPPERS, "google.protobuf.Int32Value", sent(whole(LARGE)), f"the number {LARGE} is no int32, at `k.value`"),
        (WRAPPERS, "google.protobuf.BoolValue", sent(whole(2)), "the number 2 is no bool, at `k.value`"),
        (TIMESTAMP, "google.protobuf.Timestamp", sent(whole(LARGE, field=2)), f"{LARGE} is no int32, at `k.nanos`"),
    ],
)
def test_messages_of_google_are_looked_at_as_well(imported: str, kind: str, content: bytes, reason: str) -> None:
    text = order(f"{kind} k = 1;").replace("package", f"{imported} package")

    assert (both(content, text)).endswith(reason)


@pytest.mark.parametrize(
    ("text", "content", "reason"),
    [
        ("optional Kind k = 1;", whole(LARGE + 1), f"the number {LARGE + 1} is no enum, at `k`"),
        ("optional group G = 1 { optional int32 n = 2; }", b"\x0b" + whole(LARGE, field=2) + b"\x0c", "at `g.n`"),
        ("optional int32 k = 1; extensions 4;", b"\x23\x2b\x2c\x24" + whole(LARGE), "at `k`"),
    ],
)
def test_messages_that_are_read_one_by_one_are_looked_at_as_well(text: str, content: bytes, reason: str) -> None:
    schema = f'syntax = "proto2"; package shop; {KIND} message Order {{ {text} }}'

    assert (both(content, schema) or "").endswith(reason)


@pytest.mark.parametrize(
    ("field", "content", "value"),
    [
        ("int32 k = 1;", whole(2**31 - 1), 2**31 - 1),
        ("int32 k = 1;", whole(2**64 - 2**31), -(2**31)),
        ("int32 k = 1;", b"\x08\x85\x80\x80\x00", 5),
        ("uint32 k = 1;", whole(LARGE - 1), LARGE - 1),
        ("sint32 k = 1;", whole(LARGE - 1), -(2**31)),
        ("bool k = 1;", b"\x08\x81\x00", True),
        ("Kind k = 1;", whole(900), "900"),
        ("uint64 k = 1;", whole(2**64 - 1), 2**64 - 1),
        ("int32 k = 1;", whole(1) + whole(2), 2),
        ("repeated int32 k = 1;", whole(1) + sent(b"\x02\x03"), [1, 2, 3]),
        ("map<bool, int32> k = 1;", sent(whole(1) + whole(5, field=2)) + sent(b""), [(True, 5), (False, 0)]),
        ("int32 k = 1;", b"\x13" + whole(LARGE) + b"\x1b\x1c\x14" + whole(4), 4),
        ("Place k = 1;", sent(whole(1)) + sent(b"\x12\x01\x02"), {"x": 1, "many": [2]}),
    ],
)
def test_what_is_allowed_is_read(field: str, content: bytes, value: Any) -> None:
    """As Protobuf says, a field that has one value is the last that was sent, and a message is all of its parts."""
    text = order(field, more=f"{KIND} {PLACE}")

    assert both(content, text) == ""
    found = fields_of(content, decoder(text))["k"]
    assert (sorted(found) if isinstance(value, list) else found) == (
        sorted(value) if isinstance(value, list) else value
    )


def test_the_reason_names_the_schema_of_a_registry() -> None:
    text = order("int32 k = 1;")

    rejection = decoder(text, {3: text}).decode(framed(3, b"\x00" + whole(LARGE))).rejection

    assert sentence(rejection) == f"schema 3: {INVALID}the number {LARGE} is no int32, at `k`"
