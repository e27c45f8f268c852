"""Which intervals of a table differ from what its sources give, from fingerprints alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sluice.backfill.interval_gaps import (
    Fingerprint,
    Gap,
    GapKind,
    GapReport,
    complete_target,
    find_gaps,
    joined,
    last_closed,
    require_no_gaps,
    search_start,
    searched_interval,
)
from sluice.backfill.intervals import Interval, divide, parse_interval
from sluice.errors import UnhealthyError, UnpublishableError
from sluice.tables.table_observation import RemovedRows

DAYS = divide(parse_interval("2013-01-01", "2013-01-07"), "day")


def rows(number: int, total: int = 1) -> Fingerprint:
    """Some rows, and their sums."""
    return Fingerprint(rows=number, sums=(total, total))


def test_intervals_that_differ_are_found_in_order() -> None:
    expected = {
        DAYS[4]: rows(3),
        DAYS[0]: rows(3),
        DAYS[1]: rows(3),
        DAYS[2]: rows(3, 1),
        DAYS[5]: rows(2),
    }
    held = {
        DAYS[0]: rows(3),
        DAYS[2]: rows(3, 2),
        DAYS[3]: rows(7),
        DAYS[4]: rows(2),
        DAYS[5]: rows(2),
    }

    gaps = list(find_gaps(expected, held))

    assert gaps == [
        Gap(interval=DAYS[1], kind=GapKind.MISSING, expected_rows=3, held_rows=0),
        Gap(interval=DAYS[2], kind=GapKind.DIFFERENT, expected_rows=3, held_rows=3),
        Gap(interval=DAYS[3], kind=GapKind.SURPLUS, expected_rows=0, held_rows=7),
        Gap(interval=DAYS[4], kind=GapKind.DIFFERENT, expected_rows=3, held_rows=2),
    ]
    assert joined(gaps) == (Interval(start=DAYS[1].start, end=DAYS[4].end),)
    assert joined([gaps[0], gaps[2]]) == (DAYS[1], DAYS[3])
    assert joined([]) == ()


def test_gaps_are_named_and_a_report_without_them_is_healthy() -> None:
    report = GapReport(
        stream="s", table="silver.s", searched=parse_interval("2013-01-01", "2013-01-07"), compared=6, gaps=()
    )
    require_no_gaps(report)
    gap = Gap(interval=DAYS[0], kind=GapKind.MISSING, expected_rows=3, held_rows=0)

    with pytest.raises(UnhealthyError, match=r"6 of 6 intervals .* 00:00 UTC is missing: 3 rows .*; and 1 more\."):
        require_no_gaps(replace(report, gaps=(gap,) * 6))


@pytest.mark.parametrize(
    ("margin", "expected"),
    [(timedelta(0), datetime(2013, 1, 9, tzinfo=UTC)), (timedelta(hours=13), datetime(2013, 1, 8, tzinfo=UTC))],
)
def test_the_newest_interval_that_is_over(margin: timedelta, expected: datetime) -> None:
    assert last_closed(margin=margin, length="day", now=datetime(2013, 1, 9, 12, tzinfo=UTC)) == expected


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, "19000101T0000-20130105T0000"),
        (datetime(2013, 1, 2, 7, tzinfo=UTC), None, "20130102T0000-20130105T0000"),
        (None, datetime(2013, 1, 2, 7, tzinfo=UTC), "19000101T0000-20130103T0000"),
        (datetime(2026, 11, 15, 3, tzinfo=UTC), None, "20130105T0000-20130105T0000"),
    ],
    ids=["everything closed", "from a time", "up to a time", "from a time that is still open"],
)
def test_a_search_looks_at_whole_closed_intervals(start: datetime | None, end: datetime | None, expected: str) -> None:
    closed = datetime(2013, 1, 5, tzinfo=UTC)

    assert str(searched_interval(start, end, closed_until=closed, length="day")) == expected


NIGHT, REMOVAL = datetime(2013, 1, 9, tzinfo=UTC), datetime(2013, 1, 10, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("asked", "topics", "tables", "expected"),
    [
        (None, (), (), None),
        (NIGHT, (), (), NIGHT),
        (NIGHT, (), (REMOVAL,), datetime(2013, 1, 11, tzinfo=UTC)),
        (NIGHT + timedelta(days=5), (), (REMOVAL,), NIGHT + timedelta(days=5)),
        (NIGHT, (REMOVAL,), (), NIGHT),
        (None, (REMOVAL,), (NIGHT,), datetime(2013, 1, 11, tzinfo=UTC)),
    ],
    ids=[
        "all",
        "asked",
        "behind what tables have removed",
        "already behind",
        "a topic's loss is not hidden",
        "the later",
    ],
)
def test_a_search_begins_behind_what_tables_have_removed(
    asked: datetime | None, topics: tuple[datetime, ...], tables: tuple[datetime, ...], expected: datetime | None
) -> None:
    """A search each night asks for the last eight days, whatever the tables still have."""
    start = search_start(asked, topics=topics, tables=tables, margin=timedelta(0), length="day")
    assert start == expected


def test_a_table_that_removes_rows_by_another_time_is_not_searched() -> None:
    removed = RemovedRows(column="at", before=REMOVAL)
    assert complete_target(None, table="silver.flights", column="at") is None
    assert complete_target(removed, table="silver.flights", column="at") == REMOVAL
    with pytest.raises(UnpublishableError, match="its intervals are those of arrived_at") as refused:
        complete_target(removed, table="silver.flights", column="arrived_at")
    assert str(refused.value.next_step).startswith("Declare `backfill.column: at`"), "no other way is left"
