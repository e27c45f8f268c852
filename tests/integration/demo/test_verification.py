"""Each check is true of the right tables, and names what is wrong with tables into which one mistake was planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from sluice.backfill.intervals import Interval
from sluice.demo import verification
from sluice.demo.backfill_step import check_repair, check_repetition, restrict, restrict_expected
from sluice.demo.demonstration import check_arrived
from sluice.demo.flights_data import Span, flights_of
from sluice.demo.lakehouse_copy import CheckResult, create_schema_of, open_database, require_truth
from sluice.demo.proof import expect_recovered, load_oracle
from sluice.demo.replay_plan import RecordKind, ReplayPlan, plan_replay
from sluice.errors import VerificationError
from sluice.ledger.batches import StreamTotals

_PARTITIONS = 3

_TABLES = {
    "bronze.flights": 'from sent select encode(key) as key, encode(value) as value, topic, partition, "offset"',
    "bronze.weather": "from dropped_weather",
    "quarantine.bronze_weather": """
        from (from bad_weather select *, strftime(time_hour, '%Y-%m-%dT%H:%M:%S.%fZ') as sent_hour)
        select
            to_json({'origin': origin, 'time_hour': sent_hour, 'temp': temp})::varchar as payload,
            'the row breaks a rule: ' || rule as reason
    """,
    "silver.flights": """
        from arrived join (
            from sent join planned using (plan, sequence) select * exclude (key, value) where kind = 'flight'
        ) using (time_hour, carrier, flight)
    """,
    "quarantine.silver_flights": """
        from sent join planned using (plan, sequence)
        select
            to_json({'topic': topic, 'partition': partition, 'offset': "offset"})::varchar as "position",
            sent.value as payload,
            case kind
                when 'truncated' then 'not valid JSON: cut off or garbled'
                when 'missing_key' then 'key carrier is missing'
                else 'key flight is STRING, BIGINT is wanted'
            end as reason
        where kind in ('truncated', 'missing_key', 'wrong_type')
    """,
    "gold.delays_by_carrier_hour": """
        from arrived
        select
            carrier, time_bucket(interval 1 hour, departure) as window_start, count(*) as flights,
            sum(cancelled::int) as cancelled, sum(coalesce(dep_delay >= 15, false)::int) as delayed,
            coalesce(sum(dep_delay), 0)::bigint as total_dep_delay_minutes
        group by all
    """,
    "gold.delays_by_weather": """
        from dropped_weather
        left join (
            from arrived
            select
                origin, time_hour, count(*) as flights, sum(cancelled::int) as cancelled,
                sum(coalesce(dep_delay >= 15, false)::int) as delayed,
                coalesce(sum(dep_delay), 0)::bigint as total_dep_delay_minutes
            group by all
        ) using (origin, time_hour)
        select
            origin, time_hour, temp, wind_speed, precip, visib, coalesce(flights, 0) as flights,
            coalesce(cancelled, 0) as cancelled, coalesce(delayed, 0) as delayed,
            coalesce(total_dep_delay_minutes, 0) as total_dep_delay_minutes
    """,
    "reference.airlines": "from csv_airlines",
    "reference.planes": "from csv_planes",
}


@pytest.fixture(scope="module")
def plan() -> ReplayPlan:
    span = Span(first_day=date(2013, 1, 1), days=2)
    return plan_replay(flights_of(span), span=span, seed=2013)


@pytest.fixture(scope="module")
def right_tables(plan: ReplayPlan) -> duckdb.DuckDBPyConnection:
    database = open_database()
    load_oracle(
        database, sent=_topic_of(plan), plans=[plan], weather_days=[date(2013, 1, 1)], bad_days=[date(2013, 1, 1)]
    )
    for table, content in _TABLES.items():
        create_schema_of(database, table)
        database.execute(f"create table seen.{table} as {content}")
    return database


@pytest.fixture
def database(right_tables: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
    """The right tables, in a transaction that is rolled back: a planted mistake stays in its test."""
    right_tables.execute("begin")
    yield right_tables
    right_tables.execute("rollback")


@pytest.fixture(scope="module")
def silver(plan: ReplayPlan) -> StreamTotals:
    return StreamTotals(
        stream="silver_flights",
        batches=1,
        input_rows=len(plan.records),
        published_rows={"flights": plan.counts[RecordKind.FLIGHT]},
        refused_rows=sum(1 for record in plan.records if record.kind.value.startswith(("trunc", "miss", "wrong"))),
        late_rows=plan.counts[RecordKind.LATE],
        duplicate_rows=plan.counts[RecordKind.DUPLICATE],
    )


def _topic_of(plan: ReplayPlan) -> pa.Table:
    """What the topic holds when the plan was sent: partition by turns."""
    rows = [
        {
            "topic": "flights",
            "partition": record.sequence % _PARTITIONS,
            "offset": record.sequence // _PARTITIONS,
            "key": record.key,
            "value": record.value,
            "plan": plan.name,
            "sequence": record.sequence,
        }
        for record in plan.records
    ]
    return pa.Table.from_pylist(rows)


def test_right_tables_pass_every_check(database: duckdb.DuckDBPyConnection, silver: StreamTotals) -> None:
    results = verification.verify(database, silver=silver)
    assert len(results) == 15
    require_truth(results)
    assert all(result.expected_rows > 0 for result in results), results


MISTAKES = [
    (verification.topic_holds_the_plans, "delete from sent where sequence = 17", 1, 0),
    (verification.topic_holds_the_plans, "insert into sent from sent where sequence = 17", 0, 1),
    (verification.topic_holds_the_plans, "update sent set plan = null where sequence = 17", 1, 1),
    (verification.bronze_holds_every_record_once, 'delete from seen.bronze.flights where "offset" = 5', 3, 0),
    (
        verification.bronze_holds_every_record_once,
        'insert into seen.bronze.flights from seen.bronze.flights where "offset" = 5 and partition = 1',
        0,
        1,
    ),
    (
        verification.bronze_holds_every_record_once,
        "update seen.bronze.flights set value = encode('{}') where \"offset\" = 5 and partition = 1",
        1,
        1,
    ),
    (
        verification.silver_holds_each_flight_once,
        "insert into seen.silver.flights from seen.silver.flights where sequence = 17",
        0,
        1,
    ),
    (verification.silver_holds_the_flights, "delete from seen.silver.flights where sequence = 17", 1, 0),
    (
        verification.silver_holds_the_flights,
        "update seen.silver.flights set flight = 9999 where sequence = 17",
        1,
        1,
    ),
    *(
        (
            verification.silver_holds_the_flights,
            f"update seen.silver.flights set {column} = null where sequence = 0",  # noqa: S608  # a test's own words
            1,
            1,
        )
        for column in ("airline", "departure", "dep_delay", "manufacturer", "seats", "cancelled", "tailnum")
    ),
    (
        verification.silver_names_the_records_it_came_from,
        'update seen.silver.flights set "offset" = 100000 where sequence = 17',
        0,
        1,
    ),
    (
        verification.quarantine_holds_the_malformed_records,
        "delete from seen.quarantine.silver_flights where payload = (select max(payload) from "
        "seen.quarantine.silver_flights)",
        1,
        0,
    ),
    (
        verification.quarantine_holds_the_malformed_records,
        "update seen.quarantine.silver_flights set reason = null where payload = (select max(payload) from "
        "seen.quarantine.silver_flights)",
        1,
        1,
    ),
    (
        verification.gold_by_carrier_equals_the_csv,
        "update seen.gold.delays_by_carrier_hour set delayed = delayed + 1 where carrier = 'UA' and "
        "window_start = '2013-01-01 12:00:00Z'",
        1,
        1,
    ),
    (
        verification.gold_by_carrier_equals_the_csv,
        "delete from seen.gold.delays_by_carrier_hour where carrier = 'AA' and window_start = '2013-01-01 12:00:00Z'",
        1,
        0,
    ),
    (
        verification.gold_by_weather_equals_the_csv,
        "update seen.gold.delays_by_weather set flights = flights - 1 where origin = 'EWR' and "
        "time_hour = '2013-01-01 12:00:00Z'",
        1,
        1,
    ),
    (
        verification.bronze_holds_the_weather,
        "insert into seen.bronze.weather from seen.bronze.weather where origin = 'LGA' and "
        "time_hour = '2013-01-01 12:00:00Z'",
        0,
        1,
    ),
    (verification.bronze_holds_the_weather, "update seen.bronze.weather set temp = temp + 1e-9 where hour = 9", 3, 3),
    (
        verification.bronze_holds_the_weather,
        "insert into seen.bronze.weather by name from bad_weather select origin, time_hour, temp where origin = 'LGA'",
        0,
        1,
    ),
    (
        verification.quarantine_holds_the_bad_weather,
        "update seen.quarantine.bronze_weather set reason = 'airport_is_known' where payload like '%LGA%'",
        1,
        1,
    ),
    (
        verification.quarantine_holds_the_bad_weather,
        "delete from seen.quarantine.bronze_weather where reason like '%airport_is_known'",
        1,
        0,
    ),
    (verification.reference_holds_the_airlines, "delete from seen.reference.airlines where carrier = 'AA'", 1, 0),
    (
        verification.reference_holds_the_planes,
        "update seen.reference.planes set seats = 0 where tailnum = 'N10156'",
        1,
        1,
    ),
]


@pytest.mark.parametrize(("check", "mistake", "missing", "surplus"), MISTAKES)
def test_a_planted_mistake_is_found(
    database: duckdb.DuckDBPyConnection,
    check: Callable[[duckdb.DuckDBPyConnection], CheckResult],
    mistake: str,
    missing: int,
    surplus: int,
) -> None:
    database.execute(mistake)
    result = check(database)
    assert (result.missing_rows, result.surplus_rows) == (missing, surplus), result.explanation
    assert len(result.samples) == min(missing, 3) + min(surplus, 3)


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (verification.ledger_counts_the_late_set, {"late_rows": 0}),
        (verification.ledger_counts_the_duplicates, {"duplicate_rows": 1_000}),
        (verification.counts_add_up, {"duplicate_rows": 0}),
    ],
)
def test_a_wrong_count_in_the_ledger_is_found(
    database: duckdb.DuckDBPyConnection,
    silver: StreamTotals,
    check: Callable[[duckdb.DuckDBPyConnection, StreamTotals], CheckResult],
    wrong: dict[str, Any],
) -> None:
    assert check(database, silver).is_true
    assert not check(database, replace(silver, **wrong)).is_true


def test_a_flight_of_the_late_set_in_silver_is_found(database: duckdb.DuckDBPyConnection, plan: ReplayPlan) -> None:
    late = plan.late_set[0].flight
    database.execute(
        "insert into seen.silver.flights from seen.silver.flights "
        "select * replace ($1 as time_hour, $2 as carrier, $3 as flight) where sequence = 17",
        [late.time_hour, late.carrier, late.flight],
    )
    result = verification.silver_holds_the_flights(database)
    assert (result.missing_rows, result.surplus_rows) == (0, 1)
    assert f"carrier={late.carrier}, flight={late.flight}" in result.samples[0]


def test_late_flights_that_a_backfill_brought_in_are_expected(
    database: duckdb.DuckDBPyConnection, plan: ReplayPlan, silver: StreamTotals
) -> None:
    late = plan.late_set[0].flight
    database.execute(
        "insert into recovered values ($1, $2, $3, $4)", [late.origin, late.time_hour, late.carrier, late.flight]
    )
    for table in ("silver.flights", "gold.delays_by_carrier_hour"):
        content = _TABLES[table].replace("= 'flight'", "in ('flight', 'late')")
        database.execute(f"create or replace table seen.{table} as {content}")
    database.execute("delete from recovered")
    assert not verification.silver_holds_the_flights(database).is_true

    day = datetime.combine(late.departure.date(), time(), UTC)
    expect_recovered(database, [Interval(start=day + timedelta(days=1), end=day + timedelta(days=2))])
    assert verification.recovered_rows(database) == 0, "late flights outside of backfilled intervals are still mistakes"
    expect_recovered(database, [Interval(start=day, end=day + timedelta(days=1))] * 2)

    assert verification.recovered_rows(database) == 1
    assert [check.name for check in verification.verify(database, silver=silver) if not check.is_true] == []


FIRST_OF_JANUARY = Interval(start=datetime(2013, 1, 1, tzinfo=UTC), end=datetime(2013, 1, 2, tzinfo=UTC))

LAST_FLIGHT_IS_LOST = """
    delete from seen.silver.flights
    where departure = (select max(departure) from seen.silver.flights where departure < '2013-01-02 00:00:00Z')
"""

DAMAGED_DAYS = [
    ("delete from seen.silver.flights where departure < '2013-01-02 00:00:00Z'", [True, False, False, True]),
    (LAST_FLIGHT_IS_LOST, [True, False, False, True]),
    ("insert into seen.silver.flights from seen.silver.flights", [False, True, False, True]),
    ("insert into seen.gold.delays_by_carrier_hour from seen.gold.delays_by_carrier_hour", [False, True, True, False]),
    ("update seen.gold.delays_by_carrier_hour set flights = flights + 1", [True, True, True, False]),
    ("delete from seen.silver.flights where departure >= '2013-01-02 00:00:00Z'", [False, False, True, True]),
]


@pytest.mark.parametrize(("mistake", "seen"), DAMAGED_DAYS)
def test_damage_that_a_backfill_left_in_its_days_is_found_and_nothing_else(
    database: duckdb.DuckDBPyConnection, mistake: str, seen: list[bool]
) -> None:
    database.execute(mistake)
    restrict(database, FIRST_OF_JANUARY)
    restrict_expected(database, FIRST_OF_JANUARY)
    silver, gold = check_repair(database, FIRST_OF_JANUARY)
    found = [any(check.missing_rows for check in (silver, gold)), any(check.surplus_rows for check in (silver, gold))]
    assert [*found, silver.is_true, gold.is_true] == seen
    assert silver.expected_rows > 600
    assert gold.expected_rows > 100


def test_a_row_that_a_repeated_backfill_has_changed_is_found(database: duckdb.DuckDBPyConnection) -> None:
    restrict(database, FIRST_OF_JANUARY)
    restrict_expected(database, FIRST_OF_JANUARY)
    unchanged = check_repetition(database, database, FIRST_OF_JANUARY)
    assert [check.is_true for check in unchanged] == [True, True]
    assert [check.expected_rows for check in unchanged] == [
        check.expected_rows for check in check_repair(database, FIRST_OF_JANUARY)
    ]

    with open_database() as repeated:
        for table in ("silver.flights", "gold.delays_by_carrier_hour"):
            create_schema_of(repeated, table)
            repeated.register("content", database.execute(f"from seen.{table}").to_arrow_table())
            repeated.execute(f"create table seen.{table} as from content")
        repeated.execute("""update seen.silver.flights set "offset" = -1 where "offset" = 17""")
        silver, gold = check_repetition(database, repeated, FIRST_OF_JANUARY)
    assert (silver.missing_rows > 0, silver.surplus_rows > 0, gold.is_true) == (True, True, True)


def test_the_error_names_the_check_what_was_expected_what_was_got_and_examples(
    database: duckdb.DuckDBPyConnection,
) -> None:
    database.execute('delete from seen.bronze.flights where "offset" = 5 and partition = 2')
    wrong = verification.bronze_holds_every_record_once(database)
    right = verification.reference_holds_the_airlines(database)
    with pytest.raises(VerificationError) as caught:
        require_truth([right, wrong])
    text = str(caught.value)
    assert "1 of 2 checks of the tables failed." in text
    assert "bronze.flights: it is not true that every record of the topic is in bronze once" in text
    assert f"Expected {wrong.expected_rows:,} rows, got {wrong.expected_rows - 1:,}: 1 are missing" in text
    assert "missing: topic=flights, partition=2, offset=5, key=" in text
    assert "reference.airlines" not in text


def test_bronze_is_compared_with_the_topic_as_far_as_it_has_come(database: duckdb.DuckDBPyConnection) -> None:
    assert check_arrived(database).is_true
    database.execute('delete from seen.bronze.flights where "offset" > 40 or partition = 1')
    assert check_arrived(database).is_true
    database.execute('delete from seen.bronze.flights where "offset" = 7 and partition = 2')
    assert check_arrived(database).missing_rows == 1
