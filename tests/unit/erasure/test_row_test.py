"""Which rows a condition means: what DuckDB finds by the same words; and what is no condition."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from sluice.erasure.row_test import arrow_type, condition_of, texts_of
from sluice.errors import UsageError

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "x", DoubleType()),
    NestedField(4, "seen_at", TimestampType()),
    NestedField(5, "day", DateType()),
    NestedField(6, "price", DecimalType(10, 2)),
    NestedField(7, "ok", BooleanType()),
    NestedField(8, "inside", StructType(NestedField(9, "deep", StringType()))),
)
NAMES = ["Ann", "ann", "O'Brien", "", None, " Ann", "Ännchen 🌊", "100%", 'a "b"', "\u0000x"]
_TIME = pa.timestamp("us")
ROWS = pa.table(
    {
        "id": pa.array(range(10), pa.int64()),
        "name": pa.array(NAMES, arrow_type(StringType())),
        "x": pa.array([0.0, -0.0, 1.5, None, float("nan"), float("inf"), -1.0, 2.0, 3.0, 4.0], pa.float64()),
        "seen_at": pa.array([datetime(2020, one, 1, tzinfo=UTC) if one else None for one in range(10)], _TIME),
        "day": pa.array([date(2020 + one, 1, 1) if one else None for one in range(10)], pa.date32()),
        "price": pa.array([Decimal(one) / 2 if one else None for one in range(10)], pa.decimal128(10, 2)),
        "ok": pa.array([None, True, False] * 3 + [True], pa.bool_()),
    }
)


def meant(text: str) -> list[int]:
    """The ids of the rows that a condition means."""
    condition = condition_of(text, SCHEMA, table="a.b")
    names = [one.name for one in condition.columns_in(SCHEMA)]
    return [place for place, is_meant in enumerate(condition.meant(ROWS.select(names)).to_pylist()) if is_meant]


@pytest.mark.parametrize(
    "text",
    [
        "id = 3",
        "id in (1, 4, 77)",
        "id not in (1, 4)",
        "name = 'O''Brien'",
        "name = ''",
        "name = 'Ännchen 🌊'",
        "name != 'Ann'",
        "name in ('Ann', 'ann')",
        "name not in ('Ann')",
        "name not in ('Ann', 'ann')",
        "not (name in ('Ann', 'ann'))",
        "not (name = 'Ann')",
        "name is null",
        "name is not null and id > 3",
        "name like 'An%'",
        "name not like 'An%'",
        "name = 'Ann' or id = 4",
        "not (name = 'Ann' or id = 4)",
        "x = 0.0",
        "x < 1",
        "id between 2 and 4",
        "seen_at >= '2020-04-01T00:00:00'",
        "day < '2023-01-01'",
        "price = 1.50",
        "price = '1.50'",
        "ok = true",
        "name = '100%'",
    ],
)
def test_a_condition_means_the_rows_that_duckdb_finds(text: str) -> None:
    rows = ROWS
    found = duckdb.from_arrow(rows).filter(text).project("id").order("id").fetchall()
    assert meant(text) == [number for (number,) in found]


def test_nan_is_meant_where_it_is_asked_for_alone() -> None:
    assert meant("x is nan") == [4]
    assert meant("x > 1") == [2, 5, 7, 8, 9]
    assert 4 in meant("x is not null")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        ("name = ", "cannot be read"),
        ("lower(name) = 'secret'", "cannot be read"),
        ("name like 'sec%ret'", "cannot be read"),
        ("name = 'secret'; drop table x", "cannot be read"),
        ("name = 'secret' or true", "cannot be read"),
        ("mail = 'secret'", "no column"),
        ("NAME = 'secret'", "no column"),
        ("id = 'secret'", "not of its type"),
        ("day = 'secret'", "not of its type"),
        ("true", "true for every row"),
        ("id is not null", "true for every row"),
        ("id is not null or name = 'secret'", "true for every row"),
        ("id is null", "true for no row"),
        ("id > 99999999999999999999", "true for no row"),
        ("inside.deep = 'secret'", "inside a column"),
        ("inside is null", "inside a column"),
    ],
)
def test_what_is_no_condition_is_refused_without_its_values(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        condition_of(text, SCHEMA, table="a.b")
    assert said in caught.value.message
    assert "secret" not in str(caught.value) + repr(caught.value.__cause__)
    assert caught.value.next_step
    assert caught.value.__cause__ is None


def test_a_condition_shows_its_digest_alone() -> None:
    one, other = (condition_of(f"name = '{name}'", SCHEMA, table="a.b") for name in ("Ann", "Bob"))
    assert one.digest != other.digest
    assert len(one.digest) == 64
    assert "Ann" not in repr(one)


def test_a_text_is_found_letter_by_letter_in_every_column_of_text() -> None:
    texts = texts_of(["Ännch", "O'Brien"])
    columns = texts.columns_in(SCHEMA)
    assert [one.name for one in columns] == ["name"]
    assert texts.meant(ROWS.select(["name"])).to_pylist() == [one in (2, 6) for one in range(10)]
    assert "Ännch" not in repr(texts)


@pytest.mark.parametrize("text", ["", "  ", "abc", " ab "])
def test_a_short_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="in records of others"):
        texts_of(["long enough", text])
