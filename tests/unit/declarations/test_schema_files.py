"""Columns out of schema files of each form, and what is said of files that cannot be used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sluice.declarations.schema_files import read_columns

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.declarations.conftest import Folder

AVRO = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long", "doc": "its number"},
        {"name": "word", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "sizes", "type": {"type": "map", "values": "int"}},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["A"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "hash", "size": 16}},
        {"name": "at_home", "type": {"type": "record", "name": "h", "fields": [{"name": "x", "type": "double"}]}},
    ],
}
AVRO_TYPES = [
    ("id", "long", True),
    ("word", "string", False),
    ("at", "timestamptz", True),
    ("total", "decimal(9, 2)", True),
    ("tags", "list<string>", True),
    ("sizes", "map<string, int>", True),
    ("kind", "string", True),
    ("hash", "fixed[16]", True),
    ("at_home", "struct<x: double>", True),
]
JSON_SCHEMA = {
    "type": "object",
    "required": ["id", "word"],
    "properties": {
        "id": {"type": "integer", "description": "its number"},
        "word": {"type": ["string", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"x": {"type": "number"}}},
        "sizes": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
}
JSON_TYPES = [
    ("id", "long", True),
    ("word", "string", False),
    ("at", "timestamptz", False),
    ("tags", "list<string>", False),
    ("place", "struct<x: double>", False),
    ("sizes", "map<string, long>", False),
]
ICEBERG = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long", "doc": "its number"},
        {"id": 2, "name": "tags", "required": False, "type": {"type": "list", "element-id": 3, "element": "string"}},
        {"id": 4, "name": "m", "required": False, "type": {"type": "map", "key": "string", "value": "decimal(9, 2)"}},
    ],
}
ICEBERG_TYPES = [("id", "long", True), ("tags", "list<string>", False), ("m", "map<string, decimal(9, 2)>", False)]


@pytest.mark.parametrize(
    ("schema", "types"),
    [(AVRO, AVRO_TYPES), (JSON_SCHEMA, JSON_TYPES), (ICEBERG, ICEBERG_TYPES)],
    ids=["avro", "json", "iceberg"],
)
def test_columns_of_each_form(tmp_path: Path, schema: Any, types: list[tuple[str, str, bool]]) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(schema))
    columns = read_columns(file)
    assert [(column.name, column.type, column.required) for column in columns] == types
    assert columns[0].doc == "its number"


FILES = "files: {connection: c, format: json, schema_file: order.avsc}"
PLACE = "silver_flights.stream.yaml:9: `inputs.flights.stream.files.schema_file`: "


def declare(valid: Folder, source: str = FILES) -> None:
    """Let the valid stream read files whose columns a file describes."""
    file = valid.path / "silver_flights.stream.yaml"
    iceberg = "iceberg: {table: bronze.flights}\n    watermark: {column: departure, delay: 6 hours}"
    valid.write(file.name, file.read_text().replace(iceberg, source, 1))


def test_a_stream_has_the_columns_of_its_schema_file_and_changes_with_it(valid: Folder) -> None:
    declare(valid)
    valid.write("order.avsc", json.dumps(AVRO))
    before = valid.load().stream("silver_flights")
    files = before.declaration.inputs["flights"].declared_source.files
    assert files is not None
    assert [(column.name, column.type, column.required) for column in files.columns] == AVRO_TYPES
    valid.write("order.avsc", json.dumps(AVRO | {"doc": "changed"}))
    assert valid.load().stream("silver_flights").digest != before.digest


def _record(type_: Any, name: str = "a") -> str:
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": name, "type": type_}]})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[]", "it is neither an Avro record"),
        ('{"type": "record"}', "`fields` is not a list of fields"),
        (_record(["int", "string"]), "a is a union of 2 types; a column has one, which may be null"),
        (_record({"type": "array", "items": "null"}), "a[] has the type 'null', which no column can have"),
        (_record("int", name="a b"), "the column's name 'a b' is refused: "),
        (_record({"type": "bytes", "logicalType": "decimal", "precision": 99}), "the column's type 'decimal(99, 0)'"),
    ],
)
def test_an_unusable_schema_file_is_a_problem_at_the_key_that_names_it(valid: Folder, text: str, sentence: str) -> None:
    declare(valid)
    valid.write("order.avsc", text)
    (problem,) = valid.problems()
    assert problem.startswith(f"{PLACE}order.avsc cannot be used: {sentence}")


PROTO = 'syntax = "proto3"; message Order {\n  int64 id = 1; repeated string tags = 2;\n}\n'


@pytest.mark.parametrize(
    ("source", "file", "text", "types"),
    [
        ("format: protobuf, schema_file: order.proto", "order.proto", PROTO, ["long", "list<string>"]),
        ("format: avro, schema_file: order.avsc", "order.avsc", json.dumps(AVRO), [kind for _, kind, _ in AVRO_TYPES]),
    ],
)
def test_values_have_the_columns_of_their_schema_file(
    valid: Folder, source: str, file: str, text: str, types: list[str]
) -> None:
    declare(valid, f"kafka: {{connection: c, topics: [t], value: {{{source}}}}}")
    valid.write(file, text)
    value = valid.load().stream("silver_flights").declaration.inputs["flights"].declared_source.value
    assert value is not None
    assert [column.type for column in value.columns] == types


@pytest.mark.parametrize(
    ("source", "text", "sentence"),
    [
        ("avro, schema_file: order.avsc", _record("strin"), "it knows no type strin"),
        ("avro, schema_file: order.avsc", '{"type": "object", "properties": {}}', "it knows no type "),
        ("avro, schema_file: order.avsc", _record("int", name="record"), "it has a field `record`, which is where"),
        ("protobuf, schema_file: order.proto", "message A {\n  int64 id 1;\n}", "protoc refuses it: "),
        ("protobuf, schema_file: order.proto, message: B", PROTO, "it has no message B; it has Order"),
    ],
)
def test_an_unusable_schema_of_values_is_a_problem_at_its_key(
    valid: Folder, source: str, text: str, sentence: str
) -> None:
    declare(valid, f"kafka: {{connection: c, topics: [t], value: {{format: {source}}}}}")
    valid.write("order.avsc" if "avsc" in source else "order.proto", text)
    (problem,) = valid.problems()
    place = "silver_flights.stream.yaml:9: `inputs.flights.stream.kafka.value.schema_file`: order."
    assert problem.startswith(place)
    assert f" cannot be used: {sentence}" in problem


def test_a_missing_schema_file_is_a_problem(valid: Folder) -> None:
    declare(valid)
    assert valid.problems() == [f"{PLACE}order.avsc cannot be used: it cannot be read: No such file or directory."]


def test_columns_are_declared_once(valid: Folder) -> None:
    declare(valid, FILES.replace("format: json", "format: json, columns: [{name: a, type: int}]"))
    (problem,) = valid.problems()
    assert problem.startswith(f"{PLACE}the columns are declared already: either they or a file")
