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
from numpy.typing import NDArray

WINDOWS_HOURS = (1, 6, 24, 168)
"""The sums that are judged, each by itself."""

WEEK_HOURS = 168
COMPARED_WEEKS = 8
FEWEST_WEEKS = 4
"""With less history nothing is judged: a weekend has come three times at most."""

HISTORY_WEEKS = 14
"""How far back weeks with rows are looked for, with one week more for the level of the oldest."""

SCALES = 5.0
SHARE = 0.35
"""Of the usual rows, what is missing or too many at least: less is not worth a person's time."""

_RUNNING_HOURS = 2
"""So many hours in a row begin an incident, and as many usual ones end it."""

SETTLED_HOURS = 6
"""So long all must be usual again: a holiday is one incident, and not one in the morning and another in the evening."""

_FEWEST_VALUES = 3
_FEWEST_HOURS = 24
"""Of a week, in which rows came: with fewer its growth is unknown."""
_FEWEST_MISSED_ROWS = 8
"""Of rows that come by chance, so many fail to come once in 3,000 times."""
_REGULAR = 0.8
_LEAST_SCALE = 0.05
_REMEMBERED_HOURS = 96
"""How long ago an incident may have begun: after half a week the level is that of the new rows."""
_JUDGED_WITH_SHORTER = 24
"""A window of at least so many hours says nothing once the next shorter one is usual again: it remembers for long."""

_Floats = NDArray[np.float64]
_Hours = NDArray[np.int64]


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

    sums: _Floats
    excess: _Floats
    bound: _Floats
    usual: _Floats
    weeks: _Hours

    def is_beyond(self, direction: int) -> NDArray[np.bool_]:
        """Where it is unusual in a direction: 1 for too many, -1 for too few."""
        return self.is_off(direction) & (direction * self.excess > self.bound)

    def is_off(self, direction: int) -> NDArray[np.bool_]:
        """Where at least `SHARE` is missing, or too much."""
        return np.greater_equal(direction * self.excess, np.log1p(SHARE) if direction > 0 else -np.log1p(-SHARE))


def judge_rows(history: HourlyRows) -> RowsVerdict:
    """Judge the rows of a table at the end of its history; one that is too short says nothing."""
    hours = len(history.rows)
    if hours < FEWEST_WEEKS * WEEK_HOURS:
        return RowsVerdict()
    newest = np.arange(hours - SETTLED_HOURS - _RUNNING_HOURS, hours)
    if not any(opened.any() for opened in open_hours(history, newest).values()):
        return RowsVerdict()  # as nearly always: when it began need not be found out
    at = np.arange(hours - _REMEMBERED_HOURS, hours)
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


def open_hours(history: HourlyRows, at: _Hours) -> Mapping[UnusualKind, _Hours]:
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


def _judged(counts: _Floats, at: _Hours, hours: int) -> _Judged:
    until = np.concatenate(([0.0], np.cumsum(counts)))
    sums = np.full(len(counts), np.nan)
    sums[hours - 1 :] = until[hours:] - until[: len(until) - hours]
    logs = np.log1p(sums)
    weeks = at[:, None] - WEEK_HOURS * np.arange(1, HISTORY_WEEKS)
    growth, noise = _growth(logs, at)
    deviations = _of_active_weeks(until, weeks, logs[at][:, None] - _taken(logs, weeks) - growth)
    excess = _median(deviations)
    usual = np.maximum(np.expm1(logs[at] - excess), 0.0)
    # The deviations of a few weeks may be small by chance; those of all hours of the last week are many.
    spread = np.fmax(_median(np.abs(deviations - excess[:, None])), noise)
    scale = np.fmax(np.fmax(spread, 1.0 / np.sqrt(np.fmax(usual, 1.0))), _LEAST_SCALE)
    known = np.isfinite(deviations).sum(axis=1)
    is_known = known >= _FEWEST_VALUES
    return _Judged(
        sums=sums[at],
        excess=np.where(is_known, excess, 0.0),
        bound=SCALES * scale * np.sqrt(1.0 + hours / 24),
        usual=np.where(is_known, usual, 0.0),
        weeks=known,
    )


def _growth(logs: _Floats, at: _Hours) -> tuple[_Floats, _Floats]:
    """How much the sums of the seven days before have grown since each of the weeks before, and how much their hours
    differ from those of the week before, of which each has a half."""
    hours = at[:, None] - np.arange(1, WEEK_HOURS + 1)
    changes = [_changes(logs, hours, WEEK_HOURS * week) for week in range(1, HISTORY_WEEKS)]
    growth = np.stack([_median(change, fewest=_FEWEST_HOURS) for change in changes], axis=1)
    return growth, _median(np.abs(changes[0] - growth[:, :1])) / np.sqrt(2.0)


def _changes(logs: _Floats, hours: _Hours, before: int) -> _Floats:
    """How much more came in each hour than so many hours before; unknown where none came in either, as at night, and
    where the earlier ones are not all recorded."""
    newest, earlier = _taken(logs, hours), _taken(logs, hours - before)
    is_recorded = hours[:, -1:] >= before
    return np.where(is_recorded & ((newest > 0) | (earlier > 0)), newest - earlier, np.nan)


def _of_active_weeks(until: _Floats, weeks: _Hours, values: _Floats) -> _Floats:
    """The values of the newest weeks in which rows came; NaN for the others. A table may have paused for a month.

    until: how many rows came before each hour. weeks: the last hour of each.
    """
    ends = np.clip(weeks + 1, 0, len(until) - 1)
    is_active = until[ends] > until[np.clip(ends - WEEK_HOURS, 0, None)]
    is_active &= np.isfinite(values)
    return np.where(is_active & (np.cumsum(is_active, axis=1) <= COMPARED_WEEKS), values, np.nan)


def _taken(values: _Floats, at: _Hours) -> _Floats:
    return np.where(at >= 0, values[np.clip(at, 0, None)], np.nan)


def _median(values: _Floats, *, fewest: int = 1) -> _Floats:
    """The median of each row, without what is unknown; unknown of too few values."""
    known = np.isfinite(values).sum(axis=1)
    ordered = np.sort(values, axis=1)  # what is unknown comes last
    row = np.arange(len(ordered))
    low, high = np.clip((known - 1) // 2, 0, None), np.clip(known // 2, 0, values.shape[1] - 1)
    return np.where(known >= fewest, (ordered[row, low] + ordered[row, high]) / 2, np.nan)


def _shortest_open(judged: Mapping[int, _Judged], direction: int) -> _Hours:
    """The hours of the shortest window that is unusual in a direction; 0 where none is."""
    shortest = np.zeros(len(judged[1].sums), dtype=np.int64)
    before: _Judged | None = None
    for hours, window in judged.items():
        is_beyond = window.is_beyond(direction)
        if direction < 0:
            is_beyond &= window.sums > 0  # no rows at all is judged apart
        if before is not None and hours >= _JUDGED_WITH_SHORTER:
            is_beyond &= before.is_off(direction) | (before.usual < 1)
        is_open = _two_in_a_row(is_beyond)
        shortest = np.where((shortest == 0) & is_open, hours, shortest)
        before = window
    return shortest


def _two_in_a_row(is_beyond: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where an incident is open that two hours in a row begin and two others end."""
    is_open, found = False, np.zeros(len(is_beyond), dtype=np.bool_)
    for hour in range(len(is_beyond)):
        last = is_beyond[max(hour - _RUNNING_HOURS + 1, 0) : hour + 1]
        is_open = bool(last.any()) if is_open else len(last) == _RUNNING_HOURS and bool(last.all())
        found[hour] = is_open
    return found


def _pauses(rows: _Floats) -> _Hours:
    """At each hour for how long there are no rows, when such a pause is unusual; 0 where it is not."""
    weeks = np.arange(len(rows))[:, None] - WEEK_HOURS * np.arange(1, HISTORY_WEEKS)
    until = np.concatenate(([0.0], np.cumsum(rows)))
    compared = _of_active_weeks(until, weeks, _taken(rows, weeks))
    known, usual = np.isfinite(compared).sum(axis=1), np.nan_to_num(_median(compared))
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
        is_long = since_missed >= _RUNNING_HOURS and missed_rows >= _FEWEST_MISSED_ROWS
        is_long = is_long and known[hour] >= _FEWEST_VALUES
        if is_long and missed > _usual_pause(pauses, hour, weeks=int(known[hour])):
            found[hour] = length
    return found


def _usual_pause(pauses: Sequence[tuple[int, int]], hour: int, *, weeks: int) -> int:
    """The longest pause that comes more often than once in four weeks."""
    first = bisect.bisect_left(pauses, (hour - COMPARED_WEEKS * WEEK_HOURS, 0))
    longest = sorted((missed for _, missed in pauses[first:]), reverse=True)
    allowed = max(1, weeks // FEWEST_WEEKS)
    return longest[allowed] if len(longest) > allowed else 0


def _open_at_end(history: HourlyRows, kind: UnusualKind, opened: _Hours, at: _Hours) -> UnusualRows | None:
    """What is unusual of a kind at the end, over the shortest window that shows it; none when nothing is."""
    window = int(opened[-1])
    if not window:
        return None
    counts = history.rejected if kind is UnusualKind.REJECTED else history.rows
    end = len(counts)
    judged = _judged(np.asarray(counts, dtype=np.float64), at[-1:], min(window, WEEK_HOURS))
    if kind is UnusualKind.NONE:
        begin = end - window
    else:
        usual = np.flatnonzero(opened == 0)
        first = at[0] if len(usual) == 0 else at[usual[-1] + 1]
        begin = max(int(first) - _RUNNING_HOURS + 1, 0)
    return UnusualRows(
        kind=kind,
        since=history.begin_of(begin),
        until=history.begin_of(end),
        hours=window,
        seen=int(sum(counts[-window:])),
        usual=round(float(judged.usual[0])),
        weeks=int(judged.weeks[0]),
    )
