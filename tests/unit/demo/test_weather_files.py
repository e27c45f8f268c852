"""The weather of a day arrives when no flight of its hours can still be on its way."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, cast

import pyarrow.compute as pc

from sluice.demo.flights_data import (
    DAYS_OF_DATA,
    FIRST_DAY,
    IMPOSSIBLE_TEMPERATURE,
    LONGEST_DELAY,
    UNKNOWN_AIRPORT,
    LandingFolder,
    Span,
    days_complete_at,
    drop_weather,
    read_weather,
)
from sluice.demo.proof import bad_weather_table


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


class Bucket:
    """Keeps what is written, as far as a landing folder asks for it."""

    def __init__(self) -> None:
        self.written: dict[str, list[dict[str, Any]]] = {}

    def get_paginator(self, _name: str) -> Bucket:
        return self

    def paginate(self, **_: str) -> list[dict[str, Any]]:
        return [{"Contents": [{"Key": key} for key in self.written]}]

    def put_object(self, *, Bucket: str, Key: str, Body: bytes) -> None:  # noqa: N803  # boto3's names
        assert Bucket == "landing"
        self.written[Key] = [json.loads(line) for line in Body.decode().splitlines()]


def test_a_bad_file_comes_with_the_first_new_day_and_is_no_day_of_weather() -> None:
    bucket = Bucket()
    folder = LandingFolder(client=cast("Any", bucket), bucket="landing", prefix="weather/")

    for days in (3, 5, 5):
        drop_weather(folder, ends_at=Span(first_day=FIRST_DAY, days=days).ends_at)

    assert folder.bad_days() == [date(2013, 1, 1), date(2013, 1, 3)]
    assert folder.days() == [date(2013, 1, day) for day in range(1, 5)]
    bad = bucket.written["weather/2013-01-01-sensor.json"]
    assert [(row["origin"], row["temp"]) for row in bad] == [
        ("EWR", IMPOSSIBLE_TEMPERATURE),
        ("JFK", IMPOSSIBLE_TEMPERATURE),
        ("LGA", IMPOSSIBLE_TEMPERATURE),
        (UNKNOWN_AIRPORT, bucket.written["weather/2013-01-01.json"][0]["temp"]),
    ]
    assert bad_weather_table(folder.bad_days())["rule"].to_pylist() == 2 * [
        *3 * ["temperature_is_possible"],
        "airport_is_known",
    ]
