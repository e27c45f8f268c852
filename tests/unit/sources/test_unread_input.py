"""Unread input, counted from offsets as Spark's sources write them and heads as the services report them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sluice.ledger.progress_samples import LagObservation
from sluice.sources.iceberg_positions import TableStep
from sluice.sources.unread_input import PartitionBounds, has_to_pass, is_at_end, unread_records, unread_rows

TOPICS = {"flights": {0: PartitionBounds(first=0, end=100), 1: PartitionBounds(first=40, end=90)}}
HISTORY = (
    TableStep(snapshot_id=5, appended_rows=7, appended_files=1),
    TableStep(snapshot_id=4),
    TableStep(snapshot_id=3, appended_rows=100, appended_files=4),
    TableStep(snapshot_id=2, appended_rows=10, appended_files=1),
)


@pytest.mark.parametrize(
    ("offset", "rows"),
    [
        (None, 150),
        ({"flights": {"0": 0, "1": 0}}, 150),
        ({"flights": {"0": 60, "1": 90}}, 40),
        ({"flights": {"0": 100}}, 50),
        ({"flights": {"0": 100, "1": 90}}, 0),
        ({"flights": {"0": 120, "1": 90}}, 0),
    ],
)
def test_unread_records(offset: Any, rows: int) -> None:
    assert unread_records(offset, topics=TOPICS, from_the_beginning=True) == LagObservation(rows=rows)


def test_a_reader_of_what_comes_next_has_no_lag_before_it_has_started() -> None:
    assert unread_records(None, topics=TOPICS, from_the_beginning=False).rows is None


def at(snapshot_id: int, position: int) -> dict[str, Any]:
    """An offset as Iceberg's source writes it."""
    return {"version": 1, "snapshot_id": snapshot_id, "position": position, "scan_all_files": False}


@pytest.mark.parametrize(
    ("offset", "rows"),
    [
        (None, 117),
        (at(-1, -1), 117),
        (at(5, 1), 0),
        (at(5, 0), 7),
        (at(4, 0), 7),
        (at(3, 4), 7),
        (at(3, 1), 82),
        (at(2, 1), 107),
    ],
)
def test_unread_rows(offset: Any, rows: int) -> None:
    assert unread_rows(offset, history=HISTORY) == LagObservation(rows=rows)


def test_a_reader_that_begins_at_a_time_has_not_missed_what_came_before_it() -> None:
    steps = tuple(
        TableStep(snapshot_id=number, appended_rows=10, appended_files=1, committed_at_ms=number * 1000)
        for number in (3, 2, 1)
    )
    assert unread_rows(None, history=steps, starting=datetime.fromtimestamp(4, tz=UTC)).rows == 0
    assert unread_rows(None, history=steps, starting=datetime.fromtimestamp(2, tz=UTC)).rows == 20
    assert unread_rows(at(1, 1), history=steps, starting=datetime.fromtimestamp(4, tz=UTC)).rows == 20, "it has begun"


def test_a_reader_whose_snapshot_is_gone_has_an_unknown_lag() -> None:
    lag = unread_rows(at(1, 0), history=HISTORY)
    assert lag == LagObservation(rows=None, problem="its snapshot 1 is no longer in the table's history")


def test_an_empty_table_has_nothing_to_read() -> None:
    assert unread_rows(None, history=()) == LagObservation(rows=0)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ({"flights": {"0": 100, "1": 90}}, True),
        ({"flights": {"0": 100, "1": 89}}, False),
        ({"flights": {"0": 101, "1": 90}}, False),
        ({"flights": {"0": 100}}, False),
        ({"flights": {"0": 100, "1": 90}, "weather": {"0": 3}}, False),
        (None, False),
    ],
    ids=["at the end", "before it", "behind the end of a topic made anew", "no partition", "a topic is gone", "unset"],
)
def test_a_reader_at_the_end_has_lost_nothing(offset: Any, expected: bool) -> None:
    assert is_at_end(offset, topics=TOPICS) is expected


@pytest.mark.parametrize(
    ("offset", "expected"), [(None, False), (at(2, 1), True), (at(3, 4), True), (at(4, 0), False), (at(-1, 0), True)]
)
def test_a_reader_comes_past_an_erasure_unless_it_begins_with_what_is_left(offset: Any, expected: bool) -> None:
    erased = tuple(replace(one, is_of_erasure=one.snapshot_id == 4) for one in HISTORY)
    assert has_to_pass(offset, history=erased, failing={}) is expected
    assert not has_to_pass(offset, history=HISTORY, failing={"overwrite": True})
