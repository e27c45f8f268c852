"""The patch of a declaration that takes a changed schema of a sender in."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.fixtures.streams import continuous_stream

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.source_schemas import FieldChange
from sluice.quality.declaration_patches import MOST_CHANGES, patch_of, type_of

COLUMNS = [
    {"name": "id", "type": "long", "required": True},
    {"name": "price", "type": "int"},
    {"name": "old", "type": "string"},
]
NEW = FieldChange(field="colour", now="optional string")
WIDER = FieldChange(field="price", was="optional int", now="optional double")
GONE = FieldChange(field="old", was="optional string")
REQUIRED_GONE = FieldChange(field="id", was="required long")


def of_kafka(**value: Any) -> StreamDeclaration:
    """A stream that decodes values."""
    declared = {"format": "avro", "registry": "shop", "columns": COLUMNS} | value
    kafka = {"connection": "shop", "topics": ["orders"], "value": {k: v for k, v in declared.items() if v is not None}}
    return continuous_stream(inputs={"records": {"stream": {"kafka": kafka}}}, quarantine=True).declaration


def of_files() -> StreamDeclaration:
    """A stream that reads files."""
    files = {"connection": "shop", "path": "in", "format": "parquet", "columns": COLUMNS}
    return continuous_stream(inputs={"records": {"stream": {"files": files}}}).declaration


def of_table(**more: Any) -> StreamDeclaration:
    """A stream that reads a table."""
    iceberg = {"table": "raw.orders"} | more
    return continuous_stream(inputs={"records": {"stream": {"iceberg": iceberg}}}, quarantine=True).declaration


def test_what_is_new_and_what_has_another_type_is_declared() -> None:
    patch = patch_of(of_kafka(), "records", [WIDER, GONE, REQUIRED_GONE, NEW])

    assert patch == (
        "# flights.stream.yaml: accept what is right, and delete the rest\n"
        "inputs:\n"
        "  records:\n"
        "    stream:\n"
        "      kafka:\n"
        "        value:\n"
        "          columns:\n"
        "            - {name: price, type: double}  # was optional int, is optional double\n"
        "            # `old` was optional string and is gone: it is null from now on, or delete the column\n"
        "            # `id` was required long and is gone: a record without it is rejected: leave `required` out, or "
        "delete the column\n"
        "            - {name: colour, type: string}  # new: optional string\n"
        "# A new column is published once the transformation selects it and bronze.flights has it."
    )
    columns = yaml.safe_load(patch)["inputs"]["records"]["stream"]["kafka"]["value"]["columns"]
    assert columns == [{"name": "price", "type": "double"}, {"name": "colour", "type": "string"}]


def test_columns_of_files_are_those_of_their_formats() -> None:
    found = FieldChange(field="at", now="an instant in microseconds")
    amount = FieldChange(field="amount", now="decimal128(9, 2)")

    patch = patch_of(of_files(), "records", [found, amount])

    assert yaml.safe_load(patch)["inputs"]["records"]["stream"]["files"]["columns"] == [
        {"name": "at", "type": "timestamptz"},
        {"name": "amount", "type": "decimal(9, 2)"},
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (FieldChange(field="place.zip", now="string"), "`place.zip` is new: string: it lies in a column"),
        (FieldChange(field="place", now="struct"), "`place` is new: struct: no single column has this type"),
        (FieldChange(field="n", now="an unsigned number of 64 bits"), "no single column has this type"),
        (FieldChange(field="@at\n- x", now="string"), "it is no name of a column, which may take it by `field`"),
        (FieldChange(field="other", was="string"), "`other` was string and is gone, and was not declared"),
        (FieldChange(field="price", was="int", now="int32"), "the declared int stays"),
    ],
)
def test_what_no_line_takes_in_is_said(change: FieldChange, said: str) -> None:
    patch = patch_of(of_files(), "records", [change])

    (line,) = [one for one in patch.splitlines() if said in one]
    assert line.lstrip().startswith("# ")
    assert yaml.safe_load(patch)["inputs"]["records"]["stream"]["files"]["columns"] is None


@pytest.mark.parametrize(
    ("declaration", "name", "said"),
    [
        (of_table(), "records", "# The input records has no columns of its own: those of its source are read"),
        (of_kafka(columns=None, schema_file="o.avsc"), "records", "# Put the sender's schema into o.avsc"),
        (of_kafka(columns=None, subject="orders"), "records", "with the newest version of orders"),
    ],
)
def test_where_columns_come_from_elsewhere_it_is_said(declaration: StreamDeclaration, name: str, said: str) -> None:
    patch = patch_of(declaration, name, [NEW])

    assert said in patch
    assert "# `colour` is new: optional string" in patch
    assert yaml.safe_load(patch) is None


def test_values_of_a_table_are_told_from_its_columns() -> None:
    value = {"format": "avro", "registry": "shop", "columns": COLUMNS}
    declaration = of_table(value=value, value_column="value")

    of_values = yaml.safe_load(patch_of(declaration, "records, its values", [NEW]))

    assert of_values["inputs"]["records"]["stream"]["iceberg"]["value"]["columns"] == [
        {"name": "colour", "type": "string"}
    ]
    assert "no columns of its own" in patch_of(declaration, "records", [NEW])


def test_there_is_no_patch_without_a_change_or_an_input() -> None:
    assert patch_of(of_files(), "records", []) == patch_of(of_files(), "other", [NEW]) == ""


def test_a_long_patch_says_how_much_is_missing() -> None:
    many = [FieldChange(field=f"f{number}", now="string") for number in range(MOST_CHANGES + 3)]

    assert "# and 3 more changes" in patch_of(of_files(), "records", many)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("required string, id 3", "string"),
        ("optional decimal(9, 2), id 4", '"decimal(9, 2)"'),
        ("text", "string"),
        ("fixed[16]", "fixed[16]"),
        ("list", None),
        ("bytes without the annotation of text", None),
    ],
)
def test_the_type_of_a_column_by_that_of_a_field(words: str, found: str | None) -> None:
    assert type_of(words) == found
