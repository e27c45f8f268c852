"""Which rows a condition means: what DuckDB finds by the same words; and what is no condition."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from sluice.erasure.condition_text import arrow_type
from sluice.erasure.row_test import condition_of, texts_of
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
EVERY_TYPE = Schema(
    *SCHEMA.fields,
    NestedField(10, "small", IntegerType()),
    NestedField(11, "zoned", TimestamptzType()),
    NestedField(12, "clock", TimeType()),
    NestedField(13, "who", UUIDType()),
    NestedField(14, "code", FixedType(3)),
    NestedField(15, "raw", BinaryType()),
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
        "x > 1",
        "x >= 1.5",
        "not x > 1",
        "not (x between 0 and 2)",
        "x in (0.0, 2.0)",
        "x not in (0, 2)",
        "id = 3.0",
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
    with duckdb.connect() as database:
        database.from_arrow(ROWS).create("rows")  # a filter over Arrow compares NaN as PyArrow does
        found = database.table("rows").filter(text).project("id").order("id").fetchall()
    assert meant(text) == [number for (number,) in found]


def test_what_is_no_number_is_above_all_numbers_as_in_spark() -> None:
    assert meant("x is nan") == [4]
    assert 4 in meant("x is not null")
    assert meant("x > 1") == meant("x >= 1.5") == [2, 4, 5, 7, 8, 9]
    assert meant("not x > 1") == [0, 1, 6]
    assert meant("x not in (0, 2)") == [2, 4, 5, 6, 8, 9]


def test_a_number_of_32_bits_is_compared_as_in_spark() -> None:
    rows = pa.table({"f": pa.array([0.5, 0.1, None, -0.0, float("nan")], pa.float32())})
    schema = Schema(NestedField(1, "f", FloatType()))

    def found(text: str) -> list[bool]:
        return list(condition_of(text, schema, table="a.b").meant(rows).to_pylist())

    assert found("f = 0.5") == [True, False, False, False, False]
    assert found("f in (0.0, 0.5)") == [True, False, False, True, False]
    for text in ("f = 0.1", "f in (0.1, 0.5)", "f < 16777217", "f > '0.1'", f"f < {10**400}", f"f > {10**39}.0"):
        with pytest.raises(UsageError, match="not exactly one of its values"):
            condition_of(text, schema, table="a.b")


def test_thousands_of_values_and_of_parts_are_compared() -> None:
    values = ", ".join(map(str, range(3, 3_003)))
    assert meant(f"id in ({values})") == [3, 4, 5, 6, 7, 8, 9]
    assert meant(f"id not in ({values})") == [0, 1, 2]
    names = ", ".join(f"'n{one}'" for one in range(3_000))
    assert meant(f"name in ({names}, 'Ann')") == [0]
    assert meant(f"not name in ({names}, 'Ann')") == [one for one in range(1, 10) if one != 4]
    assert meant(" or ".join(f"id = {one}" for one in range(5, 1_000))) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    "text",
    [
        "id = 1.5",
        "id = 2.5",
        "id < 2.5",
        "id > 1.5",
        "id in (1.5, 3.0)",
        "id = '1.5'",
        "id = ' 1'",
        "id = '1_0'",
        "id = '٣'",
        "id < 99999999999999999999",
        "id > -99999999999999999999",
        "id in (99999999999999999999, 1)",
        "id not in (99999999999999999999, 1)",
        "id between 1 and 99999999999999999999",
        "small in (99999999999, 1)",
        "small = 2147483648",
        "small is nan",
        "name = 5",
        "name = true",
        "x = 'nan'",
        "x < 'inf'",
        "x = '1e3'",
        "x = 9007199254740993",
        f"x < {10**400}",
        f"x < {10**400}.0",
        "price = 1.5",
        "price = 1.505",
        "price = 99999999999",
        "price < 99999999999.00",
        "price = 'NaN'",
        "price = '1E+2'",
        "day = 18262",
        "day < 2020",
        "day = '20200101'",
        "day = '2020-W01-1'",
        "seen_at = 5",
        "seen_at = '2020-01-01T00:00:00+01:00'",
        "seen_at = '2020-01-01 00:00:00'",
        "seen_at = '2020-01-01T00:00:00,5'",
        "seen_at = '2020-01-01T00:00:00.1234567'",
        "zoned = '2020-01-01T00:00:00'",
        "zoned = 5",
        "clock = 5",
        "clock = '10'",
        "clock = '10:00:00+01:00'",
        "ok = 1",
        "ok = 'yes'",
        "who = '00000000000000000000000000000001'",
        "who like '0000%'",
        "code = 'abc'",
        "raw = 'abc'",
        "id like '5'",
        "day like '2020-01-01'",
        "day not like '2020%'",
        r"name = 'O\'Brien'",
        r"name = 'CORP\ann'",
        r"name in ('a\\b', 'c')",
        "id is not nan",
        "day is nan",
    ],
)
def test_a_value_counts_only_as_it_is_written(text: str) -> None:
    with pytest.raises(UsageError, match="not exactly one of its values"):
        condition_of(text, EVERY_TYPE, table="a.b")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("small = 2147483647", "small"),
        ("id = '7'", "id"),
        ("id = 7.0", "id"),
        ("x = 7", "x"),
        ("x = '0.1'", "x"),
        ("price = 5", "price"),
        ("seen_at = '2020-01-01T00:00:00.5'", "seen_at"),
        ("zoned = '2020-01-01T00:00:00+01:00'", "zoned"),
        ("clock = '10:00:00'", "clock"),
        ("who = '00000000-0000-0000-0000-00000000000A'", "who"),
        ("ok = 'true'", "ok"),
        ("\"name\" = 'Ann'", "name"),
        ("7 = id", "id"),
    ],
)
def test_a_value_of_the_type_is_taken(text: str, value: str) -> None:
    assert [one.name for one in condition_of(text, EVERY_TYPE, table="a.b").fields] == [value]


@pytest.mark.parametrize(
    "text",
    ["name like 'a_n'", "name like 'a_n%'", "name not like '_nn'", "name like '%nn'", r"name like 'a\\%'",
     r"name like 'a\n%'", "name like 'A%%'", "not (name like 'A_n' or id = 1)"],
)  # fmt: skip
def test_a_pattern_with_two_readings_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="pattern of `like`"):
        condition_of(text, SCHEMA, table="a.b")


def test_an_escaped_character_of_a_pattern_is_itself() -> None:
    rows = pa.table({"name": pa.array(["a_n", "ann", "a%", "a_nx", None], arrow_type(StringType()))})

    def found(text: str) -> list[int]:
        meant = condition_of(text, SCHEMA, table="a.b").meant(rows).to_pylist()
        return [place for place, is_meant in enumerate(meant) if is_meant]

    assert found(r"name like 'a\_n'") == [0]
    assert found(r"name like 'a\_n%'") == [0, 3]
    assert found(r"name like 'a\%'") == [2]
    assert found(r"name not like 'a\_n'") == [1, 2, 3]
    assert found(r"not name like 'a\_n%'") == [1, 2]


@pytest.mark.parametrize(
    "text", ["name = 'a\tb'", "name = 'a\x00'", "\ufeffname = 'Ann'", "name = 'a\u2028b'", "name = '\udcff'"]
)
def test_a_condition_with_what_cannot_be_seen_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be seen"):
        condition_of(text, SCHEMA, table="a.b")


def test_a_condition_may_have_several_lines_and_every_letter() -> None:
    assert condition_of("name = 'Zo\u200c\u00eb'\n  or name = 'Zoë 👩\u200d👧'", SCHEMA, table="a.b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("name = ", "cannot be read"),
        ("lower(name) = 'secret'", "cannot be read"),
        ("name like 'sec%ret'", "before its end"),
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
        ("id > 99999999999999999999", "not exactly one of its values"),
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


@pytest.mark.parametrize(
    "text", ["ann@x.org ", " ann@x.org", "ann@x.org\u00a0", "\ufeffann@x.org", "ann\t@x.org", "ann\udcff"]
)
def test_a_text_that_its_reader_sees_otherwise_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be seen"):
        texts_of([text])


@pytest.mark.parametrize("text", ["", "  ", "abc", " ab "])
def test_a_short_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="in records of others"):
        texts_of(["long enough", text])
