"""The package's files, read as they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import duckdb

from sluice.demo.flights_data import (
    DAYS_OF_DATA,
    FIRST_DAY,
    LONGEST_DELAY,
    Span,
    flights_of,
    read_airlines,
    read_flights,
    read_planes,
    read_weather,
)


def test_the_package_holds_every_flight_airline_plane_and_hour_of_weather() -> None:
    assert read_flights().num_rows == 336_776
    assert read_airlines().num_rows == 16
    assert read_planes().num_rows == 3_322
    assert read_weather().num_rows == 26_115


def test_the_longest_delay_is_the_longest_in_the_data() -> None:
    delays = [delay for delay in read_flights()["dep_delay"].to_pylist() if delay is not None]
    assert max(delays) == LONGEST_DELAY.total_seconds() / 60
    assert min(delays) > -60  # `flights_of` looks one hour ahead for flights that left early


def test_the_days_of_the_demo_hold_every_flight() -> None:
    year = Span(first_day=FIRST_DAY, days=DAYS_OF_DATA)
    flights = duckdb.from_arrow(read_flights())
    departures = "time_hour + to_minutes(minute) + to_minutes(coalesce(dep_delay, 0))"
    earliest, latest = flights.aggregate(f"min({departures}), max({departures})").fetchall()[0]
    assert year.starts_at <= earliest
    assert latest < year.ends_at


def test_a_flight_belongs_to_one_span_only() -> None:
    whole = Span(first_day=FIRST_DAY, days=4)
    parts = [Span(first_day=FIRST_DAY, days=1), Span(first_day=FIRST_DAY + timedelta(days=1), days=3)]
    assert [flight for part in parts for flight in flights_of(part)] == flights_of(whole)


def test_flights_come_in_the_order_in_which_they_left() -> None:
    flights = flights_of(Span(first_day=FIRST_DAY, days=2))
    departures = [flight.departure for flight in flights]
    assert departures == sorted(departures)
    assert departures[0] == datetime(2013, 1, 1, 10, 17, tzinfo=UTC)
    assert flights[0].identity == "2013-01-01T10Z/UA/1545"


def test_a_cancelled_flight_leaves_when_it_should_have() -> None:
    cancelled = next(flight for flight in flights_of(Span(first_day=FIRST_DAY, days=1)) if flight.dep_time is None)
    assert cancelled.dep_delay is None
    assert cancelled.departure == cancelled.time_hour.replace(minute=cancelled.minute)
