"""The demo's transformations on hand-made rows: exact values, exact reasons. The same functions serve the streams.

In every run the demo stands for these tests: each row is compared with what another engine computes from the CSV, and
each rejected record with its reason.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice.settings import project_root

PIPELINES = project_root() / "include" / "pipelines" / "flights"
SOUND: Mapping[str, Any] = {
    "year": 2013,
    "month": 1,
    "day": 1,
    "dep_time": 517,
    "sched_dep_time": 515,
    "dep_delay": 2,
    "arr_time": 830,
    "sched_arr_time": 819,
    "arr_delay": 11,
    "carrier": "UA",
    "flight": 1545,
    "tailnum": "N14228",
    "origin": "EWR",
    "dest": "IAH",
    "air_time": 227,
    "distance": 1400,
    "hour": 5,
    "minute": 15,
    "time_hour": "2013-01-01T10:00:00Z",
}


@pytest.fixture(scope="module")
def transformations() -> ModuleType:
    """The module of the demo, loaded as any file is."""
    spec = importlib.util.spec_from_file_location("flights_transformations", PIPELINES / "transformations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def silver(
    spark: SparkSession, transformations: ModuleType, values: Sequence[bytes | None]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The flights and the refused rows that records become, in the order of their offsets."""
    schema = "value binary, topic string, partition int, offset long"
    records = spark.createDataFrame([(value, "flights", 0, place) for place, value in enumerate(values)], schema)
    airlines = spark.createDataFrame([("UA", "United Air Lines Inc.")], "carrier string, name string")
    planes = spark.createDataFrame(
        [("N14228", 1999, "BOEING", "737-824", 149)],
        "tailnum string, year int, manufacturer string, model string, seats int",
    )
    outputs: dict[str, DataFrame] = transformations.silver_flights(records, airlines, planes)
    flights = outputs["flights"].orderBy("offset").toArrow().to_pylist()
    refused = outputs["quarantine"].toArrow().to_pylist()
    return flights, sorted(refused, key=lambda row: int(json.loads(row["position"])["offset"]))


def value(**changes: Any) -> bytes:
    """The value of a sound record with some keys changed; `...` leaves a key out."""
    keys = {key: given for key, given in {**SOUND, **changes}.items() if given is not ...}
    return json.dumps(keys).encode()


@pytest.mark.full  # every run: the demo, compared with another engine
def test_a_record_is_read_as_a_flight(spark: SparkSession, transformations: ModuleType) -> None:
    flights, refused = silver(spark, transformations, [value()])

    assert refused == []
    (flight,) = flights
    assert flight == {
        "time_hour": datetime(2013, 1, 1, 10, tzinfo=UTC),
        "carrier": "UA",
        "flight": 1545,
        "airline": "United Air Lines Inc.",
        "origin": "EWR",
        "dest": "IAH",
        "scheduled_departure": datetime(2013, 1, 1, 10, 15, tzinfo=UTC),
        "departure": datetime(2013, 1, 1, 10, 17, tzinfo=UTC),
        "cancelled": False,
        "dep_delay": 2,
        "arr_delay": 11,
        "air_time": 227,
        "distance": 1400,
        "tailnum": "N14228",
        "manufacturer": "BOEING",
        "model": "737-824",
        "plane_year": 1999,
        "seats": 149,
        "topic": "flights",
        "partition": 0,
        "offset": 0,
    }


@pytest.mark.full  # every run: the demo, compared with another engine
def test_a_cancelled_flight_leaves_on_paper_when_it_was_planned(
    spark: SparkSession, transformations: ModuleType
) -> None:
    nothing = dict.fromkeys(("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "tailnum"))

    (flight,), refused = silver(spark, transformations, [value(**nothing)])

    assert refused == []
    assert flight["cancelled"] is True
    assert flight["departure"] == flight["scheduled_departure"]
    assert (flight["dep_delay"], flight["tailnum"], flight["seats"]) == (None, None, None)


@pytest.mark.full  # every run: the demo, compared with another engine
def test_keys_that_a_flight_may_lack_may_be_left_out(spark: SparkSession, transformations: ModuleType) -> None:
    flights, refused = silver(spark, transformations, [value(tailnum=..., air_time=..., gate="B22")])

    assert refused == []
    assert (flights[0]["tailnum"], flights[0]["air_time"]) == (None, None)


@pytest.mark.full  # every run: the demo, compared with another engine
def test_a_flight_is_kept_once(spark: SparkSession, transformations: ModuleType) -> None:
    flights, refused = silver(spark, transformations, [value(), value(), value(flight=7)])

    assert refused == []
    assert sorted(flight["flight"] for flight in flights) == [7, 1545]


REFUSED: tuple[tuple[bytes | None, str], ...] = (
    (None, "the record has no value"),
    (b"", "not valid JSON: cut off or garbled"),
    (value()[:100], "not valid JSON: cut off or garbled"),
    (b"\xff\xfe", "not valid JSON: cut off or garbled"),
    (b"[1, 2]", "not a JSON object but ARRAY<BIGINT>"),
    (b'"text"', "not a JSON object but STRING"),
    (value(carrier=...), "key carrier is missing"),
    (value(time_hour=None), "key time_hour is null"),
    (value(flight="seven"), "key flight is STRING, BIGINT is wanted"),
    (value(flight=1.5), "key flight is DECIMAL(2,1), BIGINT is wanted"),
    (value(dep_delay="a while"), "key dep_delay is STRING, BIGINT is wanted"),
    (value(carrier=7), "key carrier is BIGINT, STRING is wanted"),
    (value(tailnum=[1]), "key tailnum is ARRAY<BIGINT>, STRING is wanted"),
    (value(time_hour={"hour": "noon"}), "key time_hour is OBJECT<hour: STRING>, STRING is wanted"),
    (value(time_hour="noon"), "key time_hour is no time in ISO 8601"),
    (value(time_hour=5), "key time_hour is BIGINT, STRING is wanted"),
    (value(distance=3_000_000_000), "a number is larger than its column"),
    (
        value(carrier=..., minute="x"),
        "key minute is STRING, BIGINT is wanted; key carrier is missing",
    ),
)


@pytest.mark.full  # every run: the demo, whose malformed records are in quarantine with their reasons
def test_a_record_that_is_no_flight_is_refused_with_the_reason(
    spark: SparkSession, transformations: ModuleType
) -> None:
    flights, refused = silver(spark, transformations, [record for record, _ in REFUSED])

    assert flights == []
    assert [row["reason"] for row in refused] == [reason for _, reason in REFUSED]
    assert [json.loads(row["position"]) for row in refused] == [
        {"topic": "flights", "partition": 0, "offset": place} for place in range(len(REFUSED))
    ]
    payloads = [row["payload"] for row in refused]
    assert payloads[2] == value()[:100].decode()
    assert payloads[3] == "0xFFFE"
    assert payloads[0] is None


@pytest.mark.full  # every run: the demo, compared with another engine
def test_delays_are_counted_by_carrier_and_hour(spark: SparkSession, transformations: ModuleType) -> None:
    rows = [
        ("UA", "2013-01-01 10:00:00", False, 0),
        ("UA", "2013-01-01 10:59:59", False, 15),
        ("UA", "2013-01-01 10:30:00", True, None),
        ("UA", "2013-01-01 11:00:00", False, -5),
        ("AA", "2013-01-01 10:10:00", True, None),
    ]
    schema = "carrier string, departure string, cancelled boolean, dep_delay int"
    flights = spark.createDataFrame(rows, schema).selectExpr(
        "carrier", "CAST(departure AS timestamp) AS departure", "cancelled", "dep_delay"
    )

    counted = transformations.delays_by_carrier_hour(flights).orderBy("carrier", "window_start").toArrow()

    assert [tuple(row.values()) for row in counted.to_pylist()] == [
        ("AA", datetime(2013, 1, 1, 10, tzinfo=UTC), 1, 1, 0, 0),
        ("UA", datetime(2013, 1, 1, 10, tzinfo=UTC), 3, 1, 1, 15),
        ("UA", datetime(2013, 1, 1, 11, tzinfo=UTC), 1, 0, 0, -5),
    ]


@pytest.mark.full  # every run: the demo, compared with another engine
def test_weather_stands_beside_the_delays_of_its_hour(spark: SparkSession) -> None:
    spark.createDataFrame(
        [("EWR", 10, 39.0, 5.5, 0.0, 10.0), ("JFK", 10, 41.0, None, 0.1, 8.0)],
        "origin string, hour int, temp double, wind_speed double, precip double, visib double",
    ).selectExpr("*", "make_timestamp(2013, 1, 1, hour, 0, 0) AS time_hour").createOrReplaceTempView("weather")
    spark.createDataFrame(
        [("EWR", 10, False, 15), ("EWR", 10, True, None), ("EWR", 11, False, 90)],
        "origin string, hour int, cancelled boolean, dep_delay int",
    ).selectExpr("*", "make_timestamp(2013, 1, 1, hour, 0, 0) AS time_hour").createOrReplaceTempView("flights")

    text = (PIPELINES / "gold_delays_by_weather.sql").read_text()
    rows = spark.sql(text).orderBy("origin").toArrow().to_pylist()

    hour = datetime(2013, 1, 1, 10, tzinfo=UTC)
    assert rows == [
        {"origin": "EWR", "time_hour": hour, "temp": 39.0, "wind_speed": 5.5, "precip": 0.0, "visib": 10.0}
        | {"flights": 2, "cancelled": 1, "delayed": 1, "total_dep_delay_minutes": 15},
        {"origin": "JFK", "time_hour": hour, "temp": 41.0, "wind_speed": None, "precip": 0.1, "visib": 8.0}
        | {"flights": 0, "cancelled": 0, "delayed": 0, "total_dep_delay_minutes": 0},
    ]
