"""What a backfill reads: corrected sources, rows ahead of the clock; streams that follow, and gaps that are found."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.fixtures.backfills import (
    COLUMNS,
    COUNT_DAYS,
    TRANSFORM,
    at_step,
    backfill,
    declare_read_stream,
    delete_days,
    expected,
    ids_by_duckdb,
    row,
    rows_of_days,
    search_gaps,
)
from tests.fixtures.workshop import Workshop

from sluice.backfill.interval_gaps import GapKind
from sluice.errors import UnpublishableError
from sluice.ledger.backfill_attempts import BackfillState, recent_attempts
from sluice.publication.crash_points import CrashPoint


@pytest.fixture
def stream(workshop: Workshop) -> str:
    """A stream that has read eight days in two batches, and rejected two rows."""
    return declare_read_stream(workshop)


@pytest.mark.full  # every run: `test_any_history.py`, the demo
def test_a_stream_that_follows_is_replaced_in_the_same_run(workshop: Workshop, stream: str) -> None:
    reader = f"r{workshop.namespace}"
    days = workshop.declare_table("days", {"at": "timestamptz", "rows": "long"})
    reading = {"table": workshop.table_name("target"), "on_overwrite": "skip", "on_delete": "skip"}
    workshop.declare_stream(
        reader,
        python=COUNT_DAYS,
        inputs={"records": {"stream": {"iceberg": reading}, "watermark": {"column": "at", "delay": "6 hours"}}},
        outputs={"days": {"iceberg": {"table": days, "mode": "merge", "keys": ["at"]}}},
        backfill={"column": "at", "reads": {"records": "at"}, "follows": ["records"]},
    )
    workshop.run(reader)
    workshop.append("source", [row(700, day=8)])
    workshop.run(stream)
    workshop.run(reader)
    counted = workshop.rows("days")
    with pytest.raises(UnpublishableError, match=rf"Refused: backfill {reader}, .*\. The watermark"):
        backfill(workshop, stream, start="2013-01-08", end="2013-01-09")
    assert recent_attempts(workshop.ledger, stream, limit=1) == (), "all of them are possible, or none is begun"
    delete_days(workshop, "target", end="2013-01-07")
    delete_days(workshop, "days", end="2013-01-07")

    result = backfill(workshop, stream, end="2013-01-07")

    assert [one["id"] for one in workshop.rows("target")] == sorted([700, *(one["id"] for one in expected())])
    assert workshop.rows("days") == counted
    (followed,) = result.followers
    assert followed.key.startswith(f"{reader}/backfill/20130105T0000-20130107T0000/")
    assert followed.key.endswith("/1")
    assert (followed.state, followed.rows["read"], followed.rows["published"]) == (BackfillState.PUBLISHED, 6, 2)
    again = backfill(workshop, stream, end="2013-01-07")
    assert [again.state, *(one.state for one in again.followers)] == [BackfillState.UNCHANGED] * 2


@pytest.mark.full
def test_rows_ahead_of_the_clock_are_part_of_the_balance(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    source = workshop.declare_table("source", COLUMNS)
    workshop.declare_stream(
        name,
        python=TRANSFORM,
        inputs={
            "records": {
                "stream": {"iceberg": {"table": source}},
                "watermark": {"column": "at", "delay": "1 hour", "max_ahead": "1 hour"},
            }
        },
        outputs={"copies": {"iceberg": {"table": workshop.declare_table("target", COLUMNS)}}},
        quarantine=True,
        backfill={"column": "at", "balance": "rows"},
    )
    ahead = {"id": 900, "word": "ahead", "at": datetime.now(UTC) + timedelta(days=365)}
    workshop.append("source", [*rows_of_days()[:-1], row(901, day=2, word="bad"), ahead])
    workshop.run(name)
    workshop.append("source", rows_of_days()[-1:])
    workshop.run(name)
    quarantined = workshop.rows(f"quarantine.{name}")
    assert sorted(one["reason"] == "the word is bad" for one in quarantined) == [False, True]
    delete_days(workshop, "target", end="2013-01-07")

    result = backfill(workshop, name, end="2013-01-07")

    assert workshop.rows("target") == expected()
    assert (result.rows["read"], result.rows["outside"], result.rows["quarantined"]) == (26, 18, 2)
    assert workshop.rows(f"quarantine.{name}") == quarantined


def test_gaps_are_intervals_with_other_rows(workshop: Workshop, stream: str) -> None:
    delete_days(workshop, "target", "2013-01-05", "2013-01-06")
    delete_days(workshop, "target", "2013-01-07", "2013-01-08")
    workshop.append("target", [row(7, day=2, word="forged"), row(70, day=7, word="WORD"), row(8, day=20)])

    report = search_gaps(workshop, stream)

    assert [(gap.interval.start.day, gap.kind, gap.expected_rows, gap.held_rows) for gap in report.gaps] == [
        (2, GapKind.DIFFERENT, 3, 4),
        (5, GapKind.MISSING, 3, 0),
        (7, GapKind.DIFFERENT, 3, 1),
        (20, GapKind.SURPLUS, 0, 1),
    ]
    assert (report.compared, report.table) == (9, workshop.table_name("target"))


def test_a_stream_that_has_published_nothing_has_no_gaps(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    source, target = (workshop.declare_table(table, COLUMNS) for table in ("source", "target"))
    workshop.declare_stream(
        name,
        sql="SELECT * FROM records",
        inputs={"records": {"stream": {"iceberg": {"table": source}}}},
        outputs={"copies": {"iceberg": {"table": target}}},
        backfill={"column": "at"},
    )
    workshop.append("source", [row(1, day=1)])

    report = search_gaps(workshop, name)

    assert (report.has_published, report.compared, report.gaps) == (False, 0, ())


@pytest.mark.full
def test_a_correction_of_the_source_meanwhile_is_computed_too(workshop: Workshop, stream: str) -> None:
    delete_days(workshop, "target")

    def correct() -> None:
        delete_days(workshop, "source", "2013-01-06", "2013-01-07")

    result = backfill(workshop, stream, reached=at_step(CrashPoint.STAGED, correct))

    assert result.key.endswith("/2")
    assert ids_by_duckdb(workshop) == [one["id"] for one in expected() if not 60 <= one["id"] < 70]


@pytest.mark.full
def test_a_correction_of_the_source_is_waited_for(workshop: Workshop, stream: str) -> None:
    """It lies behind rows that the stream has not read yet: the source as the stream has read it is still wrong."""
    workshop.append("source", [row(700, day=1)])
    delete_days(workshop, "source", "2013-01-05", "2013-01-06")

    with pytest.raises(UnpublishableError, match=r"corrected .* after rows that the stream has not read yet"):
        backfill(workshop, stream)

    workshop.run(stream)
    backfill(workshop, stream, allows_fewer=True)
    remaining = [one["id"] for one in expected() if not 50 <= one["id"] < 60]
    assert ids_by_duckdb(workshop) == sorted([700, *remaining])
