"""What becomes of flights and weather on their way from bronze to gold.

Each function is one stream's transformation: it takes the stream's inputs by name and returns the rows of its outputs.
It reads no clock, no file and no table, so the same function serves a stream, a backfill and a test on three rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

ALLOWED_LATENESS = "6 hours"
"""How far behind the newest departure a flight may be. The sender promises two hours of disorder; three times that."""

DELAYED_FROM_MINUTES = 15
"""From how many minutes on a departure counts as delayed, as the US Department of Transportation counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key that the JSON of a flight may have: its type, and whether a flight is none without it."""

    name: str
    type: Literal["integer", "text", "time"]
    required: bool = True

    @property
    def json_type(self) -> str:
        """The types of a valid value, as Spark's `schema_of_variant` names them."""
        return "BIGINT" if self.type == "integer" else "STRING"


_KEYS = (
    Key(name="time_hour", type="time"),
    Key(name="minute", type="integer"),
    Key(name="carrier", type="text"),
    Key(name="flight", type="integer"),
    Key(name="tailnum", type="text", required=False),
    Key(name="origin", type="text"),
    Key(name="dest", type="text"),
    Key(name="dep_time", type="integer", required=False),
    Key(name="dep_delay", type="integer", required=False),
    Key(name="arr_delay", type="integer", required=False),
    Key(name="air_time", type="integer", required=False),
    Key(name="distance", type="integer"),
)


def silver_flights(records: DataFrame, airlines: DataFrame, planes: DataFrame) -> dict[str, DataFrame]:
    """Read raw records as flights, each once, with the names of airline and plane; refuse what is no flight."""
    read = _read_flights(records)
    refused = read.where("reason IS NOT NULL").select(
        "reason",
        fn.to_json(fn.struct("topic", "partition", "offset")).alias("position"),
        # What is not UTF-8 is shown as hexadecimal digits, so that no byte of the evidence is lost.
        fn.coalesce(fn.try_validate_utf8(fn.col("text")), fn.concat(fn.lit("0x"), fn.hex("text"))).alias("payload"),
    )
    valid = read.where("reason IS NULL").select(*_flight_columns(), "topic", "partition", "offset")
    named = _once(valid).join(
        fn.broadcast(airlines.select("carrier", fn.col("name").alias("airline"))), "carrier", "left"
    )
    flights = named.join(
        fn.broadcast(planes.select("tailnum", "manufacturer", "model", fn.col("year").alias("plane_year"), "seats")),
        "tailnum",
        "left",
    )
    return {"flights": flights, "quarantine": refused}


def delays_by_carrier_hour(flights: DataFrame) -> DataFrame:
    """Count the flights of each airline in each hour of departure; the sums are whole minutes, hence exact."""
    hour = fn.window("departure", "1 hour")
    return (
        flights.groupBy("carrier", hour)
        .agg(
            fn.count("*").alias("flights"),
            fn.count_if(fn.col("cancelled")).alias("cancelled"),
            fn.count_if(fn.col("dep_delay") >= DELAYED_FROM_MINUTES).alias("delayed"),
            fn.coalesce(fn.sum("dep_delay"), fn.lit(0)).cast("long").alias("total_dep_delay_minutes"),
        )
        .select(
            "carrier",
            fn.col("window.start").alias("window_start"),
            "flights",
            "cancelled",
            "delayed",
            "total_dep_delay_minutes",
        )
    )


def bronze_weather(readings: DataFrame) -> DataFrame:
    """Keep the readings as they are, and the file that each came in."""
    return readings.select("*", fn.col("_metadata.file_path").alias("source_file"))


def _once(flights: DataFrame) -> DataFrame:
    """Each flight once. A stream forgets a flight when its repetition would come late; a finished table need not."""
    identity = ["time_hour", "carrier", "flight"]
    if not flights.isStreaming:
        return flights.dropDuplicates(identity)
    return flights.withWatermark("departure", ALLOWED_LATENESS).dropDuplicatesWithinWatermark(identity)


def _read_flights(records: DataFrame) -> DataFrame:
    """The records with their JSON read into `flight`, and in `reason` what is wrong with those that are no flight."""
    text = fn.col("value").cast("string")
    # Text stays a variant here, because Spark would silently take a number or an object for text.
    types = ", ".join(f"{key.name} {'INT' if key.type == 'integer' else 'VARIANT'}" for key in _KEYS)
    flight = fn.from_json(text, f"{types}, damaged STRING", {"columnNameOfCorruptRecord": "damaged"})
    return records.select("topic", "partition", "offset", text.alias("text"), flight.alias("flight")).withColumn(
        "reason", fn.when(_is_valid(), fn.lit(None)).otherwise(_reason(fn.col("text")))
    )


def _is_valid() -> Column:
    """Whether a record is a flight: all of its values have their types, and what is required is there."""
    valid = fn.col("flight.damaged").isNull()
    for key in _KEYS:
        value = fn.col(f"flight.{key.name}")
        if key.required:
            valid = valid & value.isNotNull()
        if key.type != "integer":
            allowed = (key.json_type,) if key.required else (key.json_type, "VOID")
            valid = valid & fn.coalesce(fn.schema_of_variant(value), fn.lit("VOID")).isin(*allowed)
        if key.type == "time":
            valid = valid & _time(value).isNotNull()
    return valid


def _reason(text: Column) -> Column:
    """What is wrong with a record. It is looked for only in the few that are refused, so it may take its time."""
    document = fn.try_parse_json(text)
    problems = fn.array_compact(fn.array(*(_problem(document, key) for key in _KEYS)))
    return (
        fn.when(text.isNull(), "the record has no value")
        .when(document.isNull(), "not valid JSON: cut off or garbled")
        .when(
            ~fn.schema_of_variant(document).startswith("OBJECT"),
            fn.concat(fn.lit("not a JSON object but "), fn.schema_of_variant(document)),
        )
        .when(fn.size(problems) > 0, fn.array_join(problems, "; "))
        .otherwise("a number is larger than its column")
    )


def _problem(document: Column, key: Key) -> Column:
    """What is wrong with one key of a document; null when nothing is."""
    value = fn.try_variant_get(document, f"$.{key.name}", "variant")
    found = fn.schema_of_variant(value)
    problem = fn.when(
        (found != key.json_type) & (found != "VOID"),
        fn.concat(fn.lit(f"key {key.name} is "), found, fn.lit(f", {key.json_type} is wanted")),
    )
    if key.type == "time":
        problem = problem.when(_time(value).isNull() & (found == "STRING"), f"key {key.name} is no time in ISO 8601")
    if key.required:
        problem = problem.when(found.isNull(), f"key {key.name} is missing")
        problem = problem.when(found == "VOID", f"key {key.name} is null")
    return problem


def _time(value: Column) -> Column:
    return fn.try_to_timestamp(fn.try_variant_get(value, "$", "string"), fn.lit("yyyy-MM-dd'T'HH:mm:ssX"))


def _text(name: str) -> Column:
    return fn.try_variant_get(fn.col(f"flight.{name}"), "$", "string").alias(name)


def _flight_columns() -> tuple[Column, ...]:
    time_hour = _time(fn.col("flight.time_hour"))
    minute, delay = fn.col("flight.minute"), fn.coalesce(fn.col("flight.dep_delay"), fn.lit(0))
    return (
        time_hour.alias("time_hour"),
        _text("carrier"),
        fn.col("flight.flight"),
        _text("tailnum"),
        _text("origin"),
        _text("dest"),
        fn.timestamp_add("MINUTE", minute, time_hour).alias("scheduled_departure"),
        fn.timestamp_add("MINUTE", minute + delay, time_hour).alias("departure"),
        fn.col("flight.dep_time").isNull().alias("cancelled"),
        fn.col("flight.dep_delay"),
        fn.col("flight.arr_delay"),
        fn.col("flight.air_time"),
        fn.col("flight.distance"),
    )
