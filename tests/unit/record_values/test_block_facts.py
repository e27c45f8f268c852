"""What is known of a block of values beside its columns: the fields that are not declared, and what wrote it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.fixtures.rejections import sentence, sentences
from tests.unit.record_values.test_avro_values import by_registry, framed, record, written
from tests.unit.record_values.test_protobuf_values import decoder
from tests.unit.record_values.test_protobuf_values import written as message

from sluice.declarations.value_declaration import ValueColumn
from sluice.ledger.batch_findings import OTHERS as OTHERS_IN_THE_LEDGER
from sluice.record_values.block_decoding import ValueDecoder
from sluice.record_values.block_facts import (
    OTHERS,
    BlockFacts,
    WrittenValues,
    facts_of_texts,
    facts_text,
    written_by_header,
    written_by_id,
)
from sluice.record_values.json_decoding import JsonBlockDecoder

COLUMNS = (
    ValueColumn(name="id", type="long"),
    ValueColumn(name="place", type="struct<x: int, more: list<struct<y: int>>>"),
    ValueColumn(name="by_name", type="map<string, struct<z: int>>"),
    ValueColumn(name="text", type="string"),
)


def counted(*values: str) -> dict[str, int]:
    """The undeclared fields of JSON values that are all decoded."""
    block = JsonBlockDecoder(COLUMNS).decode([value.encode() for value in values])
    assert block.rejections == {}
    return dict(block.undeclared)


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        ('{"id": 1}', {}),
        ('{"id": 1, "place": null, "by_name": null, "text": "\\"id\\": {"}', {}),
        ('{"id": 1, "colour": null}', {}),
        ('{"id": 1, "colour": "red", "size": null}', {"colour": 1}),
        ('{"id": 1, "a b": {"c": 1}, "": [1]}', {"a b": 1, "": 1}),
        ('{"id": 1, "huge": 1e400}', {"huge": 1}),
        ('{"text": "\\u0022", "colour": 1}', {"colour": 1}),
        (
            '{"place": {"x": 1, "w": 2, "more": [{"y": 1}, {"v": 1}, null, {"v": 2}]}}',
            {"place.w": 1, "place.more.v": 2},
        ),
        ('{"by_name": {"id": {"z": 1, "u": 2}, "x": null, "y": {}}}', {"by_name.u": 1}),
    ],
)
def test_fields_of_json_are_named_with_their_path(value: str, fields: dict[str, int]) -> None:
    assert counted(value) == fields
    assert counted('{"id": 7}', value, value, '{"text": "x"}') == {name: 2 * times for name, times in fields.items()}


def test_a_rejected_value_counts_too_and_a_repeated_key_is_still_found() -> None:
    values = [b'{"id": 1, "id": 2, "colour": 3}', b'{"id": "x", "size": 1}', b'{"id": 1, "size": 1}']
    block = JsonBlockDecoder(COLUMNS).decode(values)
    assert sentences(block)[0] == "the value has a key twice: id"
    assert set(block.rejections) == {0, 1}
    assert block.undeclared == {"colour": 1, "size": 1}


def test_json_with_an_undeclared_field_is_rejected_where_that_is_declared() -> None:
    values = [b'{"id": 1, "size": 1, "place": {"w": 1}}', b'{"id": 2}', b'{"id": 3, "size": 1}']
    block = JsonBlockDecoder(COLUMNS, rejects_undeclared=True).decode(values)
    begins = "the value has fields that are not declared: "
    assert sentences(block) == {0: f"{begins}`size`, `place.w`", 2: f"{begins}`size`"}
    assert block.columns[0].to_pylist() == [None, 2, None]


READER = record(("id", "long"), ("place", json.loads(record(("x", "int"), name="place"))))
NEWER = record(
    ("id", "long"),
    ("size", "int"),
    ("place", json.loads(record(("x", "int"), ("w", "int"), name="place"))),
    ("other", ["null", "place"]),
)
SENT = framed(1, written(NEWER, {"id": 1, "size": 2, "place": {"x": 3, "w": 4}, "other": None}))


def test_fields_of_avro_are_those_of_the_writers_schema() -> None:
    reading = by_registry({1: NEWER}, reader=READER)
    assert reading.decode(SENT).undeclared == ("size", "place.w", "other")
    assert reading.decode(SENT).fields == {"id": 1, "place": {"x": 3}}


def test_a_field_that_the_declared_schema_renames_is_declared() -> None:
    renamed: Any = json.loads(READER)
    renamed["fields"][0] = {"name": "number", "type": "long", "aliases": ["id"]}
    decoded = by_registry({1: NEWER}, reader=json.dumps(renamed)).decode(SENT)
    assert (decoded.fields or {})["number"] == 1
    assert decoded.undeclared == ("size", "place.w", "other")


def strict(reading: ValueDecoder) -> ValueDecoder:
    """The same decoder, which rejects undeclared fields."""
    return ValueDecoder(replace(reading._schema, on_unknown_field="quarantine"), lookup=reading._lookup)


def test_avro_with_an_undeclared_field_is_rejected_where_that_is_declared() -> None:
    decoded = strict(by_registry({1: NEWER}, reader=READER)).decode(SENT)
    assert sentence(decoded.rejection) == "the value has fields that are not declared: `size`, `place.w`, `other`"


OLD = 'syntax = "proto3"; message M { message P { int32 x = 1; } int32 id = 1; P place = 2; repeated P more = 3; }'
NEW = OLD.replace("int32 x = 1;", "int32 x = 1; int32 w = 7;").replace("int32 id = 1;", "int32 id = 1; string s = 9;")


def test_fields_of_protobuf_are_numbers_that_the_message_does_not_have() -> None:
    sent = message(NEW, {"id": 1, "s": "a", "place": {"x": 1, "w": 2}, "more": [{"w": 3}, {"x": 1}, {"w": 4}]})
    reading = decoder(OLD)
    assert sorted(reading.decode(sent).undeclared) == ["9", "more.7", "more.7", "place.7"]
    assert reading.decode(message(OLD, {"id": 1})).undeclared == ()
    assert sentence(strict(reading).decode(sent).rejection).startswith("the value has fields that are not declared: `")


def test_counts_are_bounded_whatever_is_sent() -> None:
    text = facts_text(BlockFacts(undeclared={f"{number:03}{'x' * 500}": number + 1 for number in range(60)}))
    assert text is not None
    assert len(text) < 20_000
    counts = facts_of_texts([text, text]).undeclared
    assert counts[OTHERS] == 2 * sum(range(1, 11))
    assert sum(counts.values()) == 2 * sum(range(1, 61))
    assert facts_text(BlockFacts()) is None
    assert OTHERS == OTHERS_IN_THE_LEDGER


def test_values_are_counted_by_the_id_in_front_of_them() -> None:
    values = [framed(7, b"a"), None, b"{}", framed(300, b""), framed(7, b"b"), framed(7, b"c"), b"\x00\x00"]

    found = written_by_id(pa.array(values, pa.binary()), [1, 2, 5, 6])

    assert found == {"7": WrittenValues(values=3, rejected=1), "300": WrittenValues(values=1)}
    assert written_by_id(pa.array([None, b"x"], pa.binary()), []) == {}


def test_of_schemas_without_end_the_most_frequent_are_counted() -> None:
    values = [framed(number, b"") for number in range(100)] + [framed(99, b"")]

    found = written_by_id(pa.array(values, pa.binary()), [])

    assert len(found) == 20
    assert found["99"] == WrittenValues(values=2)


def test_first_lines_are_bounded() -> None:
    (names,) = written_by_header([None, "x" * 500, *map(str, range(2_000))], values=3, rejected=1)

    assert json.loads(names)[:2] == ["", "x" * 200]
    assert len(json.loads(names)) == 1_000


def test_facts_of_several_blocks_are_summed() -> None:
    one = BlockFacts(undeclared={"a": 1}, written_as={"7": WrittenValues(values=3, rejected=1)})
    other = BlockFacts(written_as={"7": WrittenValues(values=2), "8": WrittenValues(values=1)})
    texts = [text for text in map(facts_text, (one, other, one, BlockFacts())) if text is not None]

    found = facts_of_texts(texts)

    assert len(texts) == 3
    assert found.undeclared == {"a": 2}
    assert found.written_as == {"7": WrittenValues(values=8, rejected=2), "8": WrittenValues(values=1)}
