"""Avro values become their columns, or are refused with the reason; other schemas are resolved to the declared one."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from fastavro import schemaless_writer
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.rejections import sentence

from sluice.declarations.schema_files import columns_of_json
from sluice.declarations.value_declaration import Column
from sluice.record_values.block_decoding import DecodedValue, ValueDecoder
from sluice.record_values.schemas import RegisteredSchema, SchemaText, ValueSchema
from sluice.settings import SchemaRegistryConnection

REGISTRY = SchemaRegistryConnection(kind="schema_registry", url="http://127.0.0.1:1")


def record(*fields: Any, name: str = "order") -> str:
    """The text of a record's schema. fields: name and type, and a default when there is a third."""
    described = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return json.dumps({"type": "record", "name": name, "fields": described})


def written(schema: str, fields: dict[str, Any]) -> bytes:
    """A value, as a sender writes it."""
    stream = io.BytesIO()
    schemaless_writer(stream, json.loads(schema), fields)
    return stream.getvalue()


def framed(schema_id: int, content: bytes) -> bytes:
    """A value with the id of its schema before it."""
    return b"\x00" + schema_id.to_bytes(4, "big") + content


def by_file(schema: str) -> ValueDecoder:
    """A decoder of values whose one schema is in a file."""
    reader = SchemaText(text=schema)
    return ValueDecoder(ValueSchema(format="avro", columns=columns_of_json(schema), reader=reader))


def decoded(decoder: ValueDecoder, values: Sequence[bytes]) -> list[DecodedValue]:
    """The values of a block."""
    decoder.begin_block()
    return [decoder.decode(value) for value in values]


def by_registry(
    known: dict[int, str], *, reader: str | None = None, columns: tuple[Column, ...] | None = None, kind: str = "avro"
) -> ValueDecoder:
    """A decoder of values that name their schema. known: the registry's schemas by their ids."""
    schemas = {key: RegisteredSchema(format=kind, schema=SchemaText(text=text)) for key, text in known.items()}  # type: ignore[arg-type]  # the words of a test
    schema = ValueSchema(
        format="avro",
        columns=columns if columns is not None else columns_of_json(reader or ""),
        reader=SchemaText(text=reader) if reader is not None else None,
        registry=REGISTRY,
    )
    return ValueDecoder(schema, lookup=schemas.get)


NESTED = record(("x", "double"), ("deep", ["null", json.loads(record(("y", "int"), name="inner"))]), name="place")
EVERYTHING = record(
    ("flag", "boolean"),
    ("small", "int"),
    ("large", "long"),
    ("single", "float"),
    ("double", "double"),
    ("text", "string"),
    ("raw", "bytes"),
    ("maybe", ["null", "string"]),
    ("maybe_other_way", ["long", "null"]),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("at_millis", {"type": "long", "logicalType": "timestamp-millis"}),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    ("at_local", {"type": "long", "logicalType": "local-timestamp-micros"}),
    ("key", {"type": "string", "logicalType": "uuid"}),
    ("hash", {"type": "fixed", "name": "hash", "size": 2}),
    ("kind", {"type": "enum", "name": "kind", "symbols": ["A", "B"]}),
    ("tags", {"type": "array", "items": ["null", "string"]}),
    ("sizes", {"type": "map", "values": "int"}),
    ("place", json.loads(NESTED)),
)
FIELDS: dict[str, Any] = {
    "flag": True,
    "small": -(2**31),
    "large": 2**63 - 1,
    "single": 0.5,
    "double": 1e300,
    "text": "naïve",
    "raw": b"\xff",
    "maybe": None,
    "maybe_other_way": 7,
    "price": Decimal("1234567.89"),
    "day": date(2026, 1, 31),
    "at_millis": datetime(2026, 1, 31, 12, 0, 0, 5000, tzinfo=UTC),
    "at": datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC),
    "at_local": datetime(2026, 1, 31, 12, 0, 0, 5),  # noqa: DTZ001  # a local time has no zone
    "key": UUID("16ec9105-3d1b-4ef6-97a8-ebecba03a3f7"),
    "hash": b"ab",
    "kind": "B",
    "tags": ["a", None],
    "sizes": {"a": 1},
    "place": {"x": 0.5, "deep": {"y": 3}},
}


def test_every_type_arrives() -> None:
    assert by_file(EVERYTHING).decode(written(EVERYTHING, FIELDS)) == DecodedValue(
        fields={**FIELDS, "key": str(FIELDS["key"]), "sizes": [("a", 1)]}
    )


ORDER = record(("id", "long"), ("word", ["null", "string"], None))
GOOD = written(ORDER, {"id": 1, "word": "one"})
MISMATCH = "the value does not fit the declared columns: "


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the value is not valid Avro of its schema: EOFError"),
        (GOOD[:-1], "the value is not valid Avro of its schema: "),
        (GOOD + b"!", "the value is not valid Avro of its schema: 1 bytes are left over"),
        (b"\x02\x02\x04\xff\xff", "the value is not valid Avro of its schema: UnicodeDecodeError"),
        (b"\x02\x08", "the value is not valid Avro of its schema: IndexError"),
        (b"\xff" * 30, "the value is not valid Avro of its schema: "),
    ],
)
def test_bytes_that_are_no_such_record_are_refused(value: bytes, reason: str) -> None:
    told = by_file(ORDER).decode(value)
    assert told.fields is None
    assert sentence(told.rejection).startswith(reason)


def test_a_number_larger_than_its_type_is_refused() -> None:
    value = written(record(("small", "long")), {"small": 2**40})
    rejection = by_file(record(("small", "int"))).decode(value).rejection
    assert sentence(rejection) == f"{MISMATCH}expected int, got a Python int, at `small`"


def test_a_writer_with_a_new_field_and_one_without_an_old_one_are_read() -> None:
    newer = record(("id", "long"), ("word", ["null", "string"], None), ("more", "string"))
    older = record(("id", "int"))
    decoder = by_registry({1: ORDER, 2: newer, 3: older}, reader=ORDER)
    values = [
        framed(1, GOOD),
        framed(2, written(newer, {"id": 2, "word": "two", "more": "m"})),
        framed(3, written(older, {"id": 3})),
    ]
    assert [one.fields for one in decoded(decoder, values)] == [
        {"id": 1, "word": "one"},
        {"id": 2, "word": "two"},
        {"id": 3, "word": None},
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the value does not begin with the id of a schema in a registry"),
        (GOOD, "the value does not begin with the id of a schema in a registry"),
        (framed(99, GOOD), "schema 99: the schema of the value cannot be used: the registry does not have it"),
        (
            framed(2, b"\x02a"),
            "schema 2: the schema of the value does not resolve to the declared one: ",
        ),
        (framed(1, b"\x02"), "schema 1: the value is not valid Avro of its schema: "),
        (framed(3, b"\x02"), "schema 3: the schema of the value cannot be used: it is not an Avro schema of a record"),
    ],
)
def test_a_value_of_a_registry_is_refused_with_its_schema(value: bytes, reason: str) -> None:
    decoder = by_registry({1: ORDER, 2: record(("id", "string")), 3: '"long"'}, reader=ORDER)
    assert sentence(decoder.decode(value).rejection).startswith(reason)


def test_a_schema_of_another_form_is_refused() -> None:
    decoder = by_registry({1: "{}"}, reader=ORDER, kind="json")
    rejection = decoder.decode(framed(1, b"{}")).rejection
    assert sentence(rejection) == "schema 1: the schema of the value cannot be used: its format is json, not avro"


def test_an_unknown_schema_is_asked_for_once_in_a_block_and_again_in_the_next() -> None:
    known: dict[int, RegisteredSchema] = {}
    asked: list[int] = []

    def lookup(schema_id: int) -> RegisteredSchema | None:
        asked.append(schema_id)
        return known.get(schema_id)

    schema = ValueSchema(
        format="avro", columns=columns_of_json(ORDER), reader=SchemaText(text=ORDER), registry=REGISTRY
    )
    decoder = ValueDecoder(schema, lookup=lookup)
    assert [one.fields for one in decoded(decoder, [framed(1, GOOD)] * 3)] == [None] * 3
    known[1] = RegisteredSchema(format="avro", schema=SchemaText(text=ORDER))
    assert [one.rejection for one in decoded(decoder, [framed(1, GOOD)])] == [None]
    decoded(decoder, [framed(1, GOOD)])
    assert asked == [1, 1]


COLUMNS = (Column(name="id", type="long"), Column(name="at", type="timestamptz"), Column(name="gone", type="string"))
AT = {"type": "long", "logicalType": "timestamp-micros"}


def test_columns_are_taken_by_name_from_whatever_was_written() -> None:
    schema = record(("more", "string"), ("at", AT), ("id", "int"))
    at = datetime(2026, 1, 31, tzinfo=UTC)
    decoder = by_registry({1: schema}, columns=COLUMNS)
    value = framed(1, written(schema, {"more": "m", "at": at, "id": 3}))
    assert decoder.decode(value).fields == {"id": 3, "at": at, "gone": None}


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ("double", 1.5, f"{MISMATCH}expected long, got a Python float, at `id`"),
        ("boolean", True, f"{MISMATCH}expected long, got a Python bool, at `id`"),
        (AT, datetime(2026, 1, 31, tzinfo=UTC), f"{MISMATCH}expected long, got a Python datetime, at `id`"),
    ],
)
def test_what_does_not_fit_a_column_is_not_cut_to_it(type_: Any, value: Any, reason: str) -> None:
    schema = record(("id", type_))
    told = by_registry({1: schema}, columns=COLUMNS[:1]).decode(framed(1, written(schema, {"id": value})))
    assert sentence(told.rejection) == reason


@given(st.binary(max_size=64))
def test_no_bytes_make_a_decoder_fail(value: bytes) -> None:
    for decoder in (DECODER, REGISTERED):
        told = decoder.decode(value)
        assert (told.fields is None) == (told.rejection is not None)


DECODER, REGISTERED = by_file(EVERYTHING), by_registry({0: EVERYTHING}, reader=EVERYTHING)
OPTIONAL_TEXT = st.none() | st.text(max_size=8)


@given(st.integers(-(2**63), 2**63 - 1), OPTIONAL_TEXT, st.lists(OPTIONAL_TEXT, max_size=4))
def test_what_was_written_is_what_is_read(number: int, word: str | None, words: list[str | None]) -> None:
    fields = {"id": number, "word": word, "words": words}
    assert WORDS_DECODER.decode(written(WORDS, fields)) == DecodedValue(fields=fields)


WORDS = record(("id", "long"), ("word", ["null", "string"]), ("words", {"type": "array", "items": ["null", "string"]}))
WORDS_DECODER = by_file(WORDS)
