"""Which tables are watched, what is added up for them, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sluice.ledger.hourly_rows import HourOfRows, HoursOfStreams
from sluice.supervision.rows_watch import explain, hours_of_table
from sluice.supervision.unusual_rows import HourlyRows, RowsVerdict, UnusualKind, UnusualRows

HOUR = timedelta(hours=1)
ENDS_AT = datetime(2026, 11, 27, 14, tzinfo=UTC)
ONE = HourOfRows(
    stream="flights",
    hour=ENDS_AT - 3 * HOUR,
    batches=2,
    input_rows=12,
    rejected_rows=2,
    published_rows={"rows": 10, "late": 3},
)
FEW = UnusualRows(
    kind=UnusualKind.FEW,
    since=ENDS_AT - 2 * HOUR,
    until=ENDS_AT,
    hours=1,
    seen=412,
    usual=1030,
    weeks=8,
)


def test_the_rows_of_all_writers_are_added_up_by_the_hour() -> None:
    other = replace(ONE, stream="others", hour=ENDS_AT - HOUR, published_rows={"out": 7})
    foreign = replace(ONE, stream="foreign", hour=ENDS_AT - 9 * HOUR)
    hours = HoursOfStreams(ends_at=ENDS_AT, hours=(foreign, ONE, other))

    found = hours_of_table(hours, [("flights", "rows"), ("others", "out")])

    assert found == HourlyRows(begins_at=ENDS_AT - 3 * HOUR, rows=[10, 0, 7], rejected=[2, 0, 2])
    both = hours_of_table(hours, [("flights", "rows"), ("flights", "late")])
    assert (both.rows, both.rejected) == ([13, 0, 0], [2, 0, 0]), "a stream rejects a row once"
    assert hours_of_table(hours, [("silent", "rows")]) == HourlyRows(begins_at=ENDS_AT, rows=[], rejected=[])


def test_an_incident_says_what_since_when_and_compared_with_what() -> None:
    silent = replace(FEW, kind=UnusualKind.NONE, hours=3, since=ENDS_AT - 3 * HOUR, seen=0, usual=3100)
    rejected = replace(FEW, kind=UnusualKind.REJECTED, hours=6, seen=90, usual=4)
    compared = "of 8 weeks, at the level of the last seven days."

    assert explain(RowsVerdict(unusual=(FEW,), is_settled=False)) == (
        "Too few rows since 2026-11-27 12:00 UTC: 412 in the hour up to 14:00 UTC, where 1,030 are usual in the same "
        f"hour {compared}"
    )
    assert explain(RowsVerdict(unusual=(silent, rejected), is_settled=False)) == (
        f"No rows since 2026-11-27 11:00 UTC, where 3,100 are usual in the same hours {compared} "
        "Too many rejected rows since 2026-11-27 12:00 UTC: 90 in the 6 hours up to 14:00 UTC, where 4 are usual in "
        f"the same hours {compared}"
    )
    assert explain(RowsVerdict(is_settled=False)) == (
        "As many rows come as usual again. It is over when they do for 6 hours."
    )
