"""Writes the weather to the landing folder: one NDJSON file for each day, after the flights of that day.

Each demo that writes any adds a bad file: of a sensor that is out of order, and of an airport that does not exist.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from sluice.checkpoints.s3_checkpoint_files import s3_client
from sluice.demo.flights_data import DAYS_OF_DATA, FIRST_DAY, Span, read_weather
from sluice.errors import SettingsError
from sluice.settings import FilesConnection, Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONNECTION = "landing"
FOLDER = "weather"

IMPOSSIBLE_TEMPERATURE = 999.9
"""What the sensor reports that is out of order, in degrees."""

UNKNOWN_AIRPORT = "XXX"

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
