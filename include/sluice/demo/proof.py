"""The proof of the demo: the expected rows, the copies of the tables, and every check on them.

The expected rows (the oracle) are computed by DuckDB from the package's CSV files and the plans, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.backfill.intervals import Interval
from sluice.demo.flights_data import (
    UNKNOWN_AIRPORT,
    bad_readings,
    open_landing_folder,
    read_airlines,
    read_flights,
    read_planes,
    read_weather,
    readings_by_day,
)
from sluice.demo.flights_topic import FlightsTopic, make_plan, plans_in
from sluice.demo.lakehouse_copy import CheckResult, copy_lakehouse
from sluice.demo.replay_plan import ReplayPlan
from sluice.demo.report import SILVER, RowBalance, TableReport
from sluice.demo.verification import TABLES, recovered_rows, rows_by_table, verify
from sluice.ledger.backfill_attempts import BackfillState, recent_attempts
from sluice.ledger.batches import totals
from sluice.ledger.connection import Ledger
from sluice.ledger.maintenance_runs import newest_maintenance
from sluice.ledger.recorded_checks import newest_quality
from sluice.settings import Settings

if TYPE_CHECKING:
    import duckdb

_ALL_ATTEMPTS = 100_000
"""More than a demo ever makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The results of the verification. sent_records: how many records the topic holds."""

    checks: tuple[CheckResult, ...]
    sent_records: int
    balance: RowBalance
    tables: tuple[TableReport, ...]


def prove(*, settings: Settings, ledger: Ledger, topic: FlightsTopic) -> Proof:
    """Run every check on the current tables.

    The checks cover everything that was ever sent, not only the records of this demo.

    Parameters
    ----------
    settings: the addresses of the tables and of the landing folder.
    ledger: holds the counts of rows that `silver_flights` dropped.
    topic: holds all records that were sent.
    """
    sent, landing = topic.read(), open_landing_folder(settings)
    silver = totals(ledger, SILVER)
    database = copy_lakehouse(settings, tables=TABLES)
    try:
        load_oracle(
            database,
            sent=sent,
            plans=[make_plan(name) for name in plans_in(sent)],
            weather_days=landing.days(),
            bad_days=landing.bad_days(),
        )
        expect_recovered(database, _backfilled(ledger))
        checks = verify(database, silver=silver)
        rows, recovered = rows_by_table(database), recovered_rows(database)
    finally:
        database.close()
    return Proof(
        checks=tuple(checks),
        sent_records=sent.num_rows,
        balance=RowBalance(
            bronze=rows["bronze.flights"],
            silver=rows["silver.flights"],
            refused=rows["quarantine.silver_flights"],
            late=silver.late_rows - recovered,
            duplicate=silver.duplicate_rows,
        ),
        tables=tuple(
            TableReport(
                table=table,
                rows=count,
                maintenance=newest_maintenance(ledger, table),
                quality=newest_quality(ledger, table),
            )
            for table, count in rows.items()
        ),
    )


def load_oracle(
    database: duckdb.DuckDBPyConnection,
    *,
    sent: pa.Table,
    plans: Sequence[ReplayPlan],
    weather_days: Iterable[date],
    bad_days: Iterable[date] = (),
) -> None:
    """Load the expected rows, with which the checks compare the tables, into the database.

    Tables: `sent` (the topic), `planned` (every record of every plan), `csv_flights`, `csv_airlines`, `csv_planes`,
    `csv_weather`, `weather_days`, `bad_weather`, `recovered` (see `expect_recovered`). Views: `arrived`, the rows that
    must be in silver; `dropped_weather`, the readings that must be in bronze.

    Parameters
    ----------
    sent: the content of the topic, as `FlightsTopic.read` gives it.
    plans: every plan that was replayed.
    weather_days: the days whose weather file was written. bad_days: those with which a bad file came.
    """
    load_sent(database, sent)
    tables = {
        "planned": planned_table(plans),
        "csv_flights": read_flights(),
        "csv_airlines": read_airlines(),
        "csv_planes": read_planes(),
        "csv_weather": read_weather(),
        "weather_days": _days_table(weather_days),
        "bad_weather": bad_weather_table(bad_days),
    }
    for name, content in tables.items():
        _load(database, name, content)
    database.execute(_RECOVERED)
    database.execute(_ARRIVED)
    database.execute(_DROPPED_WEATHER)


def load_sent(database: duckdb.DuckDBPyConnection, sent: pa.Table) -> None:
    """Load the content of the topic, as `FlightsTopic.read` gives it, as the table `sent`."""
    _load(database, "sent", sent)


def _load(database: duckdb.DuckDBPyConnection, name: str, content: pa.Table) -> None:
    database.register("loading", content)
    database.execute(f"create or replace table {name} as from loading")
    database.unregister("loading")


def expect_recovered(database: duckdb.DuckDBPyConnection, backfilled: Iterable[Interval]) -> None:
    """Expect the late flights that silver holds in backfilled intervals: a backfill has them in hand when they had
    arrived by then.

    Parameters
    ----------
    database: the expected rows and the copy of silver.
    """
    for interval in backfilled:
        database.execute(_ADD_RECOVERED, [interval.start, interval.end])


def planned_table(plans: Sequence[ReplayPlan]) -> pa.Table:
    """Every record of the plans: plan, sequence, kind, key, value, time_hour, carrier, flight."""
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


def _backfilled(ledger: Ledger) -> list[Interval]:
    """The intervals of silver that a backfill has replaced."""
    return [
        Interval(start=attempt.key.interval_start, end=attempt.key.interval_end)
        for attempt in recent_attempts(ledger, SILVER, limit=_ALL_ATTEMPTS)
        if attempt.state is BackfillState.PUBLISHED
    ]


def bad_weather_table(days: Iterable[date]) -> pa.Table:
    """The readings of bad files that belong into the quarantine, each with the rule of `bronze.weather` that it breaks.

    Parameters
    ----------
    days: those with which a bad file came.
    """
    by_day = readings_by_day()
    rows = [row for day in sorted(days) for row in bad_readings(by_day[day])]
    is_known = [row["origin"] != UNKNOWN_AIRPORT for row in rows]
    return pa.table(
        {
            "origin": pa.array((row["origin"] for row in rows), pa.string()),
            "time_hour": pa.array((row["time_hour"] for row in rows), pa.timestamp("us", tz="UTC")),
            "temp": pa.array((row["temp"] for row in rows), pa.float64()),
            "rule": pa.array(
                ("temperature_is_possible" if one else "airport_is_known" for one in is_known), pa.string()
            ),
        }
    )


def _days_table(days: Iterable[date]) -> pa.Table:
    return pa.table({"day": pa.array(sorted(days), type=pa.date32())})


_RECOVERED = """
create or replace temp table recovered (origin varchar, time_hour timestamptz, carrier varchar, flight bigint)
"""

_ADD_RECOVERED = """
insert into recovered
select origin, time_hour, carrier, flight from seen.silver.flights
semi join (from planned where kind = 'late') as late using (time_hour, carrier, flight)
anti join recovered using (time_hour, carrier, flight)
where departure >= $1 and departure < $2
"""

_ARRIVED = """
create or replace temp view arrived as
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
semi join (
    select time_hour, carrier, flight from planned where kind = 'flight'
    union all select time_hour, carrier, flight from recovered
) as received using (time_hour, carrier, flight)
left join csv_airlines using (carrier)
left join csv_planes using (tailnum)
"""

_DROPPED_WEATHER = """
create or replace view dropped_weather as
from csv_weather where time_hour::date in (from weather_days)
"""
