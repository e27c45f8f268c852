"""The stream that the README adds does what the README says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tests.fixtures.workshop import Workshop

_DEPARTURE = datetime(2013, 1, 1, 12, tzinfo=UTC)


def _flight(number: int, *, delay_minutes: int | None) -> dict[str, object]:
    return {
        "time_hour": _DEPARTURE,
        "carrier": "XX",
        "flight": number,
        "origin": "JFK",
        "dest": "LAX",
        "scheduled_departure": _DEPARTURE,
        "departure": _DEPARTURE,
        "cancelled": delay_minutes is None,
        "dep_delay": delay_minutes,
        "distance": 2475,
        "topic": "flights",
        "partition": 0,
        "offset": number,
    }


def test_the_readmes_stream_picks_long_delays(workshop: Workshop, pipelines_with_readme_stream: Path) -> None:
    settings = workshop.settings.model_copy(update={"pipelines": pipelines_with_readme_stream})
    readers = replace(workshop, settings=settings)
    readers.create_tables()
    flights = [_flight(1, delay_minutes=179), _flight(2, delay_minutes=180), _flight(3, delay_minutes=None)]
    schema = workshop.spark.table("lakehouse.silver.flights").schema
    rows = [tuple(flight.get(column) for column in schema.names) for flight in flights]
    workshop.spark.createDataFrame(rows, schema).writeTo("lakehouse.silver.flights").append()

    readers.run("gold_long_delays")

    published = [row for row in readers.rows("gold.long_delays") if row["carrier"] == "XX"]
    assert [(row["flight"], row["dep_delay"]) for row in published] == [(2, 180)]
