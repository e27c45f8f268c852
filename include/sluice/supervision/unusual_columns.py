"""Whether a column of a table has as many nulls as usual, and no values far from all that were seen before. Pure.

Nulls: the share of an hour, and of the last 6 and 24, is compared with the same hours of the last weeks, each at
today's level (`compared_weeks`). It is taken as asin(sqrt(share)), which has the same noise, 1 / (2 sqrt(rows)),
whatever the share is. Too many are beyond 8 scales, and 10 of 100 rows more than usual, for two hours in a row; too
few are no fault.

Bounds: the lowest and the highest value of an hour are compared with those of all hours before the last four days.
Amounts have heavy tails, so that no hour is like another, and only what lies beyond everything says something. Values
are taken as asinh(value / unit), a logarithm that has a zero and a sign; the unit is how large they usually are. Times
are taken from the begin of the hour in which they arrived.

    reach : from the middle of the hours to the farthest of them
    far   : beyond the farthest by a quarter of the reach, and nearly three times it, in two hours in a row
    or    : beyond it by the whole reach, and twenty times it, in one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import numpy as np

from sluice.supervision.compared_weeks import (
    FEWEST_HOURS,
    FEWEST_WEEKS,
    JUDGED_WITH_SHORTER,
    REMEMBERED_HOURS,
    RUNNING_HOURS,
    SETTLED_HOURS,
    WEEK_HOURS,
    Flags,
    Floats,
    Hours,
    begin_of_open,
    compare_weeks,
    sums_of,
    two_in_a_row,
)

WINDOWS_HOURS = (1, 6, 24)
"""The hours over which nulls are judged, each by itself."""

NULL_SCALES = 8.0
"""So many times what shares usually differ by: more than of rows, because a table has many columns."""

MORE_NULLS = 0.1
"""Of all rows, how many more than usual are null at least: less is not worth a person's time."""

NEAR, FAR = 1.0, 3.0
"""How far beyond everything seen a value is at least, in two hours and in one: e and e ** 3 times as large."""

_REACH_NEAR = 0.25
"""Of the reach, in two hours in a row; in one hour it is the whole: of amounts with heavy tails a record comes so far
beyond the others once in thousands of hours, and not twice at once."""

_LEAST_TIME_SECONDS = 7.0 * 86_400
"""The unit of times at least: what a sender has kept for some days is late, and not wrong."""

_LEAST_SCALE = 0.02
_HOUR_SECONDS = 3600.0


class ColumnKind(StrEnum):
    """What the bounds of a column are. Those of a time and of a date are seconds since 1970."""

    NUMBER = "number"
    TIME = "time"
    DATE = "date"
    NONE = "none"


class ColumnSign(StrEnum):
    """What is unusual about a column."""

    NULLS = "too many nulls"
    BELOW = "values far below all others"
    ABOVE = "values far above all others"


_BOUNDS = {ColumnSign.BELOW: -1.0, ColumnSign.ABOVE: 1.0}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HourlyColumn:
    """A column by the hour; the first hour of all its arrays is the same, and the last one is over.

    rows: in which it was counted. nulls: of these. lowest, highest: NaN where unknown, and where it has no bounds.
    """

    name: str
    kind: ColumnKind
    begins_at: datetime
    rows: Floats
    nulls: Floats
    lowest: Floats
    highest: Floats

    def begin_of(self, hour: int) -> datetime:
        """When an hour begins."""
        return self.begins_at + timedelta(hours=hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusualColumn:
    """One thing that is unusual about a column.

    since: when its first unusual hour began. until: when the newest judged hour ended.
    seen, usual: of nulls the share of `rows`, over `hours` before `until`. Of bounds the farthest value since, and the
        farthest before; of times the latter is in seconds since the begin of the hour in which it arrived.
    weeks: how many were compared.
    """

    column: str
    kind: ColumnKind
    sign: ColumnSign
    since: datetime
    until: datetime
    seen: float
    usual: float
    weeks: int
    hours: int = 1
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsVerdict:
    """What is unusual about the columns of a table now.

    is_settled: whether nothing was for the last `SETTLED_HOURS`, or cannot be known.
    """

    unusual: tuple[UnusualColumn, ...] = ()
    is_settled: bool = True


def judge_columns(columns: Sequence[HourlyColumn]) -> ColumnsVerdict:
    """Judge the columns of a table at the end of their history; one that is too short says nothing."""
    found: list[UnusualColumn] = []
    is_settled = True
    for column in columns:
        for opened, unusual in (_judged_nulls(column), *(_judged_bound(column, sign) for sign in _BOUNDS)):
            is_settled = is_settled and not opened[-SETTLED_HOURS:].any()
            found += [] if unusual is None else [unusual]
    return ColumnsVerdict(unusual=tuple(found), is_settled=is_settled)


_Found = tuple[Hours, UnusualColumn | None]
"""Where a sign is open in the newest hours, and what it is at the last of them."""

_NOTHING: _Found = np.zeros(SETTLED_HOURS, dtype=np.int64), None


@dataclass(frozen=True, slots=True)
class _Shares:
    """The nulls of a window at some hours, each value beside its hour."""

    rows: Floats
    share: Floats
    usual: Floats
    is_more: Flags
    is_beyond: Flags
    weeks: Hours


def _judged_nulls(column: HourlyColumn) -> _Found:
    hours = len(column.rows)
    newest = np.arange(max(hours - SETTLED_HOURS - RUNNING_HOURS, 0), hours)
    if not _may_have_more(column, newest) or not _is_beyond_once(column, newest):
        return _NOTHING  # as nearly always: when it began need not be found out
    at = np.arange(hours - REMEMBERED_HOURS, hours)
    opened = open_nulls(column, at)
    window = int(opened[-1])
    if not window:
        return opened, None
    judged = _shares(column, at[-RUNNING_HOURS:], window)
    place = int(np.flatnonzero(judged.is_beyond)[-1])  # the last hour may have had no rows
    unusual = UnusualColumn(
        column=column.name,
        kind=column.kind,
        sign=ColumnSign.NULLS,
        since=column.begin_of(begin_of_open(opened, at)),
        until=column.begin_of(hours - RUNNING_HOURS + place + 1),
        seen=float(judged.share[place]),
        usual=float(judged.usual[place]),
        weeks=int(judged.weeks[place]),
        hours=window,
        rows=int(judged.rows[place]),
    )
    return opened, unusual


def _is_beyond_once(column: HourlyColumn, at: Hours) -> bool:
    """Whether an hour of these is beyond what is usual: one of two keeps an incident open that began before."""
    return any(bool(_shares(column, at, hours).is_beyond.any()) for hours in WINDOWS_HOURS)


def _may_have_more(column: HourlyColumn, newest: Hours) -> bool:
    """Whether the history is long enough, and a tenth of some newest hour is null: nearly all columns end here."""
    counted = np.flatnonzero(column.rows)
    if not len(counted) or len(column.rows) - counted[0] < FEWEST_WEEKS * WEEK_HOURS:
        return False
    reached = slice(max(int(newest[0]) - max(WINDOWS_HOURS), 0), None)
    return bool((column.nulls[reached] >= MORE_NULLS * np.fmax(column.rows[reached], 1.0)).any())


def open_nulls(column: HourlyColumn, at: Hours) -> Hours:
    """Over how many hours a column has too many nulls at the end of each of these hours; 0 where it has not.

    Parameters
    ----------
    at: numbers of hours, one after the other.
    """
    shortest = np.zeros(len(at), dtype=np.int64)
    before: _Shares | None = None
    for hours in WINDOWS_HOURS:
        window = _shares(column, at, hours)
        is_beyond = window.is_beyond
        if before is not None and hours >= JUDGED_WITH_SHORTER:
            is_beyond = is_beyond & (before.is_more | (before.rows == 0))
        shortest = np.where((shortest == 0) & two_in_a_row(is_beyond), hours, shortest)
        before = window
    return shortest


def _shares(column: HourlyColumn, at: Hours, hours: int) -> _Shares:
    rows, until = sums_of(column.rows, hours)
    nulls, _ = sums_of(column.nulls, hours)
    share = np.divide(nulls, rows, out=np.full(len(rows), np.nan), where=rows > 0)
    values = np.arcsin(np.sqrt(share))
    compared = compare_weeks(values, at, until=until, is_idle=np.zeros(len(rows), dtype=np.bool_))
    now = np.where(compared.is_known, share[at], np.nan)
    usual = np.sin(np.clip(values[at] - compared.excess, 0.0, np.pi / 2)) ** 2
    counting = 0.5 / np.sqrt(np.fmax(rows[at], 1.0))
    scale = np.fmax(np.fmax(compared.spread, counting), _LEAST_SCALE)
    is_more = now - usual >= MORE_NULLS  # false where unknown
    return _Shares(
        rows=rows[at],
        share=now,
        usual=usual,
        is_more=is_more,
        is_beyond=is_more & (compared.excess > NULL_SCALES * scale * np.sqrt(1.0 + hours / 24)),
        weeks=compared.weeks,
    )


@dataclass(frozen=True, slots=True)
class _Bound:
    """A bound of a column by the hour, where larger is farther.

    hours: those in which it is known. values: as logarithms. before: how many hours lie before the newest.
    """

    hours: Hours
    values: Floats
    before: int

    @property
    def farthest(self) -> float:
        return float(self.values[: self.before].max())

    @property
    def reach(self) -> float:
        return self.farthest - float(np.median(self.values[: self.before]))


def _judged_bound(column: HourlyColumn, sign: ColumnSign) -> _Found:
    bound = _bound_of(column, sign)
    if bound is None:
        return _NOTHING
    beyond = bound.values[bound.before :] - bound.farthest
    is_near = beyond > max(NEAR, _REACH_NEAR * bound.reach)
    if not is_near.any():
        return _NOTHING
    hours = len(column.rows)
    at = np.arange(hours - REMEMBERED_HOURS, hours)
    newest = bound.hours[bound.before :]
    is_open = _open_bounds(is_near, beyond > max(FAR, bound.reach))
    opened = np.zeros(len(at), dtype=np.int64)
    for place, hour in enumerate(newest):  # an hour without values changes nothing
        opened[hour - at[0] :] = int(is_open[place])
    if not opened[-1]:
        return opened, None
    since = _first_unusual(newest[is_near], newest[~is_open])
    return opened, _unusual_bound(column, sign, since=since, before=bound.hours[: bound.before])


def _bound_of(column: HourlyColumn, sign: ColumnSign) -> _Bound | None:
    """One of the bounds; none where it is not known for long enough, or of no hour of the last days."""
    if column.kind is ColumnKind.NONE:
        return None
    own = _from_arrival(column, column.lowest if sign is ColumnSign.BELOW else column.highest)
    hours = np.flatnonzero(np.isfinite(own))
    before = int(np.searchsorted(hours, len(own) - REMEMBERED_HOURS))
    if before < FEWEST_HOURS or before == len(hours) or len(own) - hours[0] < FEWEST_WEEKS * WEEK_HOURS:
        return None
    sizes = np.fmax(np.abs(_from_arrival(column, column.lowest)), np.abs(_from_arrival(column, column.highest)))
    unit = float(np.median(sizes[hours[:before]]))
    if column.kind is not ColumnKind.NUMBER:
        unit = max(unit, _LEAST_TIME_SECONDS)
    return _Bound(hours=hours, values=_BOUNDS[sign] * np.arcsinh(own[hours] / (unit or 1.0)), before=before)


def _from_arrival(column: HourlyColumn, values: Floats) -> Floats:
    if column.kind is ColumnKind.NUMBER:
        return values
    return values - (column.begins_at.timestamp() + _HOUR_SECONDS * np.arange(len(values)))


def _open_bounds(is_near: Flags, is_far: Flags) -> Flags:
    """Where an incident is open that one hour far away or two hours near in a row begin, and two others end."""
    is_open, found = False, np.zeros(len(is_near), dtype=np.bool_)
    for place in range(len(is_near)):
        last = is_near[max(place - RUNNING_HOURS + 1, 0) : place + 1]
        begins = bool(is_far[place]) or (len(last) == RUNNING_HOURS and bool(last.all()))
        is_open = bool(last.any()) if is_open else begins
        found[place] = is_open
    return found


def _first_unusual(near: Hours, usual: Hours) -> int:
    """The first unusual hour of what is open at the end: the one before it opened, when that one was near already.

    Parameters
    ----------
    near: the unusual hours. usual: those in which nothing was open.
    """
    closed = int(usual[-1]) if len(usual) else -1
    return int(near[np.searchsorted(near, closed)])


def _unusual_bound(column: HourlyColumn, sign: ColumnSign, *, since: int, before: Hours) -> UnusualColumn:
    values = column.lowest if sign is ColumnSign.BELOW else column.highest
    farthest = np.nanmin if sign is ColumnSign.BELOW else np.nanmax
    return UnusualColumn(
        column=column.name,
        kind=column.kind,
        sign=sign,
        since=column.begin_of(since),
        until=column.begin_of(len(values)),
        seen=float(farthest(values[since:])),
        usual=float(farthest(_from_arrival(column, values)[before])),
        weeks=len(np.unique(before // WEEK_HOURS)),
    )
