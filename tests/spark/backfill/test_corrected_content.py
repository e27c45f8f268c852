"""A correction that moves a value into another column, or only makes it null or empty, is a change like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo
from pyspark.sql import DataFrame, SparkSession
from tests.fixtures.backfills import (
    COLUMNS,
    DAY_5,
    DAY_8,
    DAYS,
    backfill,
    day_of_january,
    declare_single_rows,
    delete_days,
    row,
    rows_of_days,
    search_gaps,
)
from tests.fixtures.drill import first_of
from tests.fixtures.workshop import Workshop

from sluice.errors import UnpublishableError, VerificationError
from sluice.ledger.backfill_attempts import BackfillState
from sluice_spark.backfill.held_rows import TimesGiven, moved_rows

FORMS = {"first": "string", "second": "string", "words": "list<string>", "notes": "map<string, string>"}

FALSE = {"first": "word", "second": "cast(null AS string)", "words": "array(word, null)", "notes": "map('a', word)"}


def transformation(values: dict[str, str]) -> str:
    """The SQL of the stream."""
    return f"SELECT id, at, {', '.join(f'{value} AS {name}' for name, value in values.items())} FROM records"  # noqa: S608  # of this module


@pytest.mark.full  # every run: `test_row_content.py` distinguishes such rows
@pytest.mark.parametrize(
    "corrected",
    [
        pytest.param({"first": "cast(null AS string)", "second": "word"}, id="other column"),
        pytest.param({"words": "array(word)"}, id="a null less"),
        pytest.param({"notes": "map('b', word)"}, id="an entry of a map"),
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
    ) as lost:
        backfill(workshop, stream)

    assert workshop.rows("target") == held

    without_51 = sql.format("if(id = 10, null, at)") + " WHERE id <> 51"
    workshop.declare_stream(stream, sql=without_51, **parts | {"backfill": {"column": "at"}})
    with pytest.raises(UnpublishableError, match="holds 9 rows, and 8 would") as fewer:
        backfill(workshop, stream)
    assert all("--allow-fewer" in str(refused.value.next_step) for refused in (lost, fewer))
    assert backfill(workshop, stream, allows_fewer=True).rows["published"] == 8


KINDS = ["string", "date", "timestamp", "timestamp_ntz"]


@pytest.mark.parametrize("kind", first_of(*KINDS))
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
    twice = TimesGiven(
        held=rows(a="2013-01-05 10:00"),
        computed=rows(b="2013-01-05 12:00", c="2013-01-05 13:00"),
        held_timeless=rows(b=None, c=None),
        computed_timeless=rows(c=None),
    ).count()

    assert moved == {day_of_january(6): 1}
    assert twice == 1


TEN, NOON, LEGAL, X_AT_NOON = ("x", "10:00"), ("y", "12:00"), ("legal", None), ("x", "12:00")
_Row = tuple[str, str | None]


FULL = pytest.mark.full


@pytest.mark.parametrize(
    ("held", "computed", "timeless", "expected"),
    [
        pytest.param([TEN], [TEN, NOON], [LEGAL], 1, id="the interval grows"),
        pytest.param([TEN], [NOON], [LEGAL], 1, id="another one leaves for good", marks=FULL),
        pytest.param([TEN], [TEN, NOON], [LEGAL, ("?", None)], 0, id="no row without a time is missing", marks=FULL),
        pytest.param([TEN], [NOON], [LEGAL, ("x", None)], 1, id="a row loses its time", marks=FULL),
        pytest.param([TEN], [X_AT_NOON], [LEGAL], 1, id="with the values of one that leaves for good", marks=FULL),
        pytest.param([TEN], [("y", "10:00")], [LEGAL], 1, id="with its time", marks=FULL),
        pytest.param([TEN, X_AT_NOON], [TEN], [LEGAL], 0, id="none is new", marks=FULL),
        pytest.param([], [TEN, NOON], [LEGAL], 1, id="it grows by more than are missing", marks=FULL),
        pytest.param([TEN], [("?", "12:00")], [LEGAL], 1, id="it is known again", marks=FULL),
        pytest.param([("?", "10:00")], [("?", "10:00"), ("?", "10:00")], [LEGAL], 1, id="it is one more", marks=FULL),
        pytest.param([TEN, X_AT_NOON], [("legal", "9:00")], [("?", None)], 1, id="more go", marks=FULL),
    ],
)
def test_a_row_that_gets_its_time_and_perhaps_another_value_is_never_there_twice(
    spark: SparkSession,
    held: list[_Row],
    computed: list[_Row],
    timeless: list[_Row],
    expected: int,
) -> None:
    """The target holds two rows without a time, which code gives no more, or as before."""

    def rows(*made: _Row) -> DataFrame:
        times = [(word, at and f"2013-01-05 {at}") for word, at in made]
        return spark.createDataFrame(times, "word string, at string").selectExpr("word", "timestamp(at) AS at")

    def twice(every: Callable[[], DataFrame | None] | None, *given: _Row) -> int:
        return TimesGiven(
            held=rows(*held),
            computed=rows(*computed),
            held_timeless=rows(("?", None), LEGAL),
            computed_timeless=rows(*given),
            every_timeless=every,
        ).count()

    assert twice(None, *timeless) == expected
    lost = [one for one in timeless if one not in (("?", None), LEGAL)]  # of a record that was read
    assert twice(lambda: rows(*timeless), *lost) == expected
    assert twice(lambda: None, *timeless) == expected


def test_as_many_rows_are_known_again_as_are_given_no_more(spark: SparkSession) -> None:
    """One of two equal rows has got its time; another row has left the interval, with other values."""

    def rows(*times: str | None) -> DataFrame:
        same = spark.createDataFrame([("same", at) for at in times], "word string, at string")
        return same.selectExpr("word", "timestamp(at) AS at")

    other = spark.sql("SELECT 'other' AS word, timestamp'2013-01-05 08:00' AS at")
    found = TimesGiven(
        held=other,
        computed=rows("2013-01-05 10:00"),
        held_timeless=rows(None, None),
        computed_timeless=rows(None),
    ).count()

    assert found == 1


@pytest.mark.parametrize("computed_timeless", [True, False])
def test_rows_without_a_time_cost_nothing_while_none_is_held_or_all_are_given(
    spark: SparkSession, *, computed_timeless: bool
) -> None:
    none = spark.createDataFrame([], "word string, at timestamp")
    fails = none.sparkSession.sql("SELECT raise_error('it is computed') AS word, CAST(NULL AS timestamp) AS at")
    timeless = spark.sql("SELECT 'w' AS word, CAST(NULL AS timestamp) AS at") if computed_timeless else none

    found = TimesGiven(
        held=fails,
        computed=fails,
        held_timeless=timeless,
        computed_timeless=timeless if computed_timeless else fails,
    ).count()

    assert found == 0


@pytest.mark.full  # every run has tables with values
def test_a_table_of_times_alone_has_as_many_rows_twice_as_are_new(spark: SparkSession) -> None:
    def rows(*hours: int | None) -> DataFrame:
        times = [(None if hour is None else f"2013-01-05 {hour}:00",) for hour in hours]
        return spark.createDataFrame(times, "at string").selectExpr("timestamp(at) AS at")

    def twice(every: Callable[[], DataFrame | None] | None) -> int:
        return TimesGiven(
            held=rows(10),
            computed=rows(10, 11, 12, 13),
            held_timeless=rows(None, None, None),
            computed_timeless=rows(None),
            every_timeless=every,
        ).count()

    assert [twice(every) for every in (None, lambda: rows(None, None), lambda: None)] == [2, 1, 2]


GIVEN_ITS_TIME = "SELECT id, if(id = 900, 'right', word) AS word, if(id = 901, null, at) AS at FROM records"
MAYBE_TWICE = r"^1 rows of .* may be in .*target already, with a null at"


@pytest.fixture
def read_by_interval(workshop: Workshop) -> str:
    """A stream that has published two rows without a time, and whose backfills read an interval."""
    known = [*rows_of_days(), row(900, day=5), row(901, day=2)]
    reads: dict[str, Any] = {"reads": {"records": "at"}, "margin": "1 hour"}
    return declare_single_rows(workshop, known, at="if(id >= 900, null, at)", **reads)


def test_a_row_that_gets_its_time_and_another_value_is_not_doubled_where_an_interval_is_read(
    workshop: Workshop, read_by_interval: str
) -> None:
    """The records of days that are not read give rows without a time, too: all of them say whether one is missing."""
    stream, before = read_by_interval, workshop.rows("target")

    (workshop.folder / f"{stream}.sql").write_text(GIVEN_ITS_TIME)
    with pytest.raises(VerificationError, match=MAYBE_TWICE) as twice:
        backfill(workshop, stream)

    step = f"Build the whole table again: `sluice stream refresh {stream}`. Where they are other rows"
    assert (twice.value.next_step or "").startswith(step)
    assert workshop.rows("target") == before


@FULL  # every run has it while all records are there
def test_once_records_are_gone_a_person_says_whether_such_a_row_is_missing(
    workshop: Workshop, read_by_interval: str
) -> None:
    stream, before = read_by_interval, workshop.rows("target")
    query = workshop.folder / f"{stream}.sql"
    first = query.read_text()

    query.write_text(f"{GIVEN_ITS_TIME} WHERE id <> 50")  # its interval has as many rows as before
    with pytest.raises(VerificationError, match=MAYBE_TWICE):
        backfill(workshop, stream)
    assert workshop.rows("target") == before

    workshop.table("source").delete(EqualTo(term="id", value=901))
    with pytest.raises(VerificationError, match=r"^1 rows of .* has lost rows, and they may be made of these"):
        backfill(workshop, stream)

    query.write_text(first)
    delete_days(workshop, "target", DAY_5, DAY_8)
    with pytest.raises(VerificationError, match=r"^1 rows of .* may be in"):
        backfill(workshop, stream)
    assert backfill(workshop, stream, allows_repeated=True).rows["published"] == 9
    assert workshop.rows("target") == before
