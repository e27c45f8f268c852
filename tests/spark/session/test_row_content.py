"""Two rows have the same sums exactly when they are equal, whatever is null, empty or nested in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from sluice_spark.session.columns import fingerprint_of, sums_of_rows

NAN = math.nan
TEXTS, NUMBERS = (None, "", "a", "b"), (None, 0, 1)
DOUBLES = (None, 0.0, -0.0, 1.0, NAN, math.inf)
LISTS: Sequence[Any] = (None, [], [None], [1], [0], [1, None], [None, 1], [1, 1], [1, 0])

COLUMNS: Mapping[str, tuple[str, Sequence[Any]]] = {
    "text": ("string", TEXTS),
    "words": ("string", TEXTS),
    "is it": ("boolean", (None, True, False)),
    "double": ("double", DOUBLES),
    "float": ("float", DOUBLES),
    "small": ("decimal(10, 2)", (None, Decimal("0.00"), Decimal("-0.01"), Decimal("1.00"))),
    "large": ("decimal(38, 2)", (None, Decimal("0.00"), Decimal("-0.01"), Decimal(10**30))),
    "bytes": ("binary", (None, b"", b"\0", b"\0\0", b"a")),
    "numbers": ("array<bigint>", LISTS),
    "others": ("array<bigint>", LISTS),
    "doubles": ("array<double>", (None, [], *([one] for one in DOUBLES))),
    "nested": (
        "array<array<bigint>>",
        (None, [], [None], [[]], [[1], []], [[], [1]], [[1], [1]], [[1, 1]], [[1], None]),
    ),
    "pair": ("struct<a: string, b: string>", (None, (None, None), ("a", None), (None, "a"), ("", None))),
    "deep": (
        "struct<one: struct<l: array<bigint>, m: array<bigint>>, n: bigint>",
        (None, (None, None), ((None, None), None), (([1], []), None), (([], [1]), None), ((None, None), 1)),
    ),
    "pairs": (
        "array<struct<a: bigint, b: bigint>>",
        (
            None,
            [],
            [None],
            [(None, None)],
            [(1, None)],
            [(None, 1)],
            [(1, None), (None, 1)],
            [(1, 1)],
            [(None, None)] * 2,
        ),
    ),
    "flags": (
        "struct<l: array<boolean>, m: array<boolean>>",
        (([False], []), ([], [False]), (None, [False]), ([False], None), ([None], [])),
    ),
    "marked": (
        "struct<l: map<boolean, boolean>, m: map<boolean, boolean>>",
        (({}, {False: False}), ({False: False}, {}), ({}, None), (None, {}), ({False: None}, {})),
    ),
    "map": (
        "map<string, bigint>",
        (None, {}, {"a": None}, {"a": 1}, {"a": 1, "b": None}, {"b": None, "a": 1}, {"a": None, "b": 1}),
    ),
    "by double": (
        "map<double, array<bigint>>",
        (None, {0.0: [1]}, {-0.0: [1]}, {NAN: []}, {NAN: None}, {1.0: [1], 0.0: []}),
    ),
    "maps": (
        "array<map<string, struct<l: map<bigint, string>>>>",
        (None, [{}], [{}, None], [{"a": None}], [{"a": (None,)}], [{"a": ({},)}], [{"a": ({1: "a"},)}, {}]),
    ),
}
"""The type of each column, and values that are easily taken for one another."""

ROWS = st.dictionaries(st.sampled_from(sorted(COLUMNS)), st.integers(0, 8), max_size=3).map(
    lambda given: {name: COLUMNS[name][1][number % len(COLUMNS[name][1])] for name, number in given.items()}
)
"""Rows of which most columns are null, so that many differ by little."""


def drawn(number: int) -> list[Mapping[str, Any]]:
    """Random rows, other ones in each run."""
    found: list[Mapping[str, Any]] = []

    @settings(
        max_examples=number,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(ROWS)
    def draw(row: Mapping[str, Any]) -> None:
        found.append(row)

    draw()
    return found


def meaning(value: Any) -> Any:
    """A value so that two are equal exactly when SQL says that they are."""
    match value:
        case float():
            return "NaN" if math.isnan(value) else value + 0.0
        case Mapping():
            return ("map", frozenset((meaning(key), meaning(one)) for key, one in value.items()))
        case list():
            return ("list", *map(meaning, value))
        case tuple():
            return ("struct", *map(meaning, value))
    return None if value is None else (type(value).__name__, value)


def sums_of_each(spark: SparkSession, rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """The sums of each of some rows, in one job."""
    schema = ", ".join(f"`{name}` {kind}" for name, (kind, _) in COLUMNS.items())
    values = [(number, *(row.get(name) for name in COLUMNS)) for number, row in enumerate(rows)]
    given = spark.createDataFrame(values, f"number bigint, {schema}")
    sums = sums_of_rows(given.drop("number"))
    found = given.groupBy("number").agg(*sums).orderBy("number").collect()
    assert [one["rows"] for one in found] == [1] * len(rows)
    return [fingerprint_of(one).sums for one in found]


def mistaken(rows: Sequence[Mapping[str, Any]], sums: Sequence[Any]) -> list[str]:
    """The rows that are different and have a sum in common, and those that are equal and have not."""
    by_meaning: dict[Any, Any] = {}
    by_sum: dict[Any, Any] = {}
    found = []
    for row, two in zip(rows, sums, strict=True):
        means = frozenset((name, meaning(value)) for name, value in row.items() if value is not None)
        if (known := by_meaning.setdefault(means, (two, row)))[0] != two:
            found.append(f"equal, but not the same: {known[1]}, {row}")
        for place, one in enumerate(two):
            if (other := by_sum.setdefault((place, one), (means, row)))[0] != means:
                found.append(f"the same sum {place}, but different: {other[1]}, {row}")
    return found


def test_rows_have_the_same_sums_exactly_when_they_are_equal(spark: SparkSession) -> None:
    """Every value alone, and pairs and triples of columns at random."""
    alone = [{name: value} for name, (_, values) in COLUMNS.items() for value in values]
    rows = [*alone, *drawn(500)]

    sums = sums_of_each(spark, rows)

    assert mistaken(rows, sums) == []


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("struct<a: string, b: string>", ("x", None), (None, "x")),
        ("array<bigint>", None, []),
        ("array<bigint>", [1, None], [1]),
        ("struct<a: array<bigint>, b: array<bigint>>", ([1, 2], [3]), ([1], [2, 3])),
        ("map<string, bigint>", {"a": 1}, {"a": None}),
    ],
    ids=["values that change places", "no list", "a null at the end", "neighbouring lists", "a value of a map"],
)
def test_rows_that_are_easily_taken_for_one_another_differ(
    spark: SparkSession, kind: str, one: Any, other: Any
) -> None:
    rows = spark.createDataFrame([(1, one), (2, other)], f"number bigint, value {kind}")
    found = rows.groupBy("number").agg(*sums_of_rows(rows.select("value"))).collect()

    first, second = (fingerprint_of(row) for row in found)

    assert first.rows == second.rows == 1
    assert len({*first.sums, *second.sums}) == 4, "each row has two sums of its own"


def test_maps_are_equal_whatever_the_order_of_their_entries(spark: SparkSession) -> None:
    """In SQL: on the way from Python every map gets the order of Java's."""
    entries = ("map('a', 1, 'b', null)", "map('b', null, 'a', 1)", "map('a', null, 'b', 1)")
    given = [spark.sql(f"SELECT {one} AS notes, array({one}) AS nested") for one in entries]

    first, same, other = (fingerprint_of(rows.agg(*sums_of_rows(rows)).collect()[0]) for rows in given)

    assert first == same
    assert first != other


def test_equal_rows_have_the_same_sums_whatever_their_order_and_their_bits(spark: SparkSession) -> None:
    """Zeros and NaN are equal as in SQL; and a row that is twice there counts."""
    kind = "value double, values array<float>, notes map<string, double>"
    rows = [(0.0, [0.0, NAN], {"a": 0.0, "b": 1.0}), (None, [], None)]
    equal = [rows[1], (-0.0, [-0.0, -NAN], {"b": 1.0, "a": -0.0})]

    def of(given: Sequence[tuple[Any, ...]]) -> Any:
        frame = spark.createDataFrame(list(given), kind)
        return fingerprint_of(frame.agg(*sums_of_rows(frame)).collect()[0])

    assert of(rows) == of(equal)
    assert of(rows) != of([*rows, rows[1]])
    assert of([*rows, rows[0]]) != of([*rows, rows[1]])
    empty = spark.createDataFrame([], kind)
    assert fingerprint_of(empty.agg(*sums_of_rows(empty)).collect()[0]).sums == (0, 0)
