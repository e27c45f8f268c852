"""Intervals in UTC: boundaries, names, parts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.backfill import intervals
from sluice.backfill.intervals import (
    Interval,
    IntervalLength,
    count_parts,
    divide,
    parse_interval,
    rounded_outwards,
)
from sluice.errors import UsageError


def test_a_time_without_an_offset_is_utc() -> None:
    interval = parse_interval("2013-01-05", "2013-01-08T02:00+02:00")

    assert interval == Interval(start=datetime(2013, 1, 5, tzinfo=UTC), end=datetime(2013, 1, 8, tzinfo=UTC))
    assert str(interval) == "20130105T0000-20130108T0000"


@pytest.mark.parametrize(
    ("start", "end", "problem"),
    [
        ("2013-01-05", "2013-01-05", "is not after its start"),
        ("2013-01-05", "2013-01-04", "is not after its start"),
        ("5th of January", "2013-01-08", "is not a time in ISO 8601"),
        ("0001-01-01T00:00+14:00", "2013-01-08", "outside of the years 1970 to 2200"),
        ("2013-01-08", "9999-12-31T23:00-05:00", "outside of the years 1970 to 2200"),
        ("1969-12-31T23:00", "2013-01-08", "outside of the years 1970 to 2200"),
        ("1970-01-01T00:00+01:00", "2013-01-08", "outside of the years 1970 to 2200"),
        ("2013-01-08", "2201-01-01", "outside of the years 1970 to 2200"),
    ],
)
def test_what_is_no_interval_is_refused(start: str, end: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_interval(start, end)


@pytest.mark.parametrize("length", ["hour", "day", "month"])
def test_parts_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch, length: IntervalLength) -> None:
    whole = parse_interval("1970-01-01", "1990-12-01" if length == "hour" else "2200-12-01")
    count = len(list(intervals._parts(whole, length)))
    monkeypatch.setattr(intervals, "_parts", lambda *_: pytest.fail("a part was made"))

    with pytest.raises(UsageError, match=rf"{count:,} {length}s; {count - 1:,} are allowed at most"):
        divide(whole, length, at_most=count - 1)
    begun = Interval(start=whole.start, end=whole.end + timedelta(minutes=1))
    assert [count_parts(one, length) for one in (whole, begun)] == [count, count + 1]


@pytest.mark.parametrize(
    ("length", "parts"), [("hour", 24 * 59), ("day", 59), ("month", 2)], ids=["hours", "days", "months"]
)
def test_an_interval_is_rounded_outwards(length: IntervalLength, parts: int) -> None:
    whole = parse_interval("2013-01-01", "2013-03-01")
    inside = Interval(start=whole.start + timedelta(minutes=1), end=whole.end - timedelta(minutes=1))

    assert rounded_outwards(inside, length) == rounded_outwards(whole, length) == whole
    assert len(divide(rounded_outwards(inside, length), length)) == parts


@pytest.mark.parametrize(
    ("length", "parts"), [("hour", 24 * 59), ("day", 59), ("month", 2)], ids=["hours", "days", "months"]
)
def test_an_interval_has_parts(length: IntervalLength, parts: int) -> None:
    assert len(divide(parse_interval("2013-01-01", "2013-03-01"), length)) == parts


@pytest.mark.parametrize(
    ("start", "end", "length"),
    [
        ("2013-01-05T06:00", "2013-01-08", "day"),
        ("2013-01-05", "2013-02-01", "month"),
        ("2013-01-05T00:30", "2013-02-01", "hour"),
    ],
)
def test_a_part_of_a_part_is_refused(start: str, end: str, length: IntervalLength) -> None:
    with pytest.raises(UsageError, match=f"The interval of a run is a {length}"):
        divide(parse_interval(start, end), length)


@given(
    first=st.integers(min_value=0, max_value=500),
    months=st.integers(min_value=1, max_value=40),
    length=st.sampled_from(("hour", "day", "month")),
)
def test_the_parts_cover_the_interval_once(first: int, months: int, length: IntervalLength) -> None:
    start = datetime(1990 + first // 12, first % 12 + 1, 1, tzinfo=UTC)
    last = first + (months if length != "hour" else 1)
    whole = Interval(start=start, end=datetime(1990 + last // 12, last % 12 + 1, 1, tzinfo=UTC))

    parts = divide(whole, length)

    assert (parts[0].start, parts[-1].end) == (whole.start, whole.end)
    assert all(before.end == after.start for before, after in pairwise(parts))
    assert all(part.end - part.start <= timedelta(days=31) for part in parts)
