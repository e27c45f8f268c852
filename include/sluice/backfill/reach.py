"""How far the rows of a result lie from the rows that they are made of: windows, joins of streams and shifted times.

A row of an interval is final only when nothing that it is made of can arrive any more, and it is right only when all
that it is made of was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sluice.backfill.intervals import Interval, IntervalLength, floor_time, rounded_outwards
from sluice.operations import Refusal, RefusalReason

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

JOINS_SETTLE = timedelta(milliseconds=1)
"""Spark compares the kept rows of a join with its watermark in whole milliseconds, rounded against them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeReach:
    """How a time of the result follows from the times of the rows that it is made of.

    earliest: the time before which no such row lies, when the result is at `t` or later. latest: the time from which on
        no such row lies, when the result is before `t`.
    """

    earliest: Callable[[datetime], datetime]
    latest: Callable[[datetime], datetime]

    def after(self, inner: TimeReach) -> TimeReach:
        """The reach of a time that follows from one that follows from the rows as `inner` says."""
        return TimeReach(
            earliest=lambda t: inner.earliest(self.earliest(t)), latest=lambda t: inner.latest(self.latest(t))
        )

    def joined(self, other: TimeReach) -> TimeReach:
        """The reach of a time that is one of two."""
        return TimeReach(
            earliest=lambda t: min(self.earliest(t), other.earliest(t)),
            latest=lambda t: max(self.latest(t), other.latest(t)),
        )


SAME = TimeReach(earliest=lambda t: t, latest=lambda t: t)
"""The time of the row itself."""


def shifted(by: timedelta) -> TimeReach:
    """A time that is later than another one, always by the same."""
    return TimeReach(earliest=lambda t: t - by, latest=lambda t: t - by)


def within_range(low: timedelta, high: timedelta) -> TimeReach:
    """A time whose rows lie from `low` to `high` after it; both may be negative."""
    return TimeReach(earliest=lambda t: t + low, latest=lambda t: t + high)


def window_start(length: timedelta, *, slide: timedelta, offset: timedelta = timedelta(0)) -> TimeReach:
    """The start of a window; a window starts each `slide`, the first of them `offset` after 1970."""

    def floor(t: datetime) -> datetime:
        return _EPOCH + offset + (t - _EPOCH - offset) // slide * slide

    def ceiling(t: datetime) -> datetime:
        start = floor(t)
        return start if start == t else start + slide

    return TimeReach(earliest=ceiling, latest=lambda t: floor(t - _MICROSECOND) + length)


def window_end(length: timedelta, *, slide: timedelta, offset: timedelta = timedelta(0)) -> TimeReach:
    """The end of a window."""
    return shifted(length).after(window_start(length, slide=slide, offset=offset))


def truncated(length: IntervalLength) -> TimeReach:
    """The start of the hour, day or month of a time."""

    def whole(t: datetime) -> Interval:
        return rounded_outwards(Interval(start=t, end=t + _MICROSECOND), length)

    return TimeReach(
        earliest=lambda t: t if floor_time(t, length) == t else whole(t).end,
        latest=lambda t: whole(t - _MICROSECOND).end,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReach:
    """How far the result of a stream reaches, as its analysed plan says.

    of_inputs: by input, from the time of its rows (its watermark, or the column of `reads`) to the interval's column.
    unknown: why that cannot be derived, as a sentence; empty when it can. beside: the inputs that are read by another
        column than that of their watermark.
    keeps_rows: whether windows or joins of streams publish rows later than those that they are made of.
    lag: how much later than their own time rows reach the topmost of these steps.
    at_least: what a declared margin must cover at least, when no reach is derived.
    """

    of_inputs: Mapping[str, TimeReach] = field(default_factory=dict)
    unknown: str = ""
    beside: tuple[str, ...] = ()
    keeps_rows: bool = False
    lag: timedelta = timedelta(0)
    at_least: timedelta = timedelta(0)

    def closes_at(self, interval: Interval, margin: timedelta) -> datetime:
        """The watermark at which the rows of an interval are final."""
        latest = [one.latest(interval.end) + self.lag for one in self.of_inputs.values()] if self.keeps_rows else []
        return max(interval.end + margin, *latest) if latest else interval.end + margin

    def margin_of(self, interval: Interval, name: str) -> timedelta:
        """How far before and after an interval the rows of an input lie that it is made of."""
        reach = self.of_inputs.get(name, SAME)
        before, after = interval.start - reach.earliest(interval.start), reach.latest(interval.end) - interval.end
        return max(before, after, timedelta(0))


def reach_refusals(
    reach: PlanReach,
    interval: Interval,
    *,
    stream: str,
    column: str,
    reads: Mapping[str, str],
    margin: timedelta | None,
    watermark: datetime | None,
) -> Iterator[Refusal]:
    """What keeps an interval from being computed as its stream does: a margin that is too short, a window that is open.

    Parameters
    ----------
    column: by which the target has intervals. reads, margin: as declared. watermark: of the newest published batch.
    """
    if reach.unknown and margin is None and (reach.keeps_rows or reads):
        yield Refusal(
            reason=RefusalReason.REACH_UNKNOWN,
            sentence=f"How far the rows of an interval of {stream} lie from those that they are made of cannot be "
            f"derived: {reach.unknown}.",
            next_step=f"Declare `margin` in `backfill`: the longest time between {column} of a result and a row that "
            "it is made of.",
        )
        return
    yield from _short_margins(reach, interval, stream=stream, reads=reads, margin=margin)
    closes_at = reach.closes_at(interval, margin or timedelta(0))
    if watermark is not None and reach.keeps_rows and watermark < closes_at:
        yield Refusal(
            reason=RefusalReason.OPEN_INTERVAL,
            sentence=f"The watermark of {stream} is {watermark:%Y-%m-%d %H:%M}; the windows and joins of the interval "
            f"{interval.spoken} are complete at {closes_at:%Y-%m-%d %H:%M}, and until then the stream publishes rows "
            "of it.",
            next_step="Choose an earlier interval, or wait.",
        )


def final_end(
    reach: PlanReach, interval: Interval, *, length: IntervalLength, margin: timedelta, watermark: datetime | None
) -> datetime:
    """The end of the newest hour, day or month of an interval whose rows are final; its start when there is none. Rows
    that no step keeps are final as soon as they are published."""
    if watermark is None or not reach.keeps_rows:
        return interval.end
    newest = rounded_outwards(Interval(start=watermark, end=watermark + _MICROSECOND), length).end
    end = max(interval.start, min(interval.end, newest))
    while interval.start < end:
        if reach.closes_at(Interval(start=interval.start, end=end), margin) <= watermark:
            break
        end = floor_time(end - _MICROSECOND, length)
    return end


def _short_margins(
    reach: PlanReach, interval: Interval, *, stream: str, reads: Mapping[str, str], margin: timedelta | None
) -> Iterator[Refusal]:
    declared = margin or timedelta(0)
    for name in reads:
        if name in reach.beside and margin is None:
            yield Refusal(
                reason=RefusalReason.MARGIN_TOO_SHORT,
                sentence=f"Input {name} of {stream} is read by {reads[name]}, which is not the time of its watermark.",
                next_step="Declare `margin` in `backfill`: how far the two lie apart at most.",
            )
        needed = max(reach.margin_of(interval, name), reach.at_least)
        if needed > declared:
            yield Refusal(
                reason=RefusalReason.MARGIN_TOO_SHORT,
                sentence=f"The rows of {interval.spoken} of {stream} are made of rows of input {name} that lie up to "
                f"{_declared(needed)} before or after it, and the declared margin is {_declared(declared)}.",
                next_step=f"Declare `margin: {_declared(needed)}` in `backfill`, or a longer one.",
            )
    if not reads and reach.at_least > declared:
        yield Refusal(
            reason=RefusalReason.MARGIN_TOO_SHORT,
            sentence=f"A session of {stream} stays open for {_declared(reach.at_least)} after its last row, and the "
            f"declared margin is {_declared(declared)}.",
            next_step=f"Declare `margin` in `backfill`: the longest session, at least {_declared(reach.at_least)}.",
        )


_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))


def _declared(duration: timedelta) -> str:
    """A duration as a declaration writes it, in its longest whole unit; a part of a second counts as one."""
    seconds = -(-duration // timedelta(seconds=1))
    name, unit = next((one for one in _UNITS if seconds and seconds % one[1] == 0), ("second", 1))
    return f"{seconds // unit} {name}{'' if seconds == unit else 's'}"
