"""Intervals of event time, in UTC: their boundaries, their names, how a longer one is divided, which touch, and which
streams follow the backfills of another one: they read its table, and their intervals come next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Literal, TypeVar

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.declarations.source_declarations import IcebergSource
from sluice.errors import UsageError

IntervalLength = Literal["hour", "day", "month"]
"""The length of one interval, as a declaration names it."""

Wanted = TypeVar("Wanted")

_MICROSECOND = timedelta(microseconds=1)

_FORM = "%Y%m%dT%H%M"

FIRST_YEAR, LAST_YEAR = 1970, 2200
"""The years of the times that a person may name. Arithmetic with zones and margins never leaves what Python, Spark and
Iceberg can hold."""

MOST_PARTS = 100_000
"""How many parts an interval has at most: eleven years of hours. Each becomes an object, and a run of Airflow."""

_LANE = "backfill"
"""The second part of the publication key of a backfill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The times from `start` up to and without `end`, both in UTC."""

    start: datetime
    end: datetime

    def __str__(self) -> str:
        return f"{self.start:{_FORM}}-{self.end:{_FORM}}"

    @property
    def spoken(self) -> str:
        """The interval for a person."""
        return f"{self.start:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M} UTC"

    def overlaps(self, other: Interval) -> bool:
        """Whether a time lies in both."""
        return self.start < other.end and other.start < self.end

    def widened(self, margin: timedelta) -> Interval:
        """The interval with a margin before and after it."""
        return Interval(start=self.start - margin, end=self.end + margin)

    def with_neighbours(self, length: IntervalLength) -> Interval:
        """The interval with the hour, day or month before and after it. It begins and ends where one does."""
        return Interval(start=floor_time(self.start - _MICROSECOND, length), end=_next(self.end, length))


def publication_key(stream: str, interval: Interval, *, identity: str, attempt: int) -> str:
    """The publication key of an attempt to backfill an interval: no other commit has it.

    Parameters
    ----------
    identity: of the attempt, also after the ledger was restored; its number is then given again.
    """
    return f"{stream}/{_LANE}/{interval}/{identity}/{attempt}"


def of_publication_key(key: str) -> tuple[str, Interval]:
    """The stream and the interval of a publication key of a backfill."""
    stream, _, interval, _, _ = key.split("/")
    start, end = (datetime.strptime(time, _FORM).replace(tzinfo=UTC) for time in interval.split("-"))
    return stream, Interval(start=start, end=end)


def name_part(interval: Interval) -> str:
    """The interval as a part of a table's name."""
    return str(interval).replace("-", "_").lower()


def of_name_part(text: str) -> Interval | None:
    """The interval of such a part; none when the text is none."""
    try:
        start, end = (datetime.strptime(time, _FORM).replace(tzinfo=UTC) for time in text.upper().split("_"))
    except ValueError:
        return None
    return Interval(start=start, end=end)


def parse_interval(start: str, end: str) -> Interval:
    """Read an interval from two times in ISO 8601; a time without an offset is UTC.

    Raises
    ------
    UsageError: when one is not a time, or the end is not after the start.
    """
    interval = Interval(start=parse_time(start), end=parse_time(end))
    if interval.end <= interval.start:
        raise UsageError(f"The interval ends at {end}, which is not after its start, {start}.")
    return interval


def count_parts(interval: Interval, length: IntervalLength) -> int:
    """How many hours, days or months an interval is, those that are begun included; without making any of them."""
    if length == "month":
        months = [12 * time.year + time.month for time in (interval.start, interval.end)]
        return months[1] - months[0] + (interval.end != floor_time(interval.end, "month"))
    return -(-(interval.end - interval.start) // (timedelta(hours=1) if length == "hour" else timedelta(days=1)))


def divide(interval: Interval, length: IntervalLength, *, at_most: int = MOST_PARTS) -> tuple[Interval, ...]:
    """The hours, days or months of an interval, oldest first.

    Raises
    ------
    UsageError: when it does not start and end at a boundary of such a part, or has more parts than are allowed.
    """
    if (count := count_parts(interval, length)) > at_most:
        raise UsageError(
            f"{interval.spoken} is {count:,} {length}s; {at_most:,} are allowed at most.",
            next_step="Choose a shorter interval, and several if need be.",
        )
    for time in (interval.start, interval.end):
        if time != floor_time(time, length):
            raise UsageError(
                f"The interval of a run is a {length} in UTC, and {time:%Y-%m-%d %H:%M} is inside one.",
                next_step=f"Start and end at a {length}, for example {floor_time(time, length):%Y-%m-%dT%H:%M}.",
            )
    return tuple(_parts(interval, length))


def rounded_outwards(interval: Interval, length: IntervalLength) -> Interval:
    """The shortest interval of whole hours, days or months that contains an interval."""
    last = floor_time(interval.end, length)
    return Interval(start=floor_time(interval.start, length), end=last if last == interval.end else _next(last, length))


def _parts(interval: Interval, length: IntervalLength) -> Iterator[Interval]:
    start = interval.start
    while start < interval.end:
        end = _next(start, length)
        yield Interval(start=start, end=end)
        start = end


def floor_time(time: datetime, length: IntervalLength) -> datetime:
    """The start of the hour, day or month of a time in UTC."""
    hour = time.replace(minute=0, second=0, microsecond=0)
    if length == "hour":
        return hour
    day = hour.replace(hour=0)
    return day if length == "day" else day.replace(day=1)


def _next(start: datetime, length: IntervalLength) -> datetime:
    if length == "month":
        return start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return start + (timedelta(hours=1) if length == "hour" else timedelta(days=1))


def parse_time(text: str) -> datetime:
    """Read a time in ISO 8601; without an offset it is UTC.

    Raises
    ------
    UsageError: when the text is not such a time, or not of the years 1970 to 2200.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not a time in ISO 8601, for example 2013-01-05 or 2013-01-05T06:00.") from error
    found = _in_utc(time)
    if not FIRST_YEAR <= found.year <= LAST_YEAR:
        raise UsageError(f"{text} is a time outside of the years {FIRST_YEAR} to {LAST_YEAR}.")
    return found


def _in_utc(time: datetime) -> datetime:
    """The time in UTC; one that Python cannot move there stays as it is, far outside of what is allowed."""
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError:
        return time.replace(tzinfo=UTC)


def together(wanted: Sequence[Wanted], *, interval_of: Callable[[Wanted], Interval], most: int) -> list[list[Wanted]]:
    """Divide what is wanted into groups, in each of which every interval begins where another one ends.

    Parameters
    ----------
    wanted: in the order of their requests, which a group keeps.
    most: how many a group has at most.
    """
    intervals, groups = [interval_of(one) for one in wanted], list[list[int]]()
    for number in sorted(range(len(wanted)), key=lambda number: intervals[number].start):
        if groups and len(groups[-1]) < most and intervals[groups[-1][-1]].end == intervals[number].start:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [[wanted[number] for number in sorted(group)] for group in groups]


def spanned(intervals: Sequence[Interval]) -> Interval:
    """The interval from the first start to the last end."""
    return Interval(start=min(one.start for one in intervals), end=max(one.end for one in intervals))


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """A stream whose interval is computed again after that of a stream whose table it reads."""

    stream: LoadedStream
    interval: Interval


def followers_of(declarations: Declarations, stream: LoadedStream, interval: Interval) -> tuple[Follower, ...]:
    """The streams that follow a backfill of an interval, each after the one that it follows.

    The interval of a follower is that of the source and its own margin before and after it, in whole parts of its own
    length: rows of the source in the interval count for no other.
    """
    found: dict[str, Follower] = {}
    _add_followers(declarations, stream, interval, found)
    return tuple(found.values())


def declarations_digest(declarations: Declarations, stream: LoadedStream, interval: Interval) -> str:
    """SHA-256, in hexadecimal, of the declarations that compute an interval: of the stream and of those that follow it.

    It is the same for each part of an interval, so that each run of a backfill can be held to what a person agreed to.
    """
    computing = {stream.name: stream.digest}
    computing |= {one.stream.name: one.stream.digest for one in followers_of(declarations, stream, interval)}
    return sha256("".join(f"{name} {digest}\n" for name, digest in sorted(computing.items())).encode()).hexdigest()


def _add_followers(
    declarations: Declarations, stream: LoadedStream, interval: Interval, found: dict[str, Follower]
) -> None:
    for reader in _following_readers(declarations, stream):
        backfill = reader.declaration.backfill
        if backfill is None or reader.name == stream.name or reader.name in found:
            continue
        own = rounded_outwards(interval.widened(backfill.margin or timedelta(0)), backfill.interval)
        found[reader.name] = Follower(stream=reader, interval=own)
        _add_followers(declarations, reader, own, found)


def _following_readers(declarations: Declarations, stream: LoadedStream) -> Iterator[LoadedStream]:
    written = set(stream.declaration.tables_written)
    for _, reader in sorted(declarations.streams.items()):
        follows = reader.declaration.backfill.follows if reader.declaration.backfill is not None else ()
        for name in follows:
            declared = reader.declaration.inputs.get(name)
            source = declared.declared_source.source if declared is not None else None
            if isinstance(source, IcebergSource) and source.table in written:
                yield reader
