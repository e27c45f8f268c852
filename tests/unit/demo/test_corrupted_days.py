"""The days that the demo corrupts: whole ones, which nothing changes any more when the replay has been read."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest

from sluice.backfill.intervals import divide
from sluice.demo.backfill_step import days_to_corrupt
from sluice.demo.flights_data import FIRST_DAY, Span, flights_of

WATERMARK_DELAY = timedelta(hours=6)


@pytest.mark.parametrize(
    ("first_day", "days", "expected"),
    [
        (date(2013, 1, 1), 14, (date(2013, 1, 2), 3)),
        (date(2013, 1, 15), 14, (date(2013, 1, 16), 3)),
        (date(2013, 1, 1), 2, (date(2013, 1, 1), 1)),
        (date(2013, 1, 3), 2, (date(2013, 1, 1), 3)),
        (date(2013, 12, 30), 2, (date(2013, 12, 28), 3)),
    ],
)
def test_three_days_are_chosen_where_there_are_three(first_day: date, days: int, expected: tuple[date, int]) -> None:
    parts = divide(days_to_corrupt(Span(first_day=first_day, days=days)), "day")
    assert (parts[0].start.date(), len(parts)) == expected


@pytest.mark.parametrize("days", [2, 3, 5])
def test_the_days_are_closed_when_a_replay_has_been_read(days: int) -> None:
    first_days = (FIRST_DAY + timedelta(days=number) for number in range(0, 364 - days, 21))
    for span in (Span(first_day=first_day, days=days) for first_day in first_days):
        newest: datetime = flights_of(span)[-1].departure
        assert newest - WATERMARK_DELAY > days_to_corrupt(span).end, span
