"""Avro and Protobuf read column by column become the very same columns as value by value, or they are doubtful."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import schemaless_writer
from tests.unit.record_values import test_avro_values as avro
from tests.unit.record_values import test_protobuf_values as proto
from tests.unit.record_values.test_avro_values import framed, record

from sluice.declarations.protobuf_schemas import compiled, message_columns, message_of
from sluice.declarations.schema_files import columns_of_json
from sluice.declarations.value_declaration import Column
from sluice.record_values import block_cursor, block_decoding
from sluice.record_values.block_decoding import BinaryBlockDecoder
from sluice.record_values.rejection import RejectionKind, lacking
from sluice.record_values.schemas import RegisteredSchema, SchemaText, ValueSchema


def of_avro(
    text: str, *, columns: tuple[Column, ...] | None = None, known: dict[int, str] | None = None, **how: Any
) -> BinaryBlockDecoder:
    """A decoder of Avro. known: the schemas of a registry by their ids; unset: values without ids."""
    return _decoder("avro", text, columns or columns_of_json(text), known, **how)


def of_protobuf(text: str, *, known: dict[int, str] | None = None, **how: Any) -> BinaryBlockDecoder:
    """The same for Protobuf."""
    return _decoder("protobuf", text, message_columns(message_of(compiled(text), None)), known, **how)


def _decoder(
    kind: Any, text: str, columns: tuple[Column, ...], known: dict[int, str] | None, **how: Any
) -> BinaryBlockDecoder:
    schemas = {key: RegisteredSchema(format=kind, schema=SchemaText(text=one)) for key, one in (known or {}).items()}
    registry = None if known is None else avro.REGISTRY
    schema = ValueSchema(format=kind, columns=columns, reader=SchemaText(text=text), registry=registry, **how)
    return BinaryBlockDecoder(schema, lookup=None if known is None else schemas.get)


def doubtful(decoder: BinaryBlockDecoder, values: Sequence[bytes | None]) -> list[int]:
    """The doubtful values of a block. All others, and the whole block, must be what they are one by one."""
    block = pa.array([b"before the block", *values], pa.binary())[1:]
    exact = decoder.decode(values)
    found = decoder.columnar(block)
    asked: list[Sequence[bytes | None]] = []

    def decode_values(some: Sequence[bytes | None]) -> Any:
        asked.append(some)
        return decoder.decode_values(some)

    whole = decoder.completed(found, block, decode_values)

    places: list[int] = found.doubtful.tolist()
    of_bytes = {index for index, one in exact.rejections.items() if one.kind is not RejectionKind.LACKING}
    assert not of_bytes - set(places)
    assert asked == ([[values[place] for place in places]] if places else [])
    assert whole.rejections == exact.rejections
    assert Counter(whole.undeclared) == Counter(exact.undeclared)
    for one, other in zip(whole.columns, exact.columns, strict=True):
        assert one.type == other.type
        one.validate(full=True)
        assert repr(_sorted(one.to_pylist())) == repr(_sorted(other.to_pylist()))  # -0.0 is not 0.0
    return places


def _sorted(value: Any) -> Any:
    """The value with the pairs of its maps in order, which they have none of."""
    if isinstance(value, dict):
        return {name: _sorted(one) for name, one in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return sorted(((key, _sorted(one)) for key, one in value), key=repr)
        return [_sorted(one) for one in value]
    return value


def written(schema: str, fields: dict[str, Any]) -> bytes:
    """A value of Avro."""
    stream = io.BytesIO()
    schemaless_writer(stream, json.loads(schema), fields)
    return stream.getvalue()


ORDER_TEXT = proto.order(
    "int64 id = 1;", "optional string word = 3;", "repeated int32 n = 4;", "oneof one { bool a = 5; bool b = 6; }"
)
AVRO_ORDER = record(
    ("id", "long"), ("word", ["null", "string"]), ("day", {"type": "int", "logicalType": "date"}), ("ok", "boolean")
)
ID, DAY, OK = b"\x02", b"\x02", b"\x01"
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
MAP = record(("sizes", {"type": "map", "values": "int"}))
MAP_TEXT = proto.order("map<string, int32> a = 1;", "map<int32, P> b = 2;", more="message P { int32 n = 1; }")
INNER = proto.order("I i = 1;", more="message I { int32 n = 1; }")
AT_TEXT = (
    'syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto"; '
    "message Order { google.protobuf.Timestamp at = 1; }"
)
WRAPPED = AT_TEXT.replace("timestamp", "wrappers").replace("Timestamp", "Int32Value")
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        pytest.param(AVRO_ORDER, ID + b"\x00" + DAY + OK + b"!", id="bytes left over"),
        pytest.param(AVRO_ORDER, ID + b"\x00" + DAY, id="bytes that lack"),
        pytest.param(AVRO_ORDER, ID + b"\x04" + DAY + OK, id="a branch that is not there"),
        pytest.param(AVRO_ORDER, ID + b"\x02\x01" + DAY + OK, id="a length below zero"),
        pytest.param(AVRO_ORDER, ID + b"\x02\x08a" + DAY + OK, id="a text that is longer than its value"),
        pytest.param(AVRO_ORDER, ID + b"\x02\x02\xff" + DAY + OK, id="a text that is not UTF-8"),
        pytest.param(AVRO_ORDER, ID + b"\x00" + b"\xfe\xff\xff\xff\x0f" + OK, id="a day of no year"),
        pytest.param(AVRO_ORDER, ID + b"\x00" + DAY + b"\x02", id="a boolean of two"),
        pytest.param(AVRO_ORDER, b"\xff" * 9 + b"\x02" + b"\x00" + DAY + OK, id="a number of 65 bits"),
        pytest.param(AVRO_ORDER, b"\xff" * 10 + b"\x00" + b"\x00" + DAY + OK, id="a number of eleven bytes"),
        pytest.param(record(("n", "int")), b"\x80\x80\x80\x80\x10", id="a number of 33 bits"),
        pytest.param(record(("at", MILLIS)), b"\xff" * 8 + b"\x7f", id="a time of no year"),
        pytest.param(record(("m", DECIMAL)), b"\x04\x27\x10", id="a decimal with more digits"),
        pytest.param(record(("m", DECIMAL)), b"\x22" + bytes(17), id="a decimal of 17 bytes"),
        pytest.param(record(("k", {"type": "enum", "name": "k", "symbols": ["A"]})), b"\x02", id="no symbol"),
        pytest.param(record(("k", {"type": "string", "logicalType": "uuid"})), b"\x02a", id="no UUID"),
        pytest.param(record(("h", {"type": "fixed", "name": "h", "size": 2})), b"a", id="half of a fixed value"),
        pytest.param(record(("l", {"type": "array", "items": "int"})), b"\x02\x02\x02\x02\x00", id="two blocks"),
        pytest.param(record(("l", {"type": "array", "items": "int"})), b"\x01\x02\x02\x00", id="a block with its size"),
        pytest.param(record(("l", {"type": "array", "items": "int"})), b"\x02\x02", id="an array without an end"),
        pytest.param(record(("l", {"type": "array", "items": "int"})), b"\x02\x02\x02", id="an array that goes on"),
        pytest.param(MAP, b"\x04\x02a\x02\x02a\x04\x00", id="a key twice"),
        pytest.param(MAP_TEXT, b"\x0a\x03\x0a\x01a" * 2, id="a key of Protobuf twice"),
        pytest.param(MAP_TEXT, b"\x12\x02\x08\x01", id="a pair without its message"),
        pytest.param(MAP_TEXT, b"\x0a\x02\x18\x01", id="an unknown field of a pair"),
        pytest.param(ORDER_TEXT, b"\x08\x01\x08\x02", id="a field twice"),
        pytest.param(ORDER_TEXT, b"\x1a\x01a\x08\x01", id="another order"),
        pytest.param(ORDER_TEXT, b"\x0a\x01a", id="another type"),
        pytest.param(ORDER_TEXT, b"\x1a\x05a", id="a text that is longer than its message"),
        pytest.param(ORDER_TEXT, b"\x1a\x01\xff", id="a text of Protobuf that is not UTF-8"),
        pytest.param(ORDER_TEXT, b"\x20\x01", id="a number that is not packed"),
        pytest.param(ORDER_TEXT, b"\x22\x01\x80", id="a packed number without an end"),
        pytest.param(ORDER_TEXT, b"\x22\x05\x80\x80\x80\x80\x08", id="a packed number of 32 bits"),
        pytest.param(ORDER_TEXT, b"\x28\x01\x30\x01", id="two of one choice"),
        pytest.param(ORDER_TEXT, b"\x28\x02", id="a boolean of two in Protobuf"),
        pytest.param(ORDER_TEXT, b"\x88\x00\x01", id="a tag that is longer than needed"),
        pytest.param(ORDER_TEXT, b"\x53\x54", id="a group"),
        pytest.param(ORDER_TEXT, b"\x00\x00", id="no tag"),
        pytest.param(ORDER_TEXT, b"\xf8\xff\x07\x01", id="an unknown field of a large number"),
        pytest.param(proto.order("fixed64 f = 1;"), b"\x09\x01", id="half of a number"),
        pytest.param(proto.order("repeated fixed32 f = 1;"), b"\x0a\x05abcde", id="a part of a packed number"),
        pytest.param(proto.order("int32 n = 1;"), b"\x08\x80\x80\x80\x80\x10", id="33 bits"),
        pytest.param(proto.order("uint32 n = 1;"), b"\x08\x80\x80\x80\x80\x10", id="33 bits without a sign"),
        pytest.param(proto.order("sint32 n = 1;"), b"\x08\x80\x80\x80\x80\x10", id="33 bits with a zigzag"),
        pytest.param(proto.order("K k = 1;", more="enum K { A = 0; }"), b"\x08\x05", id="a number without a name"),
        pytest.param(INNER, b"\x0a\x03\x08\x01\x10", id="a cut message"),
        pytest.param(AT_TEXT, b"\x0a\x02\x10\x01", id="a nanosecond"),
        pytest.param(AT_TEXT, b"\x0a\x09\x08" + b"\xff" * 7 + b"\x7f", id="seconds of no year"),
        pytest.param(AT_TEXT, b"\x0a\x02\x18\x01", id="an unknown field of a time"),
        pytest.param(AT_TEXT, b"\x0a\x06\x10\x80\x94\xeb\xdc\x03", id="a second of nanoseconds"),
        pytest.param(WRAPPED, b"\x0a\x04\x08\x01\x08\x02", id="two wrapped numbers"),
    ],
)  # fmt: skip
def test_what_is_not_certain_is_doubtful(schema: str, value: bytes) -> None:
    is_avro = schema.startswith("{")
    decoder = of_avro(schema) if is_avro else of_protobuf(schema)
    good = _good(schema) if is_avro else b""

    assert doubtful(decoder, [good, value, good]) == [1]


def _good(schema: str) -> bytes:
    samples: dict[str, Any] = {
        "id": 1, "word": "w", "day": date(2026, 1, 31), "ok": True, "n": 1, "at": datetime(2026, 1, 31, tzinfo=UTC),
        "m": Decimal("1.25"), "k": "A", "h": b"ab", "l": [1, 2], "sizes": {"a": 1, "b": 2},
    }  # fmt: skip
    fields = {field["name"]: samples[field["name"]] for field in json.loads(schema)["fields"]}
    if '"uuid"' in schema:
        fields["k"] = "16ec9105-3d1b-4ef6-97a8-ebecba03a3f7"
    return written(schema, fields)


@pytest.mark.parametrize("size", [0, 1, 3, 8, 9, 15, 16])
@pytest.mark.parametrize("sign", [1, -1])
def test_decimals_of_every_length(size: int, sign: int) -> None:
    schema = record(("m", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3}))
    number = sign * (256**size // 5) if size else 0
    sent = number.to_bytes(size, "big", signed=True)
    assert doubtful(of_avro(schema), [bytes([2 * size]) + sent]) == []


NEWER = record(("more", "string"), ("id", "int"), ("word", ["null", "string"], None), name="order")
OLDER = record(("id", "long"), name="order")
READER = record(("id", "long"), ("word", ["null", "string"], None), name="order")
OF_TIMES = record(("id", "long"), ("t", {"type": "int", "logicalType": "time-millis"}), name="order")


def test_values_of_several_schemas_are_read_column_by_column() -> None:
    decoder = of_avro(READER, known={1: READER, 2: NEWER, 3: OLDER, 4: OF_TIMES, 5: record(("id", "string"))})
    one, two = framed(1, written(READER, {"id": 1, "word": "a"})), framed(2, written(NEWER, {"more": "m", "id": 2}))
    three, four = framed(3, written(OLDER, {"id": 3})), framed(4, written(OF_TIMES, {"id": 4, "t": time(1)}))
    odd = [None, b"", b"\x00\x00\x00\x00", b"{}", framed(5, b"\x02a"), framed(99, b"\x02"), framed(1, b"")]

    assert doubtful(decoder, [two, one, four, three, *odd, two]) == [2, 4, 5, 6, 7, 8, 9, 10]
    assert doubtful(of_avro(READER, known={2: NEWER}, on_unknown_field="quarantine"), [two]) == [0]


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (record(("id", "int"), name="order"), record(("id", "double"), name="order")),
        (record(("id", "int"), name="order"), record(("id", "int"), name="other")),
        (record(("id", "long"), name="order"), record(("id", "long"), ("n", "int", 7), name="order")),
        (record(("id", "long"), name="order"), record(("id", "long"), ("n", "int"), name="order")),
        (record(("id", ["null", "long"]), name="order"), record(("id", "long"), name="order")),
        (record(("id", ["int", "long"]), name="order"), record(("id", ["int", "null"]), name="order")),
        (
            record(("k", {"type": "enum", "name": "k", "symbols": ["A", "B"]})),
            record(("k", {"type": "enum", "name": "k", "symbols": ["A"]})),
        ),
        (
            record(("h", {"type": "fixed", "name": "h", "size": 2})),
            record(("h", {"type": "fixed", "name": "h", "size": 3})),
        ),
        (
            record(("p", json.loads(record(("x", "int"), name="p")))),
            record(("p", json.loads(record(("x", "int"), name="q")))),
        ),
    ],
)
def test_schemas_that_are_resolved_by_more_than_names_are_read_one_by_one(writer: str, reader: str) -> None:
    values = [framed(1, content) for content in (b"", b"\x00", b"\x02", b"\x02\x02")]
    assert doubtful(of_avro(reader, known={1: writer}), values) == [0, 1, 2, 3]


def test_a_field_that_has_another_name_now_is_read_one_by_one() -> None:
    renamed: Any = json.loads(READER)
    renamed["fields"][0] = {"name": "number", "type": ["null", "long"], "default": None, "aliases": ["id"]}
    assert doubtful(of_avro(json.dumps(renamed), known={1: OLDER}), [framed(1, b"\x02")]) == [0]


def test_columns_are_those_that_are_declared() -> None:
    schema = record(("more", "string"), ("id", "int"), ("n", "int"))
    columns = (
        Column(name="gone", type="list<string>"),
        Column(name="id", type="long"),
        Column(name="n", type="string"),
    )
    value = framed(1, written(schema, {"more": "m", "id": 3, "n": 4}))
    assert doubtful(of_avro(schema, columns=columns[:2], known={1: schema}), [value]) == []
    assert doubtful(of_avro(schema, columns=columns, known={1: schema}), [value]) == [0]


def test_a_field_without_a_column_is_resolved_too() -> None:
    writer, reader = (record(("id", "long"), ("h", {"type": "fixed", "name": "h", "size": size})) for size in (2, 3))
    value = framed(1, written(writer, {"id": 1, "h": b"ab"}))
    assert doubtful(of_avro(reader, columns=COLUMNS, known={1: writer}), [value]) == [0]


COLUMNS = (Column(name="id", type="long"),)


def test_messages_whose_columns_have_other_types_are_read_one_by_one() -> None:
    text = proto.order("int64 id = 1;", "string s = 2;")
    columns = (Column(name="id", type="string"), Column(name="s", type="string"))
    assert doubtful(_decoder("protobuf", text, columns, None), [b"\x08\x01", b""]) == [0, 1]


def test_a_value_without_a_required_field_is_rejected_in_both_ways() -> None:
    schema = record(("id", "long"), ("word", ["null", "string"]))
    columns = (Column(name="id", type="long"), Column(name="word", type="string", required=True))
    decoder = of_avro(schema, columns=columns, known={1: schema})
    values = [framed(1, written(schema, {"id": number, "word": word})) for number, word in ((1, "a"), (2, None))]

    assert doubtful(decoder, values) == []
    block = pa.array(values, pa.binary())
    found = decoder.completed(decoder.columnar(block), block, decoder.decode_values)
    assert found.rejections == {1: lacking(["word"])}
    assert [column.to_pylist() for column in found.columns] == [[1, None], ["a", None]]


def test_unknown_fields_of_messages_are_counted_with_their_path() -> None:
    inner = "message P { int32 x = 1; } "
    old = proto.order(inner, "P p = 2;", "repeated P more = 5;")
    new = proto.order(
        inner.replace("}", "int32 w = 7; }"), "int64 a = 1;", "P p = 2;", "fixed32 b = 3;", "fixed64 c = 4;",
        "repeated P more = 5;", "repeated string d = 300;",
    )  # fmt: skip
    sent = {"a": "9", "p": {"x": 1, "w": 2}, "b": 1, "c": "2", "more": [{"w": 3}, {}, {"w": 4}], "d": ["e", "f"]}
    values = [proto.written(new, sent), proto.written(old, {"p": {"x": 1}}), proto.written(new, {"d": ["g"]})]
    decoder = of_protobuf(old)

    assert doubtful(decoder, values) == []
    assert decoder.columnar(pa.array(values, pa.binary())).undeclared == {
        "1": 1, "3": 1, "4": 1, "300": 3, "p.7": 1, "more.7": 2,
    }  # fmt: skip
    assert doubtful(of_protobuf(old, on_unknown_field="quarantine"), values) == [0, 2]


@pytest.mark.parametrize(
    "text",
    [
        proto.order("int32 n = 2048;"),
        'syntax = "proto2"; message M { required int32 n = 1; }',
        'syntax = "proto2"; message M { optional int32 n = 1; extensions 2 to 9; }',
        'syntax = "proto2"; enum K { A = 1; } message M { optional K k = 1; }',
        'syntax = "proto2"; message M { optional group G = 1 { optional int32 n = 1; } }',
    ],
)
def test_messages_with_what_is_not_certain_are_read_one_by_one(text: str) -> None:
    assert doubtful(of_protobuf(text), [b"", b"\x08\x01"]) == [0, 1]


def test_messages_of_a_registry_are_those_that_their_prefix_names() -> None:
    text = proto.order("int64 id = 1;", more="message Other { string s = 1; }")
    decoder = of_protobuf(text, known={1: text, 2: proto.order("string id = 1;")})
    content = b"\x08\x05"
    values = [framed(1, b"\x00" + content), framed(1, b"\x02\x00" + content), framed(1, b"\x02\x02" + content)]
    odd = [framed(2, b"\x00"), framed(1, b"\x00"), framed(1, b""), framed(1, b"\x02\x08\x05")]
    assert doubtful(decoder, [*values, *odd]) == [1, 2, 3, 5, 6]


def test_long_lists_of_few_values_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = record(("id", "long"), ("words", {"type": "array", "items": "string"}))
    text = proto.order("repeated string words = 1;")
    lists = [["a"] * 40, ["b"], ["c"] * 16]
    of_lists = [written(schema, {"id": 1, "words": words}) for words in lists]
    messages = [proto.written(text, {"words": words}) for words in lists]

    assert doubtful(of_avro(schema), of_lists) == [0]
    assert doubtful(of_avro(schema), of_lists * 64) == []
    assert doubtful(of_protobuf(text), messages) == [0]
    monkeypatch.setattr(block_cursor, "_MOST_STEPS", 3)
    assert doubtful(of_avro(schema), of_lists * 64) == [index for index in range(192) if index % 3 != 1]
    assert doubtful(of_protobuf(text), messages * 64) == [index for index in range(192) if index % 3 != 1]


def test_a_list_without_an_end_does_not_reach_into_the_next_value() -> None:
    assert doubtful(of_protobuf(ORDER_TEXT), [b"\x22\x01\x80", b"\x22\x01\x05"]) == [0]


def test_what_follows_a_long_list_is_not_taken_for_its_end() -> None:
    schema = record(("words", {"type": "array", "items": "string"}), ("n", "int"), ("tail", "string"))
    words = [*["a"] * 16, "", "\x08"]  # as an end, a number, and the length of all that is left
    value = written(schema, {"words": words, "n": 5, "tail": "x"})
    assert doubtful(of_avro(schema), [value]) == [0]


def test_a_large_block_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_decoding, "LARGEST_VALUE_BYTES", 100)
    schema = record(("id", "long"), ("text", "string"))
    values = [written(schema, {"id": number, "text": "x" * (number * 20)}) for number in range(8)]
    assert doubtful(of_avro(schema), [*values, b"\x02"]) == [5, 6, 7, 8]


def test_an_unknown_schema_is_looked_up_once_in_a_block() -> None:
    asked: list[int] = []

    def lookup(schema_id: int) -> None:
        asked.append(schema_id)

    schema = replace(of_avro(READER, known={})._schema)
    decoder = BinaryBlockDecoder(schema, lookup=lookup)
    block = pa.array([framed(7, b"\x02")] * 3, pa.binary())
    for _ in range(2):
        found = decoder.completed(decoder.columnar(block), block, decoder.decode_values)
        assert len(found.rejections) == 3
    assert asked == [7, 7]
