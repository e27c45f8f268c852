"""Whether a table gets as many rows as usual, by nothing but how many came in each hour.

An hour is compared with the same hour of the last weeks in which rows came, each at today's level, so that a table that
grows is not unusual every day:

    growth(k)    = median of log(1 + rows) - log(1 + rows k weeks before), over the seven days before the hour
    deviation(k) = log(1 + rows) - log(1 + rows k weeks before) - growth(k)
    unusual      : the median deviation is beyond 5 scales, and a third of the rows are missing or too many

The scale is the largest of how much that hour differs between weeks, how much all hours differ from those of the week
before (both as median absolute deviations), the noise of counting (1 / sqrt(rows)), and a twentieth. The same is done
with the sums of 6, 24 and 168 hours: what is missing of a slow or irregular table does not show in an hour.

No rows at all is judged apart: they are missed in each hour in which at least 80 % of the weeks had some. It is unusual
for two hours, when 8 rows are missed and such a pause comes less than once in four weeks. Everything here is pure.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import numpy as np

from sluice.supervision.compared_weeks import (
    COMPARED_WEEKS,
    FEWEST_VALUES,
    FEWEST_WEEKS,
    HISTORY_WEEKS,
    JUDGED_WITH_SHORTER,
    REMEMBERED_HOURS,
    RUNNING_HOURS,
    SCALES,
    SETTLED_HOURS,
    WEEK_HOURS,
    Flags,
    Floats,
    Hours,
    begin_of_open,
    compare_weeks,
    median,
    of_active_weeks,
    sums_of,
    taken,
    two_in_a_row,
)

WINDOWS_HOURS = (1, 6, 24, 168)
"""The sums that are judged, each by itself."""

SHARE = 0.35
"""Of the usual rows, what is missing or too many at least: less is not worth a person's time."""

_FEWEST_MISSED_ROWS = 8
"""Of rows that come by chance, so many fail to come once in 3,000 times."""
_REGULAR = 0.8
_LEAST_SCALE = 0.05


class UnusualKind(StrEnum):
    """What is unusual, in words that follow `rows of TABLE:`."""

    NONE = "no rows"
    FEW = "too few rows"
    MANY = "too many rows"
    REJECTED = "too many rejected rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlyRows:
    """The rows of a table by the hour. begins_at: when the first hour begins; the last one is over.

    rows: that were published into it. rejected: by the streams that write it. They are equally long.
    """

    begins_at: datetime
    rows: Sequence[int]
    rejected: Sequence[int]

    def begin_of(self, hour: int) -> datetime:
        """When an hour of them begins."""
        return self.begins_at + timedelta(hours=hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusualRows:
    """One thing that is unusual about the rows of a table.

    since: when its first unusual hour began. until: when the newest judged hour ended.
    hours: over how many hours before `until` `seen` rows came, where `usual` are. weeks: how many were compared.
    """

    kind: UnusualKind
    since: datetime
    until: datetime
    hours: int
    seen: int
    usual: int
    weeks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsVerdict:
    """What is unusual about the rows of a table now: one for each kind, over the shortest window that shows it.

    is_settled: whether nothing was for the last `SETTLED_HOURS`, or cannot be known.
    """

    unusual: tuple[UnusualRows, ...] = ()
    is_settled: bool = True


@dataclass(frozen=True, slots=True)
class _Judged:
    """A window at some hours, each value beside its hour. excess: above the usual deviation, in logarithms."""

    sums: Floats
    excess: Floats
    bound: Floats
    usual: Floats
    weeks: Hours

    def is_beyond(self, direction: int) -> Flags:
        """Where it is unusual in a direction: 1 for too many, -1 for too few."""
        return self.is_off(direction) & (direction * self.excess > self.bound)

    def is_off(self, direction: int) -> Flags:
        """Where at least `SHARE` is missing, or too much."""
        return np.greater_equal(direction * self.excess, np.log1p(SHARE) if direction > 0 else -np.log1p(-SHARE))


def judge_rows(history: HourlyRows) -> RowsVerdict:
    """Judge the rows of a table at the end of its history; one that is too short says nothing."""
    hours = len(history.rows)
    if hours < FEWEST_WEEKS * WEEK_HOURS:
        return RowsVerdict()
    newest = np.arange(hours - SETTLED_HOURS - RUNNING_HOURS, hours)
    if not any(opened.any() for opened in open_hours(history, newest).values()):
        return RowsVerdict()  # as nearly always: when it began need not be found out
    at = np.arange(hours - REMEMBERED_HOURS, hours)
    opened = open_hours(history, at)
    is_silent = bool(opened[UnusualKind.NONE][-1])
    found = (
        _open_at_end(history, kind, hours, at)
        for kind, hours in opened.items()
        if not (is_silent and kind is UnusualKind.FEW)
    )
    return RowsVerdict(
        unusual=tuple(one for one in found if one is not None),
        is_settled=not any(hours[-SETTLED_HOURS:].any() for hours in opened.values()),
    )


def open_hours(history: HourlyRows, at: Hours) -> Mapping[UnusualKind, Hours]:
    """By kind, over how many hours rows are unusual at the end of each of these hours; 0 where they are not.

    at: numbers of hours, one after the other.
    """
    rows, rejected = (np.asarray(values, dtype=np.float64) for values in (history.rows, history.rejected))
    of_rows = {hours: _judged(rows, at, hours) for hours in WINDOWS_HOURS}
    of_rejected = {hours: _judged(rejected, at, hours) for hours in WINDOWS_HOURS}
    return {
        UnusualKind.NONE: _pauses(rows)[at],
        UnusualKind.FEW: _shortest_open(of_rows, -1),
        UnusualKind.MANY: _shortest_open(of_rows, 1),
        UnusualKind.REJECTED: _shortest_open(of_rejected, 1),
    }


def _judged(counts: Floats, at: Hours, hours: int) -> _Judged:
    sums, until = sums_of(counts, hours)
    logs = np.log1p(sums)
    compared = compare_weeks(logs, at, until=until, is_idle=logs == 0)
    usual = np.maximum(np.expm1(logs[at] - compared.excess), 0.0)
    scale = np.fmax(np.fmax(compared.spread, 1.0 / np.sqrt(np.fmax(usual, 1.0))), _LEAST_SCALE)
    return _Judged(
        sums=sums[at],
        excess=compared.excess,
        bound=SCALES * scale * np.sqrt(1.0 + hours / 24),
        usual=np.where(compared.is_known, usual, 0.0),
        weeks=compared.weeks,
    )


def _shortest_open(judged: Mapping[int, _Judged], direction: int) -> Hours:
    """The hours of the shortest window that is unusual in a direction; 0 where none is."""
    shortest = np.zeros(len(judged[1].sums), dtype=np.int64)
    before: _Judged | None = None
    for hours, window in judged.items():
        is_beyond = window.is_beyond(direction)
        if direction < 0:
            is_beyond &= window.sums > 0  # no rows at all is judged apart
        if before is not None and hours >= JUDGED_WITH_SHORTER:
            is_beyond &= before.is_off(direction) | (before.usual < 1)
        is_open = two_in_a_row(is_beyond)
        shortest = np.where((shortest == 0) & is_open, hours, shortest)
        before = window
    return shortest


def _pauses(rows: Floats) -> Hours:
    """At each hour for how long there are no rows, when such a pause is unusual; 0 where it is not."""
    weeks = np.arange(len(rows))[:, None] - WEEK_HOURS * np.arange(1, HISTORY_WEEKS)
    until = np.concatenate(([0.0], np.cumsum(rows)))
    compared = of_active_weeks(until, weeks, taken(rows, weeks))
    known, usual = np.isfinite(compared).sum(axis=1), np.nan_to_num(median(compared))
    is_regular = (known > 0) & ((compared > 0).sum(axis=1) >= _REGULAR * known)
    found = np.zeros(len(rows), dtype=np.int64)
    pauses: list[tuple[int, int]] = []
    length, missed, since_missed, missed_rows = 0, 0, 0, 0.0
    for hour, came in enumerate(rows > 0):
        if came:
            pauses += [(hour, missed)] * (missed > 0)
            length, missed, since_missed, missed_rows = 0, 0, 0, 0.0
            continue
        length += 1
        missed += int(is_regular[hour])
        since_missed += int(missed > 0)
        missed_rows += usual[hour] * is_regular[hour]
        is_long = since_missed >= RUNNING_HOURS and missed_rows >= _FEWEST_MISSED_ROWS
        is_long = is_long and known[hour] >= FEWEST_VALUES
        if is_long and missed > _usual_pause(pauses, hour, weeks=int(known[hour])):
            found[hour] = length
    return found


def _usual_pause(pauses: Sequence[tuple[int, int]], hour: int, *, weeks: int) -> int:
    """The longest pause that comes more often than once in four weeks."""
    first = bisect.bisect_left(pauses, (hour - COMPARED_WEEKS * WEEK_HOURS, 0))
    longest = sorted((missed for _, missed in pauses[first:]), reverse=True)
    allowed = max(1, weeks // FEWEST_WEEKS)
    return longest[allowed] if len(longest) > allowed else 0


def _open_at_end(history: HourlyRows, kind: UnusualKind, opened: Hours, at: Hours) -> UnusualRows | None:
    """What is unusual of a kind at the end, over the shortest window that shows it; none when nothing is."""
    window = int(opened[-1])
    if not window:
        return None
    counts = history.rejected if kind is UnusualKind.REJECTED else history.rows
    end = len(counts)
    judged = _judged(np.asarray(counts, dtype=np.float64), at[-1:], min(window, WEEK_HOURS))
    begin = end - window if kind is UnusualKind.NONE else begin_of_open(opened, at)
    return UnusualRows(
        kind=kind,
        since=history.begin_of(begin),
        until=history.begin_of(end),
        hours=window,
        seen=int(sum(counts[-window:])),
        usual=round(float(judged.usual[0])),
        weeks=int(judged.weeks[0]),
    )
