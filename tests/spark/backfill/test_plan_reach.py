"""How far a result reaches, from the plans that Spark makes of it. Nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice.backfill.intervals import parse_interval
from sluice.backfill.reach import JOINS_SETTLE, PlanReach
from sluice_spark.backfill.plan_reach import mark_input, reach_of_result

INTERVAL = parse_interval("2013-01-05", "2013-01-06")
HOUR = timedelta(hours=1)

Made = Callable[[DataFrame, DataFrame], DataFrame]


def at(day: int, hour: int = 0) -> datetime:
    return datetime(2013, 1, day, hour, tzinfo=UTC)


@pytest.fixture(scope="module")
def inputs(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Two streams with a watermark each: `records` with `id` and `at`, `clicks` with `click` and `clicked`."""

    def stream(name: str, number: str, time: str) -> DataFrame:
        read = (
            spark.readStream.format("rate")
            .load()
            .select(fn.col("value").alias(number), fn.col("timestamp").alias(time))
        )
        return mark_input(read.withWatermark(time, "1 hour"), name)

    return stream("records", "id", "at"), stream("clicks", "click", "clicked")


def reach_of(inputs: tuple[DataFrame, DataFrame], made: Made) -> PlanReach:
    return reach_of_result(made(*inputs), column="at", times={"records": "at", "clicks": "clicked"})


def counted(window: str, column: str = "window.start") -> Made:
    """The rows of each window."""
    return lambda records, _: records.groupBy(fn.expr(f"{window} AS window")).count().select(fn.expr(f"{column} AS at"))


def joined(condition: str, how: str = "leftOuter", column: str = "at") -> Made:
    return lambda records, clicks: records.join(clicks, fn.expr(f"id = click AND {condition}"), how).select(
        fn.expr(f"{column} AS at"), "id"
    )


WITHIN = "clicked >= at - INTERVAL 2 HOURS AND clicked <= at + INTERVAL 36 HOURS"
EACH_HOUR = ("window(at, '1 hour')", "window(clicked, '1 hour')")


def of_windows(how: str) -> Made:
    """Rows of the same hour."""

    def made(records: DataFrame, clicks: DataFrame) -> DataFrame:
        left = records.select("id", fn.expr(f"{EACH_HOUR[0]} AS here"), "at")
        right = clicks.select("click", fn.expr(f"{EACH_HOUR[1]} AS there"))
        return left.join(right, fn.expr("id = click AND here = there"), how).select("here.start").toDF("at")

    return made


def counted_joins(records: DataFrame, clicks: DataFrame) -> DataFrame:
    """The joined rows of each day."""
    both = records.join(clicks, fn.expr(f"id = click AND {WITHIN}"))
    return both.groupBy(fn.window("at", "1 day").alias("day")).count().select(fn.col("day.start").alias("at"))


DERIVED: Mapping[str, tuple[Made, dict[str, tuple[datetime, datetime]]]] = {
    "same": (lambda records, _: records.where("id > 1"), {"records": (at(5), at(6))}),
    "renamed and cast": (
        lambda records, _: records.select(fn.expr("CAST(at AS TIMESTAMP_NTZ) AS moment")).toDF("at"),
        {"records": (at(5), at(6))},
    ),
    "shifted": (
        lambda records, _: records.select(fn.expr("at + INTERVAL 3 HOURS AS at")),
        {"records": (at(4, 21), at(5, 21))},
    ),
    "days later": (
        lambda records, _: records.select(fn.expr("date_add(to_date(at), 2) AS at")),
        {"records": (at(3), at(4))},
    ),
    "the hour": (
        lambda records, _: records.select(fn.date_trunc("hour", "at").alias("at")),
        {"records": (at(5), at(6))},
    ),
    "one of two": (
        lambda records, _: records.select(fn.expr("coalesce(at - INTERVAL 1 HOUR, at) AS at")),
        {"records": (at(5), at(6, 1))},
    ),
    "the union of two": (
        lambda records, clicks: records.select("id", "at").union(clicks.select("click", "clicked")),
        {"records": (at(5), at(6)), "clicks": (at(5), at(6))},
    ),
    "the start of a day": (counted("window(at, '1 day')"), {"records": (at(5), at(6))}),
    "the end of a day": (counted("window(at, '1 day')", "window.end"), {"records": (at(4), at(5))}),
    "the start of two days": (counted("window(at, '2 days')"), {"records": (at(5), at(7))}),
    "the start of a sliding window": (counted("window(at, '3 hours', '1 hour')"), {"records": (at(5), at(6, 2))}),
    "an offset": (counted("window(at, '1 day', '1 day', '6 hours')"), {"records": (at(5, 6), at(6, 6))}),
    "an outer join": (joined(WITHIN), {"records": (at(5), at(6)), "clicks": (at(4, 22), at(7, 12))}),
    "the other side of a join": (
        joined(WITHIN, "inner", "clicked"),
        {"records": (at(3, 12), at(6, 2)), "clicks": (at(5), at(6))},
    ),
    "the same time": (joined("clicked = at"), {"records": (at(5), at(6)), "clicks": (at(5), at(6))}),
    "the same window": (of_windows("leftOuter"), {"records": (at(5), at(6)), "clicks": (at(5), at(6))}),
    "a window of joined rows": (counted_joins, {"records": (at(5), at(6)), "clicks": (at(4, 22), at(7, 12))}),
}


@pytest.mark.parametrize("name", DERIVED)
def test_the_reach_follows_from_the_plan(name: str, inputs: tuple[DataFrame, DataFrame]) -> None:
    made, expected = DERIVED[name]

    found = reach_of(inputs, made)

    assert found.unknown == ""
    bounds = {of: (one.earliest(INTERVAL.start), one.latest(INTERVAL.end)) for of, one in found.of_inputs.items()}
    assert bounds == expected


@pytest.mark.parametrize(
    ("made", "closes_at"),
    [
        (lambda records, _: records.dropDuplicates(["id", "at"]), at(6)),
        (counted("window(at, '2 days')"), at(7)),
        (joined(WITHIN), at(7, 12) + JOINS_SETTLE),
        (joined("clicked = at"), at(6) + JOINS_SETTLE),
        (counted_joins, at(7, 12) + timedelta(hours=36, milliseconds=1) + JOINS_SETTLE),
    ],
    ids=["deduplication", "window", "outer join", "equal times", "window of a join"],
)
def test_an_interval_closes_when_its_windows_and_joins_are_complete(
    made: Made, closes_at: datetime, inputs: tuple[DataFrame, DataFrame]
) -> None:
    """Rows reach a window above a join only when the join has let its watermark through."""
    assert reach_of(inputs, made).closes_at(INTERVAL, timedelta(0)) == closes_at


@pytest.mark.parametrize(
    ("made", "unknown", "at_least"),
    [
        (counted("session_window(at, '2 hours')", "window.start"), "a session has no longest length", 2 * HOUR),
        (joined("clicked >= at", "inner"), "a join of streams does not say how far", 0 * HOUR),
        (
            lambda records, _: records.select(fn.expr("make_timestamp(2013, 1, 1, id, 0, 0) AS at")),
            "at is not made of the time of an input by a known step",
            0 * HOUR,
        ),
        (
            lambda records, _: records.select(fn.expr("at + make_interval(0, 0, 0, 0, id) AS at")),
            "at is not made of the time of an input by a known step",
            0 * HOUR,
        ),
        (
            lambda records, _: records.mapInPandas(lambda frames: frames, "id long, at timestamp"),
            "at is not made of the time of an input by a known step",
            0 * HOUR,
        ),
        (lambda records, _: records.limit(3), "a limit lets rows through", 0 * HOUR),
    ],
    ids=["session", "join without a range", "made up", "shifted by a column", "python", "limit"],
)
def test_what_cannot_be_followed_is_unknown(
    made: Made, unknown: str, at_least: timedelta, inputs: tuple[DataFrame, DataFrame]
) -> None:
    found = reach_of(inputs, made)

    assert found.unknown.startswith(unknown)
    assert (found.of_inputs, found.at_least) == ({}, at_least)
