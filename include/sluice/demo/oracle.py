"""What must be in the tables, computed by DuckDB from the package's CSV files and the plans, without any Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.demo.flights_data import read_airlines, read_flights, read_planes, read_weather

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date

    import duckdb
    import pyarrow as pa

    from sluice.demo.replay_plan import ReplayPlan


def load_oracle(
    database: duckdb.DuckDBPyConnection,
    *,
    sent: pa.Table,
    plans: Sequence[ReplayPlan],
    weather_days: Iterable[date],
) -> None:
    """Put what the checks compare with into the database.

    Tables: `sent` (the topic), `planned` (every record of every plan), `csv_flights`, `csv_airlines`, `csv_planes`,
    `csv_weather`, `weather_days`. Views: `arrived`, the rows that must be in silver; `dropped_weather`, the readings
    that must be in bronze.

    Parameters
    ----------
    sent: the content of the topic, as `FlightsTopic.read` gives it.
    plans: every plan that was replayed.
    weather_days: the days whose weather file was dropped.
    """
    tables = {
        "sent": sent,
        "planned": planned_table(plans),
        "csv_flights": read_flights(),
        "csv_airlines": read_airlines(),
        "csv_planes": read_planes(),
        "csv_weather": read_weather(),
        "weather_days": _days_table(weather_days),
    }
    for name, content in tables.items():
        database.register("loading", content)
        database.execute(f"create or replace table {name} as from loading")
        database.unregister("loading")
    database.execute(_ARRIVED)
    database.execute(_DROPPED_WEATHER)


def planned_table(plans: Sequence[ReplayPlan]) -> pa.Table:
    """Every record of the plans: plan, sequence, kind, key, value, time_hour, carrier, flight."""
    import pyarrow as pa

    records = [(plan.name, record) for plan in plans for record in plan.records]
    return pa.table(
        {
            "plan": pa.array((name for name, _ in records), pa.string()),
            "sequence": pa.array((record.sequence for _, record in records), pa.int64()),
            "kind": pa.array((record.kind.value for _, record in records), pa.string()),
            "key": pa.array((record.key for _, record in records), pa.string()),
            "value": pa.array((record.value for _, record in records), pa.string()),
            "time_hour": pa.array((record.flight.time_hour for _, record in records), pa.timestamp("us", tz="UTC")),
            "carrier": pa.array((record.flight.carrier for _, record in records), pa.string()),
            "flight": pa.array((record.flight.flight for _, record in records), pa.int64()),
        }
    )


def _days_table(days: Iterable[date]) -> pa.Table:
    import pyarrow as pa

    return pa.table({"day": pa.array(sorted(days), type=pa.date32())})


_ARRIVED = """
create or replace view arrived as
select
    csv_flights.*,
    csv_airlines.name as airline,
    time_hour + to_minutes(minute) as scheduled_departure,
    time_hour + to_minutes(minute) + to_minutes(coalesce(dep_delay, 0)) as departure,
    dep_time is null as cancelled,
    csv_planes.manufacturer,
    csv_planes.model,
    csv_planes.year as plane_year,
    csv_planes.seats
from csv_flights
semi join (from planned where kind = 'flight') as on_time using (time_hour, carrier, flight)
left join csv_airlines using (carrier)
left join csv_planes using (tailnum)
"""

_DROPPED_WEATHER = """
create or replace view dropped_weather as
from csv_weather where time_hour::date in (from weather_days)
"""
