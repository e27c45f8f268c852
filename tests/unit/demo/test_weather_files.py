"""The weather of a day arrives when no flight of its hours can still be on its way."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

import pyarrow.compute as pc

from sluice.demo.flights_data import DAYS_OF_DATA, FIRST_DAY, LONGEST_DELAY, Span, read_weather
from sluice.demo.weather_files import days_complete_at


def test_the_first_days_weather_arrives_with_the_second_day() -> None:
    assert days_complete_at(Span(first_day=FIRST_DAY, days=2).ends_at) == [date(2013, 1, 1)]


def test_two_weeks_of_flights_bring_all_but_the_last_days_weather() -> None:
    days = days_complete_at(Span(first_day=FIRST_DAY, days=14).ends_at)
    assert (days[0], days[-1], len(days)) == (date(2013, 1, 1), date(2013, 1, 13), 13)


def test_the_year_brings_all_weather_there_is() -> None:
    days = days_complete_at(Span(first_day=FIRST_DAY, days=DAYS_OF_DATA).ends_at)
    newest: datetime = pc.max(read_weather()["time_hour"]).as_py()
    assert newest.date() == days[-1]


def test_the_most_delayed_flight_of_a_day_has_left_before_its_weather_arrives() -> None:
    last_planned = datetime.combine(date(2013, 1, 1), time(23, 59), tzinfo=UTC)
    arrives_at = datetime.combine(date(2013, 1, 1), time(), tzinfo=UTC) + timedelta(days=2)
    assert last_planned + LONGEST_DELAY < arrives_at
