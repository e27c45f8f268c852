"""Which intervals are computed together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.backfill.intervals import Interval, IntervalLength, spanned, together
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.table_declaration import TableDeclaration, is_partition_aligned
from sluice.work.choose_items import IntervalLane
from sluice_spark.work.item_work import interval_lane


def day(number: int) -> Interval:
    """A day of January."""
    start = datetime(2013, 1, 1, tzinfo=UTC) + timedelta(days=number - 1)
    return Interval(start=start, end=start + timedelta(days=1))


def groups_of(*days: int, most: int = 9) -> list[list[int]]:
    """The groups of days of January."""
    return [
        [one.start.day for one in group]
        for group in together([day(number) for number in days], interval_of=lambda one: one, most=most)
    ]


@pytest.mark.parametrize(
    ("days", "groups"),
    [
        ((), []),
        ((5,), [[5]]),
        ((7, 6, 5), [[7, 6, 5]]),
        ((5, 7, 6), [[5, 7, 6]]),
        ((5, 7), [[5], [7]]),
        ((9, 2, 8, 3), [[2, 3], [9, 8]]),
    ],
)
def test_days_that_touch_are_together_in_the_order_of_their_requests(
    days: tuple[int, ...], groups: list[list[int]]
) -> None:
    assert groups_of(*days) == groups


def test_a_group_has_a_limit() -> None:
    assert groups_of(1, 2, 3, 4, 5, most=2) == [[1, 2], [3, 4], [5]]
    assert groups_of(1, 2, most=1) == [[1], [2]]


def test_the_same_day_twice_is_never_together() -> None:
    assert groups_of(5, 6, 5) == [[5], [6, 5]]


@given(st.lists(st.integers(1, 20), max_size=12), st.integers(1, 6))
def test_every_day_is_in_one_group_and_groups_have_no_hole(days: list[int], most: int) -> None:
    groups = groups_of(*days, most=most)

    assert sorted(number for group in groups for number in group) == sorted(days)
    assert all(len(group) <= most for group in groups)
    assert all(sorted(group) == list(range(min(group), max(group) + 1)) for group in groups)


def test_a_group_spans_from_its_first_start_to_its_last_end() -> None:
    assert spanned([day(7), day(5), day(6)]) == Interval(start=day(5).start, end=day(7).end)


def table(*partitioning: dict[str, Any]) -> TableDeclaration:
    """A table with two times."""
    columns = [{"name": name, "type": "timestamptz"} for name in ("at", "other")]
    return TableDeclaration.model_validate(
        {"table": "a.b", "description": "b", "owner": "o", "columns": columns, "partitioning": partitioning}
    )


@pytest.mark.parametrize(
    ("transform", "apart"),
    [("hour", {"hour", "day", "month"}), ("day", {"day", "month"}), ("month", {"month"}), ("year", set())],
)
def test_partitions_keep_intervals_apart_that_are_at_least_as_long(transform: str, apart: set[str]) -> None:
    lengths: tuple[IntervalLength, ...] = ("hour", "day", "month")

    found = {one for one in lengths if is_partition_aligned(table({"column": "at", "transform": transform}), "at", one)}

    assert found == apart


def test_partitions_of_another_column_and_no_partitions_keep_nothing_apart() -> None:
    assert not is_partition_aligned(table({"column": "other", "transform": "day"}), "at", "day")
    assert not is_partition_aligned(table(), "at", "day")
    assert is_partition_aligned(
        table({"column": "other", "transform": "month"}, {"column": "at", "transform": "day"}), "at", "day"
    )


@pytest.mark.parametrize(
    ("partition", "lane"),
    [("day", IntervalLane(at_once=5, together=3)), ("month", IntervalLane(at_once=1, together=1))],
)
def test_intervals_that_share_files_are_replaced_one_after_the_other(
    tmp_path: Path, partition: str, lane: IntervalLane
) -> None:
    """At the same time one of them would be computed twice: the other one rewrites the files of both."""
    write_table(tmp_path, "bronze.flights")
    write_table(tmp_path, "silver.flights", more=f"partitioning: [{{column: at, transform: {partition}}}]\n")
    write_continuous_stream(tmp_path, "daily", more="backfill: {column: at, interval: day, at_once: 5}\n")
    declarations = load_declarations(tmp_path)

    assert interval_lane(declarations, "daily") == lane
    assert interval_lane(declarations, "unknown") == IntervalLane(at_once=1, together=1)
