"""What an interval depends on beside its own rows: open windows and joins, repeated rows, neighbours, moved rows."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from textwrap import dedent
from typing import Any

import pytest
from tests.fixtures.backfills import (
    COLUMNS,
    COUNT_DAYS,
    DAY_5,
    FIRST_DAY,
    ask_for_day,
    at_step,
    backfill,
    declare_read_stream,
    declare_single_rows,
    delete_days,
    expected,
    row,
    rows_of_days,
    search_gaps,
)
from tests.fixtures.refreshes import refresh
from tests.fixtures.workshop import Workshop

from sluice.errors import LedgerError, UnpublishableError, VerificationError
from sluice.ledger.backfill_attempts import BackfillState, recent_attempts
from sluice.publication.crash_points import CrashPoint, Reached

DAY_6, DAY_7 = "2013-01-06", "2013-01-07"

COUNT_TWO_DAYS = COUNT_DAYS.replace("1 day", "2 days")

JOIN = """
    from pyspark.sql import functions as fn

    def transform(records, clicks):
        near = fn.expr("id = click AND clicked >= at AND clicked <= at + INTERVAL 36 HOURS")
        return records.join(clicks, near, "leftOuter").select("id", "at", "clicked")
"""


def at(day: int, hour: int) -> datetime:
    return FIRST_DAY + timedelta(days=day - 1, hours=hour)


def reading(table: str) -> dict[str, Any]:
    """An input that follows its table."""
    return {"stream": {"iceberg": {"table": table, "on_overwrite": "skip", "on_delete": "skip"}}}


def declare_counts(workshop: Workshop, source: str, **backfill: Any) -> tuple[str, str]:
    """A stream that counts the rows of two days."""
    name = f"w{workshop.namespace}"
    target = workshop.declare_table("counts", {"at": "timestamptz", "rows": "long"})
    workshop.declare_stream(
        name,
        python=COUNT_TWO_DAYS,
        inputs={"records": {**reading(source), "watermark": {"column": "at", "delay": "1 hour"}}},
        outputs={"counts": {"iceberg": {"table": target}}},
        backfill={"column": "at", **backfill},
    )
    return name, target


@pytest.mark.full  # every run: `test_plan_reach.py`
def test_a_window_that_ends_behind_its_interval_is_never_published_twice(workshop: Workshop) -> None:
    """The window of the 5th and the 6th begins in the interval of the 5th."""
    source = workshop.declare_table("source", COLUMNS)
    name, _ = declare_counts(workshop, source)
    for part in ([one for one in rows_of_days() if one["at"].day < 6], [row(1, day=6)], [row(12, day=6)]):
        workshop.append("source", part)
        workshop.run(name)

    with pytest.raises(UnpublishableError, match=r"The watermark of .* are complete at 2013-01-07 00:00"):
        backfill(workshop, name, start=DAY_5, end=DAY_6)

    assert search_gaps(workshop, name).searched.end == at(5, 0), "it looks at what is complete"
    for number in (1, 2):
        workshop.append("source", [row(number, day=8)])
        workshop.run(name)
    counted = [(one["at"].day, one["rows"]) for one in workshop.rows("counts")]
    assert sorted(counted)[-1] == (5, 5)
    assert backfill(workshop, name, start=DAY_5, end=DAY_6).state is BackfillState.UNCHANGED

    short = declare_counts(workshop, source, reads={"records": "at"})[0]
    with pytest.raises(UnpublishableError, match=r"up to 1 day before or after it, and the declared margin is 0") as no:
        backfill(workshop, short, start=DAY_5, end=DAY_6)
    assert no.value.next_step == "Declare `margin: 1 day` in `backfill`, or a longer one."


@pytest.mark.full
def test_an_unmatched_row_of_an_outer_join_is_never_published_twice(workshop: Workshop) -> None:
    name = f"j{workshop.namespace}"
    source = workshop.declare_table("source", {"id": "long", "at": "timestamptz"})
    clicks = workshop.declare_table("clicks", {"click": "long", "clicked": "timestamptz"})
    joined = workshop.declare_table("joined", {"id": "long", "at": "timestamptz", "clicked": "timestamptz"})
    workshop.declare_stream(
        name,
        python=JOIN,
        inputs={
            "records": {**reading(source), "watermark": {"column": "at", "delay": "1 hour"}},
            "clicks": {**reading(clicks), "watermark": {"column": "clicked", "delay": "1 hour"}},
        },
        outputs={"joined": {"iceberg": {"table": joined}}},
        backfill={"column": "at"},
    )

    def arrive(records: list[tuple[int, datetime]], clicked: list[tuple[int, datetime]]) -> None:
        workshop.append("source", [{"id": number, "at": time} for number, time in records])
        workshop.append("clicks", [{"click": number, "clicked": time} for number, time in clicked])
        workshop.run(name)

    arrive([(20, at(5, 20)), (1, at(6, 12))], [(1, at(6, 12))])
    arrive([(2, at(6, 13))], [(2, at(6, 13))])

    with pytest.raises(UnpublishableError, match=r"are complete at 2013-01-07 12:00"):
        backfill(workshop, name, start=DAY_5, end=DAY_6)

    arrive([(3, at(9, 0))], [(20, at(6, 20)), (3, at(9, 0))])
    arrive([(4, at(9, 1))], [(4, at(9, 1))])
    assert [one["clicked"] for one in workshop.rows("joined") if one["id"] == 20] == [at(6, 20)]
    assert backfill(workshop, name, start=DAY_5, end=DAY_6).state is BackfillState.UNCHANGED


@pytest.mark.full
def test_of_repeated_rows_in_two_intervals_that_one_stays_which_the_target_holds(workshop: Workshop) -> None:
    """A comes first and lies in the 6th, B comes second and lies in the 5th. By its columns B is the lower one."""
    name = f"d{workshop.namespace}"
    source, target = (workshop.declare_table(table, COLUMNS) for table in ("source", "target"))
    workshop.declare_stream(
        name,
        python="""
            def transform(records):
                return records.dropDuplicates(["id"])
        """,
        inputs={"records": reading(source)},
        outputs={"copies": {"iceberg": {"table": target}}},
        backfill={"column": "at", "balance": "rows"},
    )
    for part in ([row(1, day=6), row(3, day=5)], [row(1, day=5), row(2, day=5), row(2, day=6)]):
        workshop.append("source", part)
        workshop.run(name)
    kept = sorted((one["id"], one["at"].day) for one in workshop.rows("target"))
    assert [number for number, _ in kept] == [1, 2, 3]

    for start, end in ((DAY_5, DAY_6), (DAY_6, DAY_7), (DAY_5, DAY_7)):
        assert backfill(workshop, name, start=start, end=end).state is BackfillState.UNCHANGED
    assert search_gaps(workshop, name).gaps == ()

    for order in (((DAY_5, DAY_6), (DAY_6, DAY_7)), ((DAY_6, DAY_7), (DAY_5, DAY_6))):
        delete_days(workshop, "target", DAY_5, DAY_7)
        for start, end in order:
            backfill(workshop, name, start=start, end=end)
        assert sorted(one["id"] for one in workshop.rows("target")) == [1, 2, 3]


def test_repeated_rows_whose_key_or_time_the_target_does_not_have_are_refused(workshop: Workshop) -> None:
    name = f"d{workshop.namespace}"
    source, target = (workshop.declare_table(table, COLUMNS) for table in ("source", "target"))
    once = """
        def transform(records):
            return records.dropDuplicates(["id"]){made}
    """
    workshop.declare_stream(
        name,
        python=once.format(made=""),
        inputs={"records": reading(source)},
        outputs={"copies": {"iceberg": {"table": target}}},
        backfill={"column": "at"},
    )
    workshop.append("source", rows_of_days())
    workshop.run(name)

    at_its_run = '.selectExpr("id", "word", "current_timestamp() AS at")'
    for made in (
        at_its_run,
        '.selectExpr("id + 1 AS id", "word", "at")',
        '.withColumn("at", records["at"] + timedelta(days=1))',
    ):
        (workshop.folder / f"{name}.py").write_text("from datetime import timedelta\n" + dedent(once.format(made=made)))
        with pytest.raises(UnpublishableError, match="Rows with the same id count once") as refused:
            backfill(workshop, name)
        assert "which duplicates are dropped" in (refused.value.next_step or "")


def declare_gold(workshop: Workshop, stream: str) -> str:
    """A follower of the target whose margin reaches into the days beside."""
    name = f"g{workshop.namespace}"
    workshop.declare_stream(
        name,
        sql="SELECT * FROM records",
        inputs={"records": reading(workshop.table_name("target"))},
        outputs={"copies": {"iceberg": {"table": workshop.declare_table("gold", COLUMNS)}}},
        backfill={"column": "at", "reads": {"records": "at"}, "margin": "1 hour", "follows": ["records"]},
    )
    workshop.run(name)
    return name


def days_of(workshop: Workshop, table: str) -> Counter[int]:
    return Counter(one["at"].day for one in workshop.rows(table))


@pytest.mark.full
def test_neighbours_whose_followers_overlap_never_write_stale_rows(workshop: Workshop) -> None:
    """The source has lost two days, and the follower was right."""
    stream = declare_read_stream(workshop)
    gold = declare_gold(workshop, stream)
    right = days_of(workshop, "gold")
    delete_days(workshop, "target", DAY_5, DAY_7)
    refused: list[LedgerError] = []

    def next_day() -> None:
        with pytest.raises(LedgerError, match="is being backfilled by another run") as taken:
            backfill(workshop, stream, start=DAY_6, end=DAY_7)
        refused.append(taken.value)

    with pytest.raises(UnpublishableError, match="would take their place"):
        backfill(workshop, stream, start=DAY_5, end=DAY_6, reached=at_step(CrashPoint.STAGED, next_day))
    backfill(workshop, stream, start=DAY_6, end=DAY_7)
    backfill(workshop, stream, start=DAY_5, end=DAY_6)

    assert len(refused) == 1
    assert (days_of(workshop, "target"), days_of(workshop, "gold")) == (right, right)
    assert {one.state for one in recent_attempts(workshop.ledger, gold, limit=1)} == {BackfillState.UNCHANGED}


@pytest.mark.full  # every run has one that changes before (`test_changing_inputs.py`)
def test_an_input_that_changes_right_before_the_commit_is_computed_again(workshop: Workshop) -> None:
    """The last look at the inputs is before the commit; what changes after it is noticed after the commit."""
    stream = declare_read_stream(workshop)
    gold = declare_gold(workshop, stream)
    workshop.append("gold", [row(7, day=5, word="forged")])

    result = backfill(
        workshop,
        gold,
        start=DAY_5,
        end=DAY_6,
        allows_fewer=True,
        reached=at_step(CrashPoint.CHECKED, lambda: delete_days(workshop, "target", DAY_5, DAY_6)),
    )

    assert result.key.endswith("/2")
    assert days_of(workshop, "gold")[5] == 0
    newest, first = recent_attempts(workshop.ledger, gold, limit=2)
    assert (newest.state, first.state) == (BackfillState.PUBLISHED, BackfillState.CHANGED_MEANWHILE)
    assert "an input changed while it was computed: snapshot" in (first.reason or "")


MOVING = """
    from pyspark.sql import functions as fn

    def transform(records):
        later = fn.when(fn.col("id") == 50, fn.col("at") + fn.expr("INTERVAL 1 DAY")).otherwise(fn.col("at"))
        good, bad = records.where("word <> 'bad'"), records.where("word = 'bad'")
        position = fn.to_json(fn.struct("id")).alias("position")
        return {
            "copies": good.select("id", fn.upper("word").alias("word"), later.alias("at")),
            "quarantine": bad.select(fn.lit("bad").alias("reason"), position, fn.col("word").alias("payload")),
        }
"""


@pytest.mark.full  # every run counts rows that move (`test_corrected_content.py`)
def test_a_row_that_moves_to_another_interval_is_never_lost(workshop: Workshop) -> None:
    """A correction gives the row of the 5th a time of the 6th."""
    stream = declare_read_stream(workshop)
    (workshop.folder / f"{stream}.py").write_text(dedent(MOVING))
    before = workshop.rows("target")

    def of_day_5(*, reached: Reached = lambda _: None) -> Any:
        return backfill(workshop, stream, start=DAY_5, end=DAY_6, allows_fewer=True, reached=reached)

    with pytest.raises(VerificationError, match=r"^1 rows that .* lie in other intervals now") as lost:
        of_day_5()
    assert "--from 2013-01-05T00:00 --to 2013-01-07T00:00`" in (lost.value.next_step or "")
    assert workshop.rows("target") == before

    ask_for_day(workshop, stream, 6)
    assert of_day_5().rows["moved"] == 1
    assert backfill(workshop, stream, start=DAY_6, end=DAY_7).rows["published"] == 4
    again = of_day_5()
    assert (again.state, again.rows["moved"], again.rows["outside"]) == (BackfillState.UNCHANGED, 0, 22)
    assert sorted(one["id"] for one in workshop.rows("target")) == sorted(one["id"] for one in before)


@pytest.mark.full
def test_rows_of_a_follower_move_to_an_interval_that_follows_another_one(workshop: Workshop) -> None:
    stream, gold = declare_read_stream(workshop), f"g{workshop.namespace}"
    target = workshop.declare_table("gold", COLUMNS)
    reading = {"table": workshop.table_name("target"), "on_overwrite": "skip", "on_delete": "skip"}
    workshop.declare_stream(
        gold,
        sql="SELECT * FROM rows",
        inputs={"rows": {"stream": {"iceberg": reading}}},
        outputs={"copies": {"iceberg": {"table": target}}},
        backfill={"column": "at", "reads": {"rows": "at"}, "margin": "2 hours", "follows": ["rows"]},
    )
    workshop.append("source", [row(119, day=6)])  # an hour before midnight
    workshop.run(stream)
    workshop.run(gold)
    (workshop.folder / f"{gold}.sql").write_text("SELECT id, word, at + INTERVAL 90 MINUTES AS at FROM rows")
    ask_for_day(workshop, stream, 5)
    with pytest.raises(VerificationError, match=r"^1 rows that .* lie in other intervals now"):
        backfill(workshop, stream, start=DAY_5, end=DAY_6, allows_fewer=True)

    ask_for_day(workshop, stream, 6)
    (followed,) = backfill(workshop, stream, start=DAY_5, end=DAY_6, allows_fewer=True).followers
    assert followed.rows["moved"] == 1
    ask_for_day(workshop, stream, 7)  # its row of 23 o'clock moves too
    backfill(workshop, stream, start=DAY_6, end=DAY_7)
    backfill(workshop, stream, start=DAY_7, end="2013-01-08")

    ids = Counter(one["id"] for one in workshop.rows("gold"))
    assert ids == Counter(one["id"] for one in [*expected(), row(119, day=6)])


@pytest.mark.full
def test_rows_beside_the_interval_get_a_column_that_was_added_since(workshop: Workshop) -> None:
    """The snapshot that holds them has the columns of its own time; the month is one partition."""
    stream = declare_read_stream(workshop)
    before = workshop.rows("target")
    workshop.declare_table(
        "target",
        {**COLUMNS, "note": "string"},
        partitioning=[{"column": "at", "transform": "month"}],
    )
    path = workshop.folder / f"{stream}.py"
    path.write_text(path.read_text().replace('fn.upper("word"))', 'fn.upper("word")).withColumn("note", fn.lit("n"))'))

    result = backfill(workshop, stream, start=DAY_5, end=DAY_6)

    assert result.rows["kept"] > 0
    noted = [{**one, "note": "n" if one["at"].day == 5 else None} for one in before]
    assert workshop.rows("target") == noted


@pytest.mark.full  # every run: `test_corrected_content.py`
@pytest.mark.parametrize("reads", [{}, {"records": "at"}], ids=["whole", "reads"])
def test_a_row_that_gets_a_time_is_never_there_twice(workshop: Workshop, reads: dict[str, str]) -> None:
    """It lies in no interval as long as it has none, so that no backfill removes it. A refresh does."""
    known = [*rows_of_days(), row(900, day=5)]
    stream = declare_single_rows(workshop, known, at="if(id = 900, null, at)", reads=reads)
    (workshop.folder / f"{stream}.sql").write_text("SELECT id, word, at FROM records")
    before = workshop.rows("target")

    with pytest.raises(VerificationError, match=r"^1 rows of .* may be in .*target already, with a null at") as twice:
        backfill(workshop, stream, start=DAY_5, end=DAY_6)
    assert f"Build the whole table again: `sluice stream refresh {stream}`." in (twice.value.next_step or "")
    assert backfill(workshop, stream, start=DAY_6, end=DAY_7).state is BackfillState.UNCHANGED
    assert workshop.rows("target") == before

    refresh(workshop, stream)
    assert sorted(workshop.rows("target"), key=lambda one: one["id"])[-1]["at"] == row(900, day=5)["at"]
    assert len(workshop.rows("target")) == len(before)
    assert backfill(workshop, stream, start=DAY_5, end=DAY_6).state is BackfillState.UNCHANGED


@pytest.mark.full  # every run counts rows that move (`test_corrected_content.py`)
def test_rows_that_change_places_come_with_one_command(workshop: Workshop) -> None:
    """A row of the 5th moves to the 6th, and one of the 6th to the 5th: neither day can be the first."""
    stream = declare_single_rows(workshop, rows_of_days())
    moved = "at + make_interval(0, 0, 0, CASE id WHEN 50 THEN 1 WHEN 60 THEN -1 ELSE 0 END)"
    query = f"SELECT id, word, {moved} AS at FROM records"  # noqa: S608  # our own
    (workshop.folder / f"{stream}.sql").write_text(query)

    for start, end in ((DAY_5, DAY_6), (DAY_6, DAY_7)):
        with pytest.raises(VerificationError, match="lie in other intervals now") as refused:
            backfill(workshop, stream, start=start, end=end)
        assert "--from 2013-01-05T00:00 --to 2013-01-07T00:00`" in (refused.value.next_step or "")

    ask_for_day(workshop, stream, 5)
    ask_for_day(workshop, stream, 6)
    for start, end in ((DAY_5, DAY_6), (DAY_6, DAY_7)):
        assert backfill(workshop, stream, start=start, end=end).rows["moved"] == (1 if start == DAY_5 else 0)
    assert Counter(one["id"] for one in workshop.rows("target")) == Counter(one["id"] for one in rows_of_days())
    assert {one["id"]: one["at"].day for one in workshop.rows("target") if one["id"] in (50, 60)} == {50: 6, 60: 5}
