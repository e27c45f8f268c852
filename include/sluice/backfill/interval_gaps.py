"""Compares what the sources of a stream give for each interval with what its table holds, and finds the intervals that
differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sluice.backfill.intervals import Interval, IntervalLength, floor_time, rounded_outwards
from sluice.errors import UnhealthyError, UnpublishableError
from sluice.tables.table_observation import RemovedRows

EARLIEST = datetime(1900, 1, 1, tzinfo=UTC)
"""Where a search begins without a start: before any event time that is not a mistake."""

_MOST_NAMED = 5
"""How many intervals a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The number of some rows, and two sums of their hashes: the same for the very same rows, in whatever order."""

    rows: int
    sums: tuple[int, int]

    @classmethod
    def of_no_rows(cls) -> Fingerprint:
        """The fingerprint of an empty interval."""
        return cls(rows=0, sums=(0, 0))


class GapKind(StrEnum):
    """How an interval of the table differs from what the sources give.

    MISSING: the table has no row of it. DIFFERENT: it has other rows. SURPLUS: the sources give none.
    """

    MISSING = "missing"
    DIFFERENT = "different"
    SURPLUS = "surplus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """An interval in which a table does not hold what the sources give. expected_rows: those the sources give."""

    interval: Interval
    kind: GapKind
    expected_rows: int
    held_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GapReport:
    """The result of a search. compared: how many intervals have rows in the table or in the result of the sources.

    has_published: whether the stream has published a batch; before, nothing can be compared.
    returning: the rejected batches whose rows the sources still give, and that are expected because of that.
    """

    stream: str
    table: str
    searched: Interval
    compared: int
    gaps: tuple[Gap, ...]
    has_published: bool = True
    returning: tuple[str, ...] = ()


def find_gaps(expected: Mapping[Interval, Fingerprint], held: Mapping[Interval, Fingerprint]) -> Iterator[Gap]:
    """The intervals that differ, oldest first."""
    nothing = Fingerprint.of_no_rows()
    for interval in sorted({*expected, *held}, key=lambda one: one.start):
        new, old = expected.get(interval, nothing), held.get(interval, nothing)
        if new == old:
            continue
        kind = GapKind.MISSING if not old.rows else GapKind.SURPLUS if not new.rows else GapKind.DIFFERENT
        yield Gap(interval=interval, kind=kind, expected_rows=new.rows, held_rows=old.rows)


def require_no_gaps(report: GapReport) -> None:
    """Check that a search has found nothing.

    Raises
    ------
    UnhealthyError: with the intervals that differ.
    """
    if report.gaps:
        named = "; ".join(
            f"{gap.interval.spoken} is {gap.kind}: {gap.expected_rows:,} rows expected, {gap.held_rows:,} held"
            for gap in report.gaps[:_MOST_NAMED]
        )
        rest = f"; and {len(report.gaps) - _MOST_NAMED} more" if len(report.gaps) > _MOST_NAMED else ""
        raise UnhealthyError(
            f"{len(report.gaps)} of {report.compared} intervals of {report.table} differ from the sources of "
            f"{report.stream}: {named}{rest}.{_rejected(report)}",
            next_step=f"`sluice backfill {report.stream} --gaps` replaces them.",
        )


def _rejected(report: GapReport) -> str:
    if not report.returning:
        return ""
    return (
        f" The sources still give the rows of the batches {', '.join(report.returning)}, which a person rejected: they "
        "count as expected, and a backfill brings them back."
    )


def joined(gaps: Sequence[Gap]) -> tuple[Interval, ...]:
    """The intervals of gaps, oldest first, with those that touch as one."""
    found: list[Interval] = []
    for gap in gaps:
        if found and found[-1].end == gap.interval.start:
            found[-1] = Interval(start=found[-1].start, end=gap.interval.end)
        else:
            found.append(gap.interval)
    return tuple(found)


def searched_interval(
    start: datetime | None, end: datetime | None, *, closed_until: datetime, length: IntervalLength
) -> Interval:
    """What a search looks at, in whole parts: an interval without length when all of it is still open.

    Parameters
    ----------
    start, end: as they were asked for; unset for the earliest row and for `closed_until`.
    closed_until: see `last_closed`.
    """
    until = end or closed_until
    return rounded_outwards(Interval(start=min(start or EARLIEST, until), end=until), length)


def first_complete(complete_after: Sequence[datetime], *, margin: timedelta, length: IntervalLength) -> datetime | None:
    """The start of the first interval whose rows are all left in the sources, and in the table.

    Parameters
    ----------
    complete_after: the time of the oldest record of each topic from which records were removed, and since when tables
        have all rows from which old ones were removed.
    """
    if not complete_after:
        return None
    oldest = max(complete_after) + margin
    return rounded_outwards(Interval(start=oldest, end=oldest + timedelta(microseconds=1)), length).end


def complete_target(removed: RemovedRows | None, *, table: str, column: str) -> datetime | None:
    """Since when a table has all rows that it ever had; unset where it has removed none.

    Parameters
    ----------
    removed: what the table says of rows that it has removed. column: by which its intervals are compared.

    Raises
    ------
    UnpublishableError: when it removes them by another time: of no interval is known then whether it is whole.
    """
    if removed is None:
        return None
    if removed.column != column:
        raise UnpublishableError(
            f"Refused: a search for gaps in {table}. There, {removed}, and its intervals are those of {column}: what "
            "was removed would seem to be missing.",
            next_step=f"Declare `backfill.column: {removed.column}`; until then, compare by hand.",
        )
    return removed.before


def search_start(
    asked: datetime | None,
    *,
    topics: Sequence[datetime],
    tables: Sequence[datetime],
    margin: timedelta,
    length: IntervalLength,
) -> datetime | None:
    """Where a search begins; unset for the earliest row.

    Tables lose old rows all the time, and a search each night asks for the same number of days: it begins behind what
    they have removed, where that is later. What a topic has lost of what was asked for, a person has to know.

    Parameters
    ----------
    asked: the start that was asked for. topics, tables: as `first_complete` has them.
    """
    complete = first_complete(tables if asked else (*topics, *tables), margin=margin, length=length)
    return max((time for time in (asked, complete) if time is not None), default=None)


def last_closed(*, margin: timedelta, length: IntervalLength, now: datetime) -> datetime:
    """The end of the newest interval that is over, with its margin."""
    return floor_time(now - margin, length)
