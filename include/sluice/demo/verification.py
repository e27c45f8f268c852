"""Verifies that the tables hold what was sent, with an engine that did not write them.

Each check is one function over a DuckDB database that holds the copies of the tables (`seen.<namespace>.<table>`) and
the expected rows (`sluice.demo.proof`). A check of a table compares whole rows, never only counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sluice.demo.lakehouse_copy import CheckResult, compare, compare_number
from sluice.demo.replay_plan import RecordKind
from sluice.ledger.batches import StreamTotals

if TYPE_CHECKING:
    import duckdb

    Database = duckdb.DuckDBPyConnection

TABLES = (
    "bronze.flights",
    "bronze.weather",
    "silver.flights",
    "quarantine.silver_flights",
    "quarantine.bronze_weather",
    "gold.delays_by_carrier_hour",
    "gold.delays_by_weather",
    "reference.airlines",
    "reference.planes",
)
"""The tables that the verification reads."""


def verify(database: Database, *, silver: StreamTotals) -> list[CheckResult]:
    """Run every check.

    Parameters
    ----------
    database: the copies of the tables and the expected rows.
    silver: the ledger's totals of `silver_flights`.
    """
    checks: list[Callable[[Database], CheckResult]] = [
        topic_holds_the_plans,
        bronze_holds_every_record_once,
        silver_holds_each_flight_once,
        silver_holds_the_flights,
        silver_names_the_records_it_came_from,
        quarantine_holds_the_malformed_records,
        gold_by_carrier_equals_the_csv,
        bronze_holds_the_weather,
        quarantine_holds_the_bad_weather,
        gold_by_weather_equals_the_csv,
        reference_holds_the_airlines,
        reference_holds_the_planes,
    ]
    results = [check(database) for check in checks]
    return [
        *results,
        ledger_counts_the_late_set(database, silver),
        ledger_counts_the_duplicates(database, silver),
        counts_add_up(database, silver),
    ]


def topic_holds_the_plans(database: Database) -> CheckResult:
    """The records in Kafka are those of the plans, byte for byte."""
    return compare(
        database,
        name="kafka",
        statement="the topic holds every planned record once, and nothing else",
        expected="select plan, sequence, key, value from planned",
        seen="select plan, sequence, key, value from sent",
    )


def bronze_holds_every_record_once(database: Database) -> CheckResult:
    """A gap or a repetition is named by topic, partition and offset."""
    return compare(
        database,
        name="bronze.flights",
        statement="every record of the topic is in bronze once, by topic, partition and offset, unchanged",
        expected='select topic, partition, "offset", key, value from sent',
        seen='select topic, partition, "offset", decode(key), decode(value) from seen.bronze.flights',
    )


def silver_holds_each_flight_once(database: Database) -> CheckResult:
    """The identity of a flight is (time_hour, carrier, flight)."""
    return compare(
        database,
        name="silver.flights identity",
        statement="no flight is in silver twice",
        expected="select distinct time_hour, carrier, flight from seen.silver.flights",
        seen="select time_hour, carrier, flight from seen.silver.flights",
    )


def silver_holds_the_flights(database: Database) -> CheckResult:
    """Every column except the position of the record: those of the CSV, those derived from them, those joined."""
    columns = (
        "time_hour, carrier, flight, airline, origin, dest, scheduled_departure, departure, cancelled, dep_delay, "
        "arr_delay, air_time, distance, tailnum, manufacturer, model, plane_year, seats"
    )
    return compare(
        database,
        name="silver.flights",
        statement="silver holds the flights of the CSV that were sent on time, with their airlines and planes",
        expected=f"from arrived select {columns}",
        seen=f"from seen.silver.flights select {columns}",
    )


def silver_names_the_records_it_came_from(database: Database) -> CheckResult:
    """When a flight was sent twice, silver may have kept either record."""
    return compare(
        database,
        name="silver.flights origin",
        statement="every flight in silver names the topic, partition and offset of a record of this flight",
        expected="""
            select topic, partition, "offset", time_hour, carrier, flight
            from seen.silver.flights semi join (
                from sent join planned using (plan, sequence) where kind in ('flight', 'duplicate', 'late')
            ) as records using (topic, partition, "offset", time_hour, carrier, flight)
        """,
        seen='select topic, partition, "offset", time_hour, carrier, flight from seen.silver.flights',
    )


def quarantine_holds_the_malformed_records(database: Database) -> CheckResult:
    """Every damaged copy as it was sent, with its position in the topic and a reason that fits the damage."""
    return compare(
        database,
        name="quarantine.silver_flights",
        statement="exactly the malformed records are in the quarantine, each with the matching reason",
        expected="""
            select topic, partition, "offset", sent.value, kind from sent join planned using (plan, sequence)
            where kind in ('truncated', 'missing_key', 'wrong_type')
        """,
        seen="""
            select
                "position" ->> '$.topic' as topic,
                ("position" ->> '$.partition')::int as partition,
                ("position" ->> '$.offset')::bigint as "offset",
                payload as value,
                case
                    when reason like 'not valid JSON%' then 'truncated'
                    when reason like 'key % is missing' then 'missing_key'
                    when reason like 'key % is %, % is wanted' then 'wrong_type'
                    else reason
                end as kind
            from seen.quarantine.silver_flights
        """,
    )


def gold_by_carrier_equals_the_csv(database: Database) -> CheckResult:
    """The aggregate by airline and hour, computed from the CSV."""
    return compare(
        database,
        name="gold.delays_by_carrier_hour",
        statement="the delays of every airline and hour of departure equal those computed from the CSV",
        expected="""
            select
                carrier,
                date_trunc('hour', departure) as window_start,
                count(*) as flights,
                count(*) filter (cancelled) as cancelled,
                count(*) filter (dep_delay >= 15) as delayed,
                coalesce(sum(dep_delay), 0)::bigint as total_dep_delay_minutes
            from arrived group by all
        """,
        seen="""
            select carrier, window_start, flights, cancelled, delayed, total_dep_delay_minutes
            from seen.gold.delays_by_carrier_hour
        """,
    )


def bronze_holds_the_weather(database: Database) -> CheckResult:
    """Every reading of the weather files, once, with all columns."""
    columns = (
        "origin, year, month, day, hour, temp, dewp, humid, wind_dir, wind_speed, wind_gust, precip, pressure, visib, "
        "time_hour"
    )
    return compare(
        database,
        name="bronze.weather",
        statement="every reading of the weather files is in bronze once",
        expected=f"from dropped_weather select {columns}",
        seen=f"from seen.bronze.weather select {columns}",
    )


def quarantine_holds_the_bad_weather(database: Database) -> CheckResult:
    """Every reading of the bad files that breaks a rule, with the name of the rule: those that a rule has held, and
    those that another has rejected at once."""
    return compare(
        database,
        name="quarantine.bronze_weather",
        statement="exactly the bad readings are in the quarantine, each with the rule that it breaks",
        expected="from bad_weather select origin, time_hour, temp, rule",
        seen="""
            select
                payload ->> '$.origin' as origin,
                (payload ->> '$.time_hour')::timestamptz as time_hour,
                (payload ->> '$.temp')::double as temp,
                replace(reason, 'the row breaks a rule: ', '') as rule
            from seen.quarantine.bronze_weather
        """,
    )


def gold_by_weather_equals_the_csv(database: Database) -> CheckResult:
    """The join with the weather and its aggregate, computed from the CSV. It reads silver as it is when it runs, so the
    hours of flights that a backfill has recovered are left out: it may have run before or after."""
    return compare(
        database,
        name="gold.delays_by_weather",
        statement="the delays of every airport and hour, beside its weather, equal those computed from the CSV",
        expected="""
            select
                origin, time_hour, temp, wind_speed, precip, visib,
                count(flight) as flights,
                count(*) filter (cancelled) as cancelled,
                count(*) filter (dep_delay >= 15) as delayed,
                coalesce(sum(dep_delay), 0)::bigint as total_dep_delay_minutes
            from (from dropped_weather anti join recovered using (origin, time_hour)) as weather
            left join arrived using (origin, time_hour)
            group by all
        """,
        seen="""
            select
                origin, time_hour, temp, wind_speed, precip, visib, flights, cancelled, delayed, total_dep_delay_minutes
            from seen.gold.delays_by_weather anti join recovered using (origin, time_hour)
        """,
    )


def reference_holds_the_airlines(database: Database) -> CheckResult:
    """The package's airlines."""
    return compare(
        database,
        name="reference.airlines",
        statement="the airlines are those of the CSV",
        expected="from csv_airlines select carrier, name",
        seen="from seen.reference.airlines select carrier, name",
    )


def reference_holds_the_planes(database: Database) -> CheckResult:
    """The package's planes."""
    columns = "tailnum, year, type, manufacturer, model, engines, seats, speed, engine"
    return compare(
        database,
        name="reference.planes",
        statement="the planes are those of the CSV",
        expected=f"from csv_planes select {columns}",
        seen=f"from seen.reference.planes select {columns}",
    )


def ledger_counts_the_late_set(database: Database, silver: StreamTotals) -> CheckResult:
    """Rows behind the watermark are dropped by Spark and counted in the ledger."""
    return compare_number(
        name="late set",
        statement="the ledger counts exactly the late flights as late",
        expected=_planned(database, RecordKind.LATE),
        seen=silver.late_rows,
    )


def ledger_counts_the_duplicates(database: Database, silver: StreamTotals) -> CheckResult:
    """Rows that the de-duplication dropped are counted in the ledger."""
    return compare_number(
        name="duplicates",
        statement="the ledger counts exactly the repeated records as duplicates",
        expected=_planned(database, RecordKind.DUPLICATE),
        seen=silver.duplicate_rows,
    )


def counts_add_up(database: Database, silver: StreamTotals) -> CheckResult:
    """The rows of the tables, compared with the dropped rows that the ledger counts."""
    return compare_number(
        name="balance",
        statement="bronze = silver + refused + late + duplicate",
        expected=_rows(database, "bronze.flights"),
        seen=_rows(database, "silver.flights")
        + _rows(database, "quarantine.silver_flights")
        + silver.late_rows
        - recovered_rows(database)
        + silver.duplicate_rows,
    )


def rows_by_table(database: Database) -> dict[str, int]:
    """How many rows each table holds."""
    return {table: _rows(database, table) for table in TABLES}


def recovered_rows(database: Database) -> int:
    """How many flights silver holds that were late, and that a backfill has brought in."""
    return _number(database, "from recovered select count(*)")


def _planned(database: Database, kind: RecordKind) -> int:
    return _number(database, "select count(*) from planned where kind = $1", kind.value)


def _rows(database: Database, table: str) -> int:
    return _number(database, f"from seen.{table} select count(*)")


def _number(database: Database, query: str, *values: str) -> int:
    row = database.execute(query, values).fetchone()
    assert row is not None  # noqa: S101  # count(*) always gives one row
    return int(row[0])
