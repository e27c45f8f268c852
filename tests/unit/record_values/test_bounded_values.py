"""Values of Avro and Protobuf that would stop a worker, be rounded or stop a table's writer are rejected."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.fixtures.rejections import sentence
from tests.unit.record_values.test_avro_values import by_registry, framed, record, written

from sluice.declarations.value_declaration import Column
from sluice.record_values.avro_schema import require_bounded
from sluice.record_values.block_decoding import ValueDecoder
from sluice.record_values.rejection import LARGEST_VALUE_BYTES, mismatch
from sluice.record_values.schemas import SchemaText, ValueSchema

ID = Column(name="id", type="long")
TREE: Any = {"type": "record", "name": "tree", "fields": [{"name": "id", "type": "long"}]}
TREE["fields"].append({"name": "below", "type": ["null", "tree"]})
UNUSABLE = "schema 1: the schema of the value cannot be used: "
NULLS = record(("id", "long"), ("nulls", {"type": "array", "items": "null"}))
EMPTY = {"type": "record", "name": "empty", "fields": [{"name": "nothing", "type": "null"}]}


def varint(number: int) -> bytes:
    """A number as Avro writes it."""
    zigzag, out = number << 1, b""
    while zigzag >= 0x80:
        out, zigzag = out + bytes([zigzag & 0x7F | 0x80]), zigzag >> 7
    return out + bytes([zigzag])


def test_a_value_of_a_schema_that_contains_itself_is_rejected() -> None:
    decoder = by_registry({1: json.dumps(TREE)}, columns=(ID,))
    deep = b"\x02\x02" * 10_000 + b"\x02\x00"
    assert sentence(decoder.decode(framed(1, deep)).rejection) == f"{UNUSABLE}its type tree contains itself"


def test_an_array_of_nulls_is_rejected_however_many_it_claims_to_have() -> None:
    decoder = by_registry({1: NULLS}, columns=(ID,))
    claims = framed(1, b"\x02" + varint(10**10) + b"\x00")
    assert sentence(decoder.decode(claims).rejection) == (
        f"{UNUSABLE}it has an array whose elements take no bytes, so that no value limits their number"
    )


@pytest.mark.parametrize(
    "items",
    ["null", EMPTY, {"type": "fixed", "name": "none", "size": 0}, {"type": "null"}],
)
def test_elements_without_bytes_are_found(items: Any) -> None:
    with pytest.raises(ValueError, match="take no bytes"):
        require_bounded(
            {"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
        )


@pytest.mark.parametrize("items", ["long", ["null", "string"], {"type": "map", "values": "null"}])
def test_other_arrays_are_allowed(items: Any) -> None:
    require_bounded(
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    )


def test_a_type_that_is_named_twice_does_not_contain_itself() -> None:
    inner = {"type": "record", "name": "inner", "fields": [{"name": "x", "type": "int"}]}
    fields = [{"name": "a", "type": inner}, {"name": "b", "type": "inner"}]
    require_bounded({"type": "record", "name": "r", "fields": fields})


@pytest.mark.parametrize(
    "text", ["no uuid", "", "16ec91053d1b4ef697a8ebecba03a3f7", "16ec9105-3d1b-4ef6-97a8-ebecba03a3fg"]
)
def test_a_text_that_is_no_uuid_is_rejected(text: str) -> None:
    schema = record(("id", "string"))
    decoder = by_registry({1: schema}, columns=(Column(name="id", type="uuid"),))
    assert decoder.decode(framed(1, written(schema, {"id": text}))).rejection == mismatch(
        "id", "uuid, got a Python str"
    )


@pytest.mark.parametrize(("number", "fits"), [(2**53, True), (2**53 + 1, False), (-(2**63), True), (2**63 - 1, False)])
def test_a_whole_number_that_no_float_is_is_rejected(number: int, fits: bool) -> None:
    schema = record(("id", "long"))
    decoder = by_registry({1: schema}, columns=(Column(name="id", type="double"),))
    assert (decoder.decode(framed(1, written(schema, {"id": number}))).rejection is None) == fits


def test_a_value_that_is_too_large_is_rejected() -> None:
    decoder = by_registry({1: NULLS}, columns=(ID,))
    assert "at most 16777216 are decoded" in sentence(decoder.decode(b"\x00" * (LARGEST_VALUE_BYTES + 1)).rejection)


@pytest.mark.parametrize(("nanos", "fits"), [(1000, True), (1, False), (999_999_999, False)])
def test_a_fraction_of_a_microsecond_is_rejected(nanos: int, fits: bool) -> None:
    from google.protobuf.timestamp_pb2 import Timestamp

    text = (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; '
        "message Order { google.protobuf.Timestamp at = 1; }"
    )
    at = Timestamp(seconds=1, nanos=nanos).SerializeToString()
    columns = (Column(name="at", type="timestamptz"),)
    decoder = ValueDecoder(ValueSchema(format="protobuf", columns=columns, reader=SchemaText(text=text)))
    decoded = decoder.decode(b"\x0a" + bytes([len(at)]) + at)
    assert (decoded.rejection is None) == fits
