"""Names that differ in case only, at any level, and types of a schema that no value fits, are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sluice.declarations.column_types import parse_column_type
from sluice.declarations.schema_files import read_columns
from sluice.declarations.source_declarations import FilesSource
from sluice.declarations.value_declaration import ValueDeclaration

TWICE = [{"name": "id", "type": "long"}, {"name": "ID", "type": "string"}]
AGAIN = "the column ID is there already as id"


def test_columns_of_values_and_of_files_are_compared_without_case() -> None:
    with pytest.raises(ValidationError, match=AGAIN):
        ValueDeclaration.model_validate({"format": "json", "columns": TWICE})
    with pytest.raises(ValidationError, match=AGAIN):
        FilesSource.model_validate({"connection": "landing", "format": "parquet", "columns": TWICE})


def test_fields_inside_of_others_are_compared_too() -> None:
    with pytest.raises(ValueError, match="has the field A twice"):
        parse_column_type("list<struct<a: int, b: struct<c: int>, A: string>>")


@pytest.mark.parametrize(
    ("name", "schema", "problem"),
    [
        (
            "a.avsc",
            {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}, {"name": "Id", "type": "int"}]},
            "the column Id is there already as id",
        ),
        ("a.json", {"type": "object", "properties": {"id": {"type": "integer"}, "ID": {"type": "string"}}}, AGAIN),
        (
            "order.avsc",
            {
                "type": "record",
                "name": "r",
                "fields": [
                    {"name": "id", "type": "long"},
                    {"name": "x", "type": {"type": "int", "logicalType": "time-millis"}},
                ],
            },
            "x has the logical type time-millis",
        ),
    ],
)
def test_schemas_are_held_to_the_same(tmp_path: Path, name: str, schema: dict[str, Any], problem: str) -> None:
    (tmp_path / name).write_text(json.dumps(schema))
    with pytest.raises(ValueError, match=problem):
        read_columns(tmp_path / name)
