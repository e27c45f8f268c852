"""A schema of a registry that cannot be used is described alike each time, and protoc reads it once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sluice.declarations import protobuf_schemas
from sluice.record_values import registry
from sluice.record_values.schemas import RegisteredSchema, SchemaText

_WITHOUT_SYNTAX = 'import "confluent/{name}.proto"; message A {{ optional int32 a = 1; }}'
"""protoc logs a warning about it, with the time and the thread, before it refuses the import."""


def _refused(monkeypatch: pytest.MonkeyPatch, name: str) -> dict[str, str]:
    schema = SchemaText(text=_WITHOUT_SYNTAX.format(name=name))
    found = RegisteredSchema(format="protobuf", schema=schema)
    monkeypatch.setattr(registry, "schema_of_id", lambda _connection, _id: found)
    return registry.described_schema(cast(Any, None), 1, message=None)


def test_the_fields_inside_of_columns_have_paths_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """{"type": "record", "name": "r", "fields": [
        {"name": "s", "type": {"type": "record", "name": "s", "fields": [
        {"name": "token", "type": {"type": "array", "items": "int"}}]}}, {"name": "m", "type": ["null", {"type": "map",
        "values": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}]}]}"""
    found = RegisteredSchema(format="avro", schema=SchemaText(text=text))
    monkeypatch.setattr(registry, "schema_of_id", lambda _connection, _id: found)

    assert registry.described_schema(cast(Any, None), 1, message=None) == {
        "s": "required struct",
        "s.token": "list",
        "s.token.element": "int",
        "m": "optional map",
        "m.key": "string",
        "m.value": "decimal(9, 2)",
    }


def test_the_log_of_protoc_is_no_part_of_its_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    (described,) = _refused(monkeypatch, "logged").values()

    assert described.startswith("protobuf, protoc refuses it: confluent/logged.proto: File not found")


def test_protoc_is_asked_once_about_a_schema_that_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    refusal = protobuf_schemas._refusal

    def counted(arguments: list[str], folder: str) -> str:
        asked.append(folder)
        return refusal(arguments, folder)

    monkeypatch.setattr(protobuf_schemas, "_refusal", counted)

    first, second = _refused(monkeypatch, "once"), _refused(monkeypatch, "once")

    assert first == second
    assert len(asked) == 1
