"""The orders that are tried, and where rows come in each."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.layout.row_orders import MOST_COLUMNS, RowOrder, possible_orders


def in_order(order: RowOrder, rows: pa.Table) -> list[tuple[Any, ...]]:
    """The rows in an order."""
    found = rows.take(order.places(rows))
    return [tuple(row.values()) for row in found.to_pylist()]


def test_rows_are_ordered_by_one_column_after_another() -> None:
    rows = pa.table({"a": [2, 1, 2, None], "b": [1, 9, 0, 5]})

    assert in_order(RowOrder(columns=("a", "b")), rows)[:3] == [(1, 9), (2, 0), (2, 1)]
    assert in_order(RowOrder(columns=("a",), descending=("a",)), rows)[2] == (1, 9)
    assert in_order(RowOrder(), rows) == [(2, 1), (1, 9), (2, 0), (None, 5)]


def z_value(*values: int) -> int:
    """The bits of whole numbers by turns, as Iceberg writes them, by counting them one by one."""
    found = 0
    for place in reversed(range(64)):
        for value in values:
            found = found << 1 | ((value + (1 << 63)) >> place & 1)
    return found


WHOLE = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(WHOLE, WHOLE, WHOLE), min_size=1, max_size=30))
def test_whole_numbers_are_z_ordered_by_their_bits(values: list[tuple[int, int, int]]) -> None:
    rows = pa.table(dict(zip("abc", map(list, zip(*values, strict=True)), strict=True)))

    found = in_order(RowOrder(columns=("a", "b", "c"), is_z_order=True), rows)

    assert found == sorted(values, key=lambda row: z_value(*row))


@pytest.mark.parametrize(
    "values",
    [
        [-math.inf, -1.5, -0.0, 0.25, 1e300, math.inf],
        ["", "a", "ab", "b", "é", "日"],
        [b"", b"\x00\x01", b"a", b"\xff"],
        [datetime(1969, 12, 31, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)],
        [date(1, 1, 1), date(1969, 12, 31), date(2026, 1, 1)],
        [False, True],
        [None, -5, 7],
    ],
    ids=["floats", "texts", "bytes", "times", "dates", "booleans", "nulls first"],
)
def test_values_of_every_type_keep_their_order_along_a_curve(values: list[Any]) -> None:
    rows = pa.table({"a": pa.array(list(reversed(values))), "same": [1] * len(values)})

    found = in_order(RowOrder(columns=("a", "same"), is_z_order=True), rows)

    assert [row[0] for row in found] == values


def test_floats_are_compared_as_eight_bytes_beside_whole_numbers() -> None:
    rows = pa.table({"a": pa.array([1.0, 2.0], pa.float32()), "b": [5, 3]})

    ones = [struct.unpack(">q", struct.pack(">d", value))[0] for value in (1.0, 2.0)]
    expected = sorted(zip((1.0, 2.0), (5, 3), ones, strict=True), key=lambda row: z_value(row[2], row[1]))
    assert in_order(RowOrder(columns=("a", "b"), is_z_order=True), rows) == [row[:2] for row in expected]


def test_single_columns_pairs_and_curves_are_tried_the_plainest_first() -> None:
    tried = [str(order) for order in possible_orders(("a", "b", "c"), z_orderable={"a", "b", "c"})]

    assert tried[:4] == ["sorted by a", "sorted by b", "sorted by c", "sorted by a, then b"]
    assert len([one for one in tried if ", then" in one]) == 6
    assert [one for one in tried if one.startswith("z-order")] == [
        "z-order of a and b",
        "z-order of a and c",
        "z-order of b and c",
        "z-order of a and b and c",
    ]


def test_no_curve_goes_through_a_column_that_iceberg_cannot_z_order() -> None:
    tried = list(possible_orders(("a", "price"), z_orderable={"a"}))

    assert not any(order.is_z_order for order in tried)


def test_pairs_and_curves_are_of_the_first_columns_alone() -> None:
    names = tuple("abcdef")
    several = [order for order in possible_orders(names, z_orderable=set(names)) if len(order.columns) > 1]

    assert {name for order in several for name in order.columns} == set(names[:MOST_COLUMNS])
