"""How far windows, joins and shifted times reach beyond an interval, and what is refused for it: from values alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sluice.backfill.intervals import Interval, parse_interval
from sluice.backfill.reach import (
    JOINS_SETTLE,
    SAME,
    PlanReach,
    TimeReach,
    final_end,
    reach_refusals,
    shifted,
    truncated,
    window_end,
    window_start,
    within_range,
)
from sluice.operations import RefusalReason

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
INTERVAL = parse_interval("2013-01-05", "2013-01-06")
TWO_DAYS = window_start(2 * DAY, slide=2 * DAY)
"""From the 5th to the 7th of January 2013, as counted from 1970."""


def at(day: int, hour: int = 0) -> datetime:
    return datetime(2013, 1, 1, hour, tzinfo=UTC) + (day - 1) * DAY


@pytest.mark.parametrize(
    ("reach", "earliest", "latest"),
    [
        (SAME, at(5), at(6)),
        (shifted(3 * HOUR), at(4, 21), at(5, 21)),
        (shifted(-3 * HOUR), at(5, 3), at(6, 3)),
        (window_start(DAY, slide=DAY), at(5), at(6)),
        (window_end(DAY, slide=DAY), at(4), at(5)),
        (window_start(HOUR, slide=HOUR), at(5), at(6)),
        (window_end(HOUR, slide=HOUR), at(4, 23), at(5, 23)),
        (TWO_DAYS, at(5), at(7)),
        (window_end(2 * DAY, slide=2 * DAY), at(3), at(5)),
        (window_start(3 * HOUR, slide=HOUR), at(5), at(6, 2)),
        (window_start(DAY, slide=DAY, offset=6 * HOUR), at(5, 6), at(6, 6)),
        (truncated("hour"), at(5), at(6)),
        (truncated("month"), at(32), at(32)),
        (within_range(-2 * HOUR, 36 * HOUR), at(4, 22), at(7, 12)),
        (TWO_DAYS.joined(SAME), at(5), at(7)),
        (shifted(DAY).after(TWO_DAYS), at(5), at(5)),
        (TWO_DAYS.after(shifted(DAY)), at(4), at(6)),
    ],
)
def test_the_rows_of_an_interval_are_made_of_rows_from_earliest_to_latest(
    reach: TimeReach, earliest: datetime, latest: datetime
) -> None:
    assert (reach.earliest(INTERVAL.start), reach.latest(INTERVAL.end)) == (earliest, latest)


@pytest.mark.parametrize("hours", range(0, 100, 7))
def test_a_window_holds_what_its_bounds_say(hours: int) -> None:
    """Each row of a window lies within the bounds of the window's own start, and of its end."""
    length, slide, offset = 5 * HOUR, 2 * HOUR, HOUR
    row = at(1) + hours * HOUR
    first = at(1) + offset - 10 * slide
    starts = [first + number * slide for number in range(100)]
    for start in (one for one in starts if one <= row < one + length):
        for value, reach in (
            (start, window_start(length, slide=slide, offset=offset)),
            (start + length, window_end(length, slide=slide, offset=offset)),
        ):
            assert reach.earliest(value) <= row < reach.latest(value + timedelta(microseconds=1))


REACH = PlanReach(of_inputs={"records": TWO_DAYS}, keeps_rows=True)
JOINED = PlanReach(
    of_inputs={"records": SAME, "others": within_range(timedelta(0), 36 * HOUR)}, keeps_rows=True, lag=JOINS_SETTLE
)
READS = {"records": "at"}


def refused(
    reach: PlanReach,
    *,
    interval: Interval = INTERVAL,
    reads: Mapping[str, str] | None = None,
    margin: timedelta | None = None,
    watermark: datetime | None = None,
) -> list[tuple[RefusalReason, str]]:
    refusals = reach_refusals(
        reach, interval, stream="counts", column="at", reads=reads or {}, margin=margin, watermark=watermark
    )
    return [(one.reason, f"{one.sentence} {one.next_step}") for one in refusals]


@pytest.mark.parametrize(
    ("reach", "closes_at"),
    [
        (REACH, at(7)),
        (JOINED, at(7, 12) + JOINS_SETTLE),
        (replace(REACH, lag=3 * HOUR), at(7, 3)),
        (PlanReach(of_inputs={"records": window_start(DAY, slide=DAY)}, keeps_rows=True), at(6)),
    ],
)
def test_an_interval_is_open_until_its_windows_and_joins_are_complete(reach: PlanReach, closes_at: datetime) -> None:
    assert refused(reach, watermark=closes_at) == []
    assert refused(replace(reach, keeps_rows=False), watermark=at(1)) == []
    ((reason, sentence),) = refused(reach, watermark=closes_at - timedelta(milliseconds=1))
    assert reason is RefusalReason.OPEN_INTERVAL
    assert f"are complete at {closes_at:%Y-%m-%d %H:%M}" in sentence


def test_a_longer_margin_closes_an_interval_later() -> None:
    assert [reason for reason, _ in refused(REACH, margin=3 * DAY, watermark=at(8))] == [RefusalReason.OPEN_INTERVAL]
    assert refused(REACH, margin=3 * DAY, watermark=at(9)) == []


@pytest.mark.parametrize(
    ("reach", "reads", "needed"),
    [
        (REACH, READS, "1 day"),
        (JOINED, {**READS, "others": "at"}, "36 hours"),
        (PlanReach(of_inputs={"records": shifted(90 * timedelta(minutes=1))}), READS, "90 minutes"),
        (PlanReach(of_inputs={"records": shifted(timedelta(milliseconds=1))}), READS, "1 second"),
    ],
)
def test_a_margin_that_is_too_short_is_refused_with_the_length_that_it_needs(
    reach: PlanReach, reads: Mapping[str, str], needed: str
) -> None:
    ((reason, sentence),) = refused(reach, reads=reads)
    assert reason is RefusalReason.MARGIN_TOO_SHORT
    assert sentence.endswith(
        f"the declared margin is 0 seconds. Declare `margin: {needed}` in `backfill`, or a longer one."
    )
    assert refused(reach, reads=reads, margin=36 * HOUR) == []


UNKNOWN = PlanReach(unknown="a session has no longest length", keeps_rows=True, at_least=2 * HOUR)


def test_where_no_reach_is_known_a_margin_has_to_be_declared() -> None:
    ((reason, sentence),) = refused(UNKNOWN, watermark=at(20))
    assert reason is RefusalReason.REACH_UNKNOWN
    assert "cannot be derived: a session has no longest length. Declare `margin`" in sentence
    assert [reason for reason, _ in refused(replace(UNKNOWN, keeps_rows=False), reads=READS)] == [
        RefusalReason.REACH_UNKNOWN
    ]
    whole = replace(UNKNOWN, keeps_rows=False, at_least=0 * HOUR)
    assert refused(whole) == [], "rows that are read whole and kept nowhere need none"
    assert [reason for reason, _ in refused(UNKNOWN, margin=HOUR)] == [RefusalReason.MARGIN_TOO_SHORT]
    assert refused(UNKNOWN, margin=2 * HOUR, watermark=at(6, 2)) == []
    assert [reason for reason, _ in refused(UNKNOWN, margin=2 * HOUR, watermark=at(6, 1))] == [
        RefusalReason.OPEN_INTERVAL
    ]


def test_an_input_that_is_read_by_another_time_needs_a_declared_margin() -> None:
    reach = PlanReach(of_inputs={"records": SAME}, beside=("records",))

    assert [reason for reason, _ in refused(reach, reads=READS)] == [RefusalReason.MARGIN_TOO_SHORT]
    assert refused(reach, reads=READS, margin=HOUR) == []


@pytest.mark.parametrize(
    ("watermark", "end"), [(at(9), at(9)), (at(8), at(7)), (at(6), at(5)), (at(2), at(3)), (at(30), at(9))]
)
def test_a_search_ends_where_rows_are_final(watermark: datetime, end: datetime) -> None:
    """The windows that begin on the 5th and on the 7th last two days."""
    whole = Interval(start=at(3), end=at(9))

    found = final_end(REACH, whole, length="day", margin=timedelta(0), watermark=watermark)

    assert found == end
    streaming = replace(REACH, keeps_rows=False)
    assert final_end(streaming, whole, length="day", margin=timedelta(0), watermark=watermark) == whole.end
