"""What arrives late or twice is dropped, counted, and counted once; windows are updated as their rows come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.fixtures.workshop import Workshop

CONTINUOUS: dict[str, Any] = {"mode": "continuous", "trigger": {"processing_time": "100 milliseconds"}}
"""A batch without rows follows one that moves the watermark: so the next rows are judged by it at once."""

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)

ONCE = """
    def transform(records):
        once = records.where("id > 0").withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"])
        refused = records.where("id <= 0").selectExpr(
            "'no id' AS reason", "to_json(struct(id)) AS position", "CAST(at AS string) AS payload"
        )
        return {"flights": once, "quarantine": refused}
"""

WINDOWS = """
    SELECT window.start AS window_start, count(*) AS flights
    FROM records
    GROUP BY window(at, '1 hour')
"""


@pytest.fixture
def name(workshop: Workshop) -> str:
    """A stream that no other test has: the ledger is shared."""
    return f"s{workshop.namespace}"


def flights(*rows: tuple[int, float]) -> list[dict[str, Any]]:
    """Rows of ids and hours after noon."""
    return [{"id": number, "at": NOON + timedelta(hours=hours)} for number, hours in rows]


def declare_deduplicating(workshop: Workshop, name: str, **how: Any) -> None:
    """A stream that keeps each id once, forgives an hour, and refuses rows without an id."""
    columns = {"id": "long", "at": "timestamptz"}
    source, target = workshop.declare_table("source", columns), workshop.declare_table("target", columns)
    workshop.declare_stream(
        name,
        python=ONCE,
        inputs={"records": {"stream": {"iceberg": {"table": source}}}},
        outputs={"flights": {"iceberg": {"table": target}}},
        quarantine=True,
        **how,
    )


@pytest.fixture
def deduplicating(workshop: Workshop, name: str) -> Workshop:
    """The stream as increments."""
    declare_deduplicating(workshop, name)
    return workshop


@pytest.mark.full  # every run: random streams
def test_late_and_repeated_rows_are_counted_and_the_numbers_add_up(workshop: Workshop, name: str) -> None:
    declare_deduplicating(workshop, name, **CONTINUOUS)
    workshop.append("source", flights((1, 0), (2, 0.5), (1, 0), (0, 3)))
    first, after_first = workshop.run(name, stop_after_batches=2).batches
    workshop.append("source", flights((3, 5), (2, 0.5), (4, 0), (-1, 9)))
    second, after_second = workshop.run(name, stop_after_batches=2).batches
    workshop.append("source", flights((5, 3), (3, 5), (6, 4.5), (7, 3.9)))
    (third,) = workshop.run(name, stop_after_batches=1).batches

    counted = [
        (batch.input_rows, batch.published_rows["flights"], batch.refused_rows, batch.late_rows, batch.duplicate_rows)
        for batch in (first, after_first, second, after_second, third)
    ]
    assert counted == [(4, 2, 1, 0, 1), (0, 0, 0, 0, 0), (4, 2, 1, 0, 1), (0, 0, 0, 0, 0), (4, 1, 0, 2, 1)]
    assert all(row[0] == sum(row[1:]) for row in counted)
    early, later = NOON - timedelta(hours=0.5), NOON + timedelta(hours=4)
    assert [batch.watermark for batch in (first, after_first, second, after_second, third)] == [
        None,
        early,
        early,
        later,
        later,
    ]
    assert sorted(row["id"] for row in workshop.rows("target")) == [1, 2, 3, 4, 6]


@pytest.mark.full  # every run: random streams (`test_differential.py`)
def test_an_increment_judges_lateness_as_a_continuous_run_does(deduplicating: Workshop, name: str) -> None:
    deduplicating.append("source", flights((1, 5)))
    first = deduplicating.run(name).batches
    deduplicating.append("source", flights((2, 0), (3, 4.5)))
    (judging,) = deduplicating.run(name).batches

    assert [batch.input_rows for batch in first] == [1, 0]
    assert (judging.published_rows["flights"], judging.late_rows) == (1, 1)


def test_a_stateful_batch_that_runs_again_counts_the_same_and_keeps_its_state(
    deduplicating: Workshop, name: str
) -> None:
    deduplicating.append("source", flights((9, 0)))
    deduplicating.run(name)  # moves the watermark as far as all rows below do: no batch without rows follows them
    deduplicating.append("source", flights((1, 0), (1, 0), (0, 0)))
    (before,) = deduplicating.run(name).batches
    deduplicating.forget_last_commit(name)
    deduplicating.append("source", flights((1, 0), (2, 0)))

    again, after = deduplicating.run(name).batches

    assert [row["id"] for row in deduplicating.rows("target")] == [1, 2, 9]
    assert len(deduplicating.rows(f"quarantine.{name}")) == 1
    assert (again.input_rows, again.published_rows, again.refused_rows, again.duplicate_rows) == (
        before.input_rows,
        before.published_rows,
        before.refused_rows,
        before.duplicate_rows,
    )
    assert again.snapshot_ids == before.snapshot_ids
    assert (after.published_rows, after.duplicate_rows) == ({"flights": 1}, 1)


@pytest.mark.full
def test_windows_are_updated_until_they_are_closed(workshop: Workshop, name: str) -> None:
    source = workshop.declare_table("source", {"id": "long", "at": "timestamptz"})
    target = workshop.declare_table("target", {"window_start": "timestamptz", "flights": "long"})
    workshop.declare_stream(
        name,
        sql=WINDOWS,
        inputs={
            "records": {
                "stream": {"iceberg": {"table": source}},
                "watermark": {"column": "at", "delay": "1 hour"},
            }
        },
        outputs={"windows": {"iceberg": {"table": target, "mode": "merge", "keys": ["window_start"]}}},
        **CONTINUOUS,
    )
    workshop.append("source", flights((1, 0), (2, 0.9), (3, 1)))
    first, _ = workshop.run(name, stop_after_batches=2).batches
    workshop.append("source", flights((4, 0.2), (5, 8)))
    second, _ = workshop.run(name, stop_after_batches=2).batches
    workshop.append("source", flights((6, 0.3), (7, 8.5)))
    third, *_ = workshop.run(name, stop_after_batches=1).batches

    assert workshop.rows("target") == [
        {"window_start": NOON, "flights": 3},
        {"window_start": NOON + timedelta(hours=1), "flights": 1},
        {"window_start": NOON + timedelta(hours=8), "flights": 2},
    ]
    assert [batch.published_rows["windows"] for batch in (first, second, third)] == [2, 2, 1]
    assert third.late_rows == 1


@pytest.mark.full
def test_a_row_that_the_transformation_drops_moves_the_watermark(workshop: Workshop, name: str) -> None:
    """Spark would push both the filter and the join below the watermark."""
    source = workshop.declare_table("source", {"id": "long", "at": "timestamptz"})
    banned = workshop.declare_table("banned", {"id": "long"})
    target = workshop.declare_table("target", {"window_start": "timestamptz", "flights": "long"})
    workshop.declare_stream(
        name,
        sql=WINDOWS.replace("FROM records", "FROM records LEFT ANTI JOIN banned USING (id) WHERE records.id > 0"),
        inputs={
            "records": {
                "stream": {"iceberg": {"table": source}},
                "watermark": {"column": "at", "delay": "1 hour"},
            },
            "banned": {"static": {"iceberg": {"table": banned}}},
        },
        outputs={"windows": {"iceberg": {"table": target, "mode": "merge", "keys": ["window_start"]}}},
        **CONTINUOUS,
    )
    workshop.append("banned", [{"id": 9}])
    workshop.append("source", flights((1, 0), (9, 4), (-1, 8)))
    first, _ = workshop.run(name, stop_after_batches=2).batches
    workshop.append("source", flights((2, 6.5), (3, 8)))
    second, *_ = workshop.run(name, stop_after_batches=1).batches

    assert (first.published_rows["windows"], second.published_rows["windows"]) == (1, 1)
    assert (second.watermark, second.late_rows) == (NOON + timedelta(hours=7), 1)


@pytest.mark.full
def test_nothing_is_late_where_every_group_is_kept(workshop: Workshop, name: str) -> None:
    source = workshop.declare_table("source", {"id": "long", "at": "timestamptz"})
    target = workshop.declare_table("target", {"window_start": "timestamptz", "flights": "long"})
    workshop.declare_stream(
        name,
        sql=WINDOWS,
        inputs={
            "records": {
                "stream": {"iceberg": {"table": source}},
                "watermark": {"column": "at", "delay": "1 hour"},
            }
        },
        outputs={"windows": {"iceberg": {"table": target, "mode": "complete"}}},
    )
    workshop.append("source", flights((1, 9)))
    workshop.run(name)
    late = []
    for number in (2, 3):
        workshop.append("source", flights((number, 0)))
        late += [batch.late_rows for batch in workshop.run(name).batches]

    assert late == [0, 0]
    assert workshop.rows("target") == [
        {"window_start": NOON, "flights": 2},
        {"window_start": NOON + timedelta(hours=9), "flights": 1},
    ]


def test_a_static_input_is_read_again_by_every_batch(workshop: Workshop, name: str) -> None:
    source = workshop.declare_table("source", {"id": "long"})
    words = workshop.declare_table("words", {"id": "long", "word": "string"})
    target = workshop.declare_table("target", {"id": "long", "word": "string"})
    workshop.declare_stream(
        name,
        sql="SELECT records.id, words.word FROM records LEFT JOIN words ON records.id = words.id",
        inputs={
            "records": {"stream": {"iceberg": {"table": source, "max_files_per_batch": 1}}},
            "words": {"static": {"iceberg": {"table": words}}},
        },
        outputs={"named": {"iceberg": {"table": target}}},
        **CONTINUOUS,
    )
    workshop.append("source", [{"id": 1}])
    workshop.run(name, stop_after_batches=1)
    workshop.append("words", [{"id": 2, "word": "two"}])
    workshop.append("source", [{"id": 2}])

    workshop.run(name, stop_after_batches=1)

    assert workshop.rows("target") == [{"id": 1, "word": None}, {"id": 2, "word": "two"}]
