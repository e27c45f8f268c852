"""Names, durations and column types: what the alphabet lets through, for any text."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from sluice.declarations.column_types import (
    PRIMITIVES,
    ColumnType,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
    kind_of,
    parse_column_type,
)
from sluice.declarations.scalar_types import (
    ColumnName,
    FunctionReference,
    Name,
    RelativePath,
    TableName,
    duration_text,
    parse_duration,
)

NAME = TypeAdapter[str](Name)
TABLE = TypeAdapter[str](TableName)
COLUMN = TypeAdapter[str](ColumnName)
PATH = TypeAdapter[str](RelativePath)
FUNCTION = TypeAdapter[str](FunctionReference)
UNITS = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400}


def accepts(adapter: TypeAdapter[str], text: str) -> bool:
    """Whether the value's model takes this text."""
    try:
        adapter.validate_python(text)
    except ValidationError:
        return False
    return True


@given(st.from_regex(r"[a-z](_?[a-z0-9]){0,31}", fullmatch=True))
def test_names_of_the_alphabet_are_names(text: str) -> None:
    # `\d` of the expression is written out above: a digit of another script is no digit here.
    assert accepts(NAME, text)
    assert accepts(TABLE, f"{text}.{text}")


@given(st.text())
def test_whatever_is_a_name_is_safe_in_sql_paths_and_arguments(text: str) -> None:
    if accepts(NAME, text):
        assert re.fullmatch(r"[a-z][a-z0-9_]*", text, re.ASCII)
        assert "__" not in text
        assert len(text) <= 63
    if accepts(COLUMN, text):
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text, re.ASCII)
    if accepts(PATH, text):
        assert not text.startswith("/")
        assert ".." not in text.split("/")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a\n",
        "A",
        "1a",
        "_a",
        "a__b",
        "a-b",
        "a b",
        "a.b",
        "a`b",
        'a"b',
        "a;--",
        "\uff41",
        "a\u0660",
        "..",
        "%00",
        "a" * 64,
    ],
)
def test_these_are_no_names(text: str) -> None:
    assert not accepts(NAME, text)


@pytest.mark.parametrize("text", ["", "a", "a.", ".b", "a.b.c", "a..b", "a.b\n", "a.B", "a.b`", "a/b"])
def test_these_are_no_tables(text: str) -> None:
    assert not accepts(TABLE, text)


@pytest.mark.parametrize("text", ["/etc", "..", "a/../b", "a\n", "s3://x", "a b", "a%2e"])
def test_these_paths_leave_their_folder(text: str) -> None:
    assert not accepts(PATH, text)


@pytest.mark.parametrize(
    "text", ["a.py", "a.py:", "/a.py:f", "../a.py:f", "a.py:f\n", "a b.py:f", "a.sql:f", "a.py:1f"]
)
def test_these_are_no_functions(text: str) -> None:
    assert not accepts(FUNCTION, text)


@given(st.integers(1, 36_500), st.sampled_from(sorted(UNITS)), st.booleans(), st.sampled_from(["", " ", "  "]))
def test_durations_are_read_and_written_back(count: int, unit: str, plural: bool, space: str) -> None:
    duration = parse_duration(f"{count}{space}{unit}{'s' * plural}")
    assert duration == timedelta(seconds=count * UNITS[unit])
    assert parse_duration(duration_text(duration)) == duration


@pytest.mark.parametrize(
    "value",
    [
        0,
        5,
        1.5,
        None,
        True,
        "",
        "5",
        "hours",
        "0 hours",
        "-1 hours",
        "1.5 hours",
        "1 week",
        "1 hour 2 minutes",
        "36501 days",
        "999999999999 days",
        "\u0665 hours",
        [],
    ],
)
def test_these_are_no_durations(value: object) -> None:
    with pytest.raises(ValueError, match="a duration is a whole number and a unit"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("text", "expected", "kind"),
    [
        *((name, PrimitiveType(name), name) for name in PRIMITIVES),
        ("decimal(9, 2)", DecimalType(precision=9, scale=2), "decimal"),
        (" decimal( 38,38 ) ", DecimalType(precision=38, scale=38), "decimal"),
        ("fixed[16]", FixedType(16), "fixed"),
        ("list<string>", ListType(PrimitiveType("string")), "list"),
        ("map<string, long>", MapType(key=PrimitiveType("string"), value=PrimitiveType("long")), "map"),
        (
            "list<struct<a: int, b: list<date>>>",
            ListType(StructType((("a", PrimitiveType("int")), ("b", ListType(PrimitiveType("date")))))),
            "list",
        ),
    ],
)
def test_column_types(text: str, expected: ColumnType, kind: str) -> None:
    assert parse_column_type(text) == expected
    assert kind_of(expected) == kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bigint",
        "INT",
        "time",
        "timestamp_ns",
        "int int",
        "list",
        "list<>",
        "list<int",
        "list<int>>",
        "map<int>",
        "struct<>",
        "struct<a int>",
        "struct<a: int, a: int>",
        "decimal",
        "decimal(0, 0)",
        "decimal(39, 0)",
        "decimal(5, 6)",
        "fixed[0]",
        "list<" * 9 + "int" + ">" * 9,
        "list<" * 100_000,
    ],
)
def test_these_are_no_column_types(text: str) -> None:
    with pytest.raises(ValueError, match="type"):
        parse_column_type(text)


@given(st.text(alphabet="abintlongstructlist<>(),:[] 0123456789", max_size=60))
def test_any_text_is_a_column_type_or_a_value_error(text: str) -> None:
    try:
        parse_column_type(text)
    except ValueError as refusal:
        assert str(refusal)  # noqa: PT017  # most texts are refused, and few are not
