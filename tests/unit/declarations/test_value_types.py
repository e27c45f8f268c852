"""Types that no JSON value and no field of csv can have are refused when a declaration is read."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sluice.declarations.source_declarations import FilesSource
from sluice.declarations.value_declaration import ValueColumn, ValueDeclaration


def column(kind: str, **more: str) -> dict[str, str]:
    """A declared column."""
    return {"name": "x", "type": kind, **more}


@pytest.mark.parametrize("kind", ["map<timestamptz, int>", "list<map<boolean, int>>", "struct<a: map<double, int>>"])
def test_keys_that_no_object_has_are_refused(kind: str) -> None:
    with pytest.raises(ValidationError, match="the keys of a JSON object can be string, uuid, int, long, date, not"):
        ValueDeclaration.model_validate({"format": "json", "columns": [column(kind)]})


@pytest.mark.parametrize("kind", ["map<long, list<int>>", "struct<a: map<string, map<date, int>>>", "fixed[4]"])
def test_other_nested_types_are_allowed(kind: str) -> None:
    ValueDeclaration.model_validate({"format": "json", "columns": [column(kind)]})


@pytest.mark.parametrize("kind", ["list<int>", "map<string, int>", "struct<a: int>", "fixed[2]"])
def test_a_field_of_csv_is_never_nested(kind: str) -> None:
    with pytest.raises(ValidationError, match="a field of csv is text"):
        FilesSource.model_validate({"connection": "c", "format": "csv", "columns": [column(kind)]})


@pytest.mark.parametrize("kind", ["long", "date", "string"])
def test_a_unit_belongs_to_times(kind: str) -> None:
    with pytest.raises(ValidationError, match="belongs to `timestamp` and `timestamptz`"):
        ValueColumn.model_validate(column(kind, unit="seconds"))


def test_a_unit_belongs_to_text_formats() -> None:
    columns = [column("timestamptz", unit="seconds")]
    with pytest.raises(ValidationError, match="belongs to json: avro says"):
        ValueDeclaration.model_validate({"format": "avro", "registry": "r", "columns": columns})
    with pytest.raises(ValidationError, match="belongs to json and csv, not to parquet"):
        FilesSource.model_validate({"connection": "c", "format": "parquet", "columns": columns})
