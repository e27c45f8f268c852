"""A correction that moves a value into another column, or only makes it null or empty, is a change like any other."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.fixtures.backfills import (
    COLUMNS,
    DAYS,
    backfill,
    day_of_january,
    delete_days,
    row,
    rows_of_days,
    search_gaps,
)
from tests.fixtures.workshop import Workshop

from sluice.errors import VerificationError
from sluice.ledger.backfill_attempts import BackfillState
from sluice_spark.backfill.moved_rows import moved_rows, rows_given_times

FORMS = {"first": "string", "second": "string", "words": "list<string>", "notes": "map<string, string>"}

FALSE = {"first": "word", "second": "cast(null AS string)", "words": "array(word, null)", "notes": "map('a', word)"}


def transformation(values: dict[str, str]) -> str:
    """The SQL of the stream."""
    return f"SELECT id, at, {', '.join(f'{value} AS {name}' for name, value in values.items())} FROM records"  # noqa: S608  # of this module


@pytest.mark.parametrize(
    "corrected",
    [
        pytest.param({"first": "cast(null AS string)", "second": "word"}, id="other column", marks=pytest.mark.full),
        pytest.param({"words": "array(word)"}, id="a null less"),
        pytest.param({"notes": "map('b', word)"}, id="an entry of a map", marks=pytest.mark.full),
    ],
)
def test_a_correction_is_found_and_published(workshop: Workshop, corrected: dict[str, str]) -> None:
    stream = f"s{workshop.namespace}"
    parts: dict[str, Any] = {
        "inputs": {"records": {"stream": {"iceberg": {"table": workshop.declare_table("source", COLUMNS)}}}},
        "outputs": {"copies": {"iceberg": {"table": workshop.declare_table("target", COLUMNS | FORMS)}}},
        "backfill": {"column": "at", "balance": "rows"},
    }
    false, true = FALSE | {"word": "word"}, FALSE | {"word": "word"} | corrected
    workshop.declare_stream(stream, sql=transformation(false), **parts)
    workshop.append("source", [*rows_of_days(), row(99, day=DAYS)])
    workshop.run(stream)
    assert search_gaps(workshop, stream).gaps == ()
    workshop.declare_stream(stream, sql=transformation(true), **parts)

    gaps = [(gap.interval.start.day, gap.expected_rows, gap.held_rows) for gap in search_gaps(workshop, stream).gaps]
    result = backfill(workshop, stream)

    assert gaps[:3] == [(1, 3, 3), (2, 3, 3), (3, 3, 3)]
    assert (result.state, result.rows["replaced"]) == (BackfillState.PUBLISHED, 9)
    assert backfill(workshop, stream).state is BackfillState.UNCHANGED


@pytest.mark.full
def test_rows_that_lose_their_time_are_not_lost(workshop: Workshop) -> None:
    """No interval takes a row without a time. One that the stream has published without a time does not matter."""
    stream = f"s{workshop.namespace}"
    parts: dict[str, Any] = {
        "inputs": {"records": {"stream": {"iceberg": {"table": workshop.declare_table("source", COLUMNS)}}}},
        "outputs": {"copies": {"iceberg": {"table": workshop.declare_table("target", COLUMNS)}}},
        "backfill": {"column": "at", "balance": "rows"},
    }
    sql = "SELECT id, upper(word) AS word, {} AS at FROM records"
    workshop.declare_stream(stream, sql=sql.format("if(id = 10, null, at)"), **parts)
    workshop.append("source", [*rows_of_days(), row(99, day=DAYS)])
    workshop.run(stream)
    delete_days(workshop, "target")
    assert backfill(workshop, stream).rows["without_time"] == 1
    held = workshop.rows("target")
    workshop.declare_stream(stream, sql=sql.format("if(id IN (10, 51), null, at)"), **parts)

    with pytest.raises(
        VerificationError, match=r"^1 rows of the result have no at and are not in .* be lost\. Nothing"
    ):
        backfill(workshop, stream)

    assert workshop.rows("target") == held


@pytest.mark.parametrize("kind", ["string", "timestamp"])
def test_a_row_is_known_again_by_its_values_and_else_by_its_other_times(spark: SparkSession, kind: str) -> None:
    """A is in the interval and moves to the next day; B has had no time, and C has none as before."""

    def rows(**at: str | None) -> DataFrame:
        seen = {"a": "2013-01-01", "b": "2013-01-02", "c": "2013-01-03"}
        made = spark.createDataFrame([(seen[name], time) for name, time in at.items()], "seen string, at string")
        return made.selectExpr(f"CAST(seen AS {kind}) AS seen", "CAST(at AS timestamp) AS at")

    moved = moved_rows(
        held=rows(a="2013-01-05 10:00"),
        computed=rows(b="2013-01-05 12:00"),
        held_beside=rows(b=None, c=None),
        computed_beside=rows(a="2013-01-06 10:00", c=None),
        column="at",
        length="day",
    )
    twice = rows_given_times(
        held=rows(a="2013-01-05 10:00"),
        computed=rows(b="2013-01-05 12:00", c="2013-01-05 13:00"),
        held_timeless=rows(b=None, c=None),
        computed_timeless=rows(c=None),
        column="at",
    )

    assert moved == {day_of_january(6): 1}
    assert twice == 1


def test_a_row_that_gets_another_value_with_its_time_is_not_there_twice(spark: SparkSession) -> None:
    """It is not known again: the interval grows while a row without a time is given no more. Rows that only change, or
    whose counterparts are given as before, are no such rows."""

    def rows(*made: tuple[str, str | None]) -> DataFrame:
        return spark.createDataFrame(list(made), "word string, at string").selectExpr("word", "timestamp(at) AS at")

    def twice(held: DataFrame, computed: DataFrame, *, gives: DataFrame) -> int:
        timeless = rows(("?", None), ("legal", None))
        return rows_given_times(
            held=held, computed=computed, held_timeless=timeless, computed_timeless=gives, column="at"
        )

    ten, noon, legal = ("x", "2013-01-05 10:00"), ("y", "2013-01-05 12:00"), ("legal", None)
    assert twice(rows(ten), rows(ten, noon), gives=rows(legal)) == 1
    assert twice(rows(ten), rows(noon), gives=rows(legal)) == 0
    assert twice(rows(ten), rows(ten, noon), gives=rows(legal, ("?", None))) == 0
