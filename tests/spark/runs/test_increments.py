"""Increments of Iceberg tables: in bounded batches, to the head at their start, windows closed, beside expiry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from tests.fixtures.drill import sampled
from tests.fixtures.streams_of_tables import COLUMNS, dying_at, reading, writing
from tests.fixtures.workshop import Workshop

from sluice.ledger.connection import database_time
from sluice.publication.crash_points import CrashPoint, Reached
from sluice_spark.run.stop_request import StopReason

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)

WINDOWS = """
    SELECT window.start AS window_start, count(*) AS flights
    FROM records
    GROUP BY window(at, '1 hour')
"""


@pytest.fixture
def name(workshop: Workshop) -> str:
    """A stream that no other test has: the ledger is shared."""
    return f"s{workshop.namespace}"


def declare_copying(workshop: Workshop, name: str, **source: Any) -> None:
    """Declare a stream that appends what it reads. source: more keys of its input."""
    tables = [workshop.declare_table(table, COLUMNS) for table in ("source", "target")]
    inputs = {"records": {"stream": {"iceberg": {"table": tables[0], **source}}}}
    workshop.declare_stream(name, sql="SELECT id, word FROM records", inputs=inputs, outputs=writing(tables[1]))


def append(workshop: Workshop, *ids: int, table: str = "source") -> None:
    """Append a row, and with it a file and a snapshot, for every id."""
    for number in ids:
        workshop.append(table, [{"id": number, "word": "word"}])


def ids(workshop: Workshop) -> list[int]:
    """The ids in the target."""
    return [row["id"] for row in workshop.rows("target")]


def expire_all(workshop: Workshop) -> None:
    """Expire everything but the newest snapshot of the source, as somebody does who knows of no reader."""
    statement = (
        "CALL lakehouse.system.expire_snapshots(table => {table}, older_than => TIMESTAMP {now}, retain_last => 1)"
    )
    table, now = workshop.table_name("source"), database_time(workshop.ledger).isoformat()
    workshop.spark.sql(statement, table=f"lakehouse.{table}", now=now).collect()


FILES, ROWS = {"max_files_per_batch": 2}, {"max_rows_per_batch": 2}


@pytest.mark.parametrize("limit", sampled([FILES, ROWS], [ROWS], full=[FILES]))
def test_catching_up_takes_batches_of_the_declared_size(workshop: Workshop, name: str, limit: dict[str, int]) -> None:
    declare_copying(workshop, name, **limit)
    append(workshop, *range(5))

    first = workshop.run(name)
    append(workshop, *range(5, 8))
    second = workshop.run(name)

    assert [batch.input_rows for batch in first.batches] == [2, 2, 1]
    assert [batch.input_rows for batch in second.batches] == [2, 1]
    assert ids(workshop) == list(range(8))


@pytest.mark.full  # every run: `test_position_pins.py`, a drill
def test_an_increment_survives_the_expiry_of_all_that_was_read(workshop: Workshop, name: str) -> None:
    declare_copying(workshop, name, max_files_per_batch=2)
    for turn in range(3):
        append(workshop, *range(turn * 3, turn * 3 + 3))
        workshop.run(name, is_recorded=True)
        expire_all(workshop)

    assert ids(workshop) == list(range(9))
    assert len(workshop.table("source").snapshots()) <= 2  # the newest one, and perhaps a pinned one


@pytest.mark.full
def test_an_increment_ends_at_the_head_that_was_there_beside_a_steady_writer(workshop: Workshop, name: str) -> None:
    declare_copying(workshop, name, max_files_per_batch=1)
    append(workshop, 0, 1, 2)
    later = iter(range(3, 100))

    def writing_on(here: CrashPoint) -> None:
        if here is CrashPoint.BATCH_BEGUN:
            append(workshop, next(later), next(later))

    run = workshop.run(name, reached=writing_on)

    assert run.reason is StopReason.EXHAUSTED
    assert ids(workshop) == [0, 1, 2]
    workshop.run(name)
    assert ids(workshop) == list(range(next(later)))


@pytest.mark.parametrize("dead", sampled([0, 1], [1], full=[0]))
def test_the_batch_that_a_dead_run_left_is_finished_first(workshop: Workshop, name: str, dead: int) -> None:
    declare_copying(workshop, name, max_files_per_batch=2)
    append(workshop, *range(5))

    with pytest.raises(OSError, match="dies here"):
        workshop.run(name, reached=_dying_in_batch(dead))
    append(workshop, 5)
    run = workshop.run(name)

    assert ids(workshop) == list(range(6))
    assert [(batch.key.batch, batch.input_rows) for batch in run.batches][-2:] == [(1, 2), (2, 2)]


def _dying_in_batch(number: int) -> Reached:
    staged = count()

    def reached(here: CrashPoint) -> None:
        if here is CrashPoint.STAGED and next(staged) == number:
            raise OSError("the driver dies here")

    return reached


@pytest.mark.full  # every run: increments that find something
@pytest.mark.parametrize("starting", ["latest", "table"])
def test_a_first_increment_with_nothing_to_read_ends_and_the_next_one_reads(
    workshop: Workshop, name: str, starting: str
) -> None:
    declare_copying(workshop, name, starting=starting)
    if starting == "latest":
        append(workshop, 0)
    else:
        workshop.table("source").append(workshop.table("source").scan().to_arrow())  # a snapshot without rows

    for _ in range(2):
        assert workshop.run(name, is_recorded=True).reason is StopReason.EXHAUSTED
    append(workshop, 1)
    workshop.run(name)

    assert ids(workshop) == [1]


@pytest.mark.full
def test_an_input_without_news_keeps_no_other_input_from_being_read(workshop: Workshop, name: str) -> None:
    source, other, target = (workshop.declare_table(table, COLUMNS) for table in ("source", "other", "target"))
    append(workshop, 0)
    append(workshop, 1, 2, table="other")
    workshop.declare_stream(
        name,
        sql="SELECT id, word FROM quiet UNION ALL SELECT id, word FROM busy",
        inputs={
            "quiet": {"stream": {"iceberg": {"table": source, "starting": "latest"}}},
            "busy": {"stream": {"iceberg": {"table": other, "max_files_per_batch": 1}}},
        },
        outputs=writing(target),
    )

    with pytest.raises(OSError, match="dies here"):
        workshop.run(name, reached=dying_at(CrashPoint.STAGED))
    run = workshop.run(name)

    assert [batch.input_rows for batch in run.batches] == [1, 1]
    append(workshop, 3)
    workshop.run(name)
    assert ids(workshop) == [1, 2, 3]


def test_a_damaged_first_offset_is_written_again(workshop: Workshop, name: str) -> None:
    """A run that is killed while it writes the first offset leaves a part of it."""
    declare_copying(workshop, name)
    append(workshop, 0)
    workshop.run(name)
    offsets = workshop.checkpoint(name) / "sources" / "0" / "offsets"
    (offsets / ".0.crc").unlink(missing_ok=True)
    (offsets / "0").write_text("")

    append(workshop, 1)
    workshop.run(name)

    assert ids(workshop) == [0, 1]


@pytest.mark.full  # every run: `test_declaration_changes.py`, and random streams (`test_differential.py`)
def test_windows_close_in_the_run_that_completes_them_and_late_rows_are_dropped(workshop: Workshop, name: str) -> None:
    source = workshop.declare_table("source", {"at": "timestamptz"})
    target = workshop.declare_table("target", {"window_start": "timestamptz", "flights": "long"})
    inputs = reading(source)
    inputs["records"]["stream"]["iceberg"]["max_files_per_batch"] = 1
    inputs["records"]["watermark"] = {"column": "at", "delay": "1 hour"}
    workshop.declare_stream(name, sql=WINDOWS, inputs=inputs, outputs=writing(target))

    def arriving(*hours: float) -> None:
        for hour in hours:
            workshop.append("source", [{"at": NOON + timedelta(hours=hour)}])

    arriving(0.1, 0.2, 3)
    run = workshop.run(name)

    assert [batch.input_rows for batch in run.batches] == [1, 1, 1, 0]
    assert workshop.rows("target") == [{"window_start": NOON, "flights": 2}]
    arriving(0.3, 5.5)
    run = workshop.run(name)
    assert sum(batch.late_rows for batch in run.batches) == 1
    assert [row["flights"] for row in workshop.rows("target")] == [2, 1]
