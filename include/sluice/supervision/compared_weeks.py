"""Compares values of hours with those of the same hours of the last weeks, each brought to today's level. Pure.

    growth(k)    = median of value - value k weeks before, over the seven days before the hour
    deviation(k) = value - value k weeks before - growth(k)

The median of the deviations says how far an hour is from what is usual. How much they differ says how far that may be:
between weeks, and for all hours of the last week against the week before, because a few weeks may agree by chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WEEK_HOURS = 168
COMPARED_WEEKS = 8
FEWEST_WEEKS = 4
"""With less history nothing is judged: a weekend has come three times at most."""

HISTORY_WEEKS = 14
"""How far back weeks with rows are looked for, with one week more for the level of the oldest."""

SCALES = 5.0
"""So many times what values usually differ by is unusual."""

RUNNING_HOURS = 2
"""So many hours in a row begin an incident, and as many usual ones end it."""

SETTLED_HOURS = 6
"""So long all must be usual again: a holiday is one incident, and not one in the morning and another in the evening."""

REMEMBERED_HOURS = 96
"""How long ago an incident may have begun: after half a week the level is that of the new rows."""

JUDGED_WITH_SHORTER = 24
"""A window of at least so many hours says nothing once the next shorter one is usual again: it remembers for long."""

FEWEST_VALUES = 3
"""With fewer comparable weeks nothing is judged."""

FEWEST_HOURS = 24
"""Of a week, in which rows came: with fewer its growth is unknown."""

Floats = NDArray[np.float64]
Hours = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Some hours against the same hours of earlier weeks, each value beside its hour.

    excess: above the usual value; 0 where too few weeks are comparable. spread: how much values usually differ.
    weeks: how many were compared. is_known: whether they are enough.
    """

    excess: Floats
    spread: Floats
    weeks: Hours
    is_known: Flags


def compare_weeks(values: Floats, at: Hours, *, until: Floats, is_idle: Flags) -> Comparison:
    """Compare the values of some hours with those of earlier weeks.

    Parameters
    ----------
    values: of each hour, NaN where unknown. at: numbers of hours. until: how many rows came before each hour.
    is_idle: the hours that say nothing about growth where the compared one is idle, too.
    """
    weeks = at[:, None] - WEEK_HOURS * np.arange(1, HISTORY_WEEKS)
    growth, noise = _growth(values, at, is_idle)
    deviations = of_active_weeks(until, weeks, values[at][:, None] - taken(values, weeks) - growth)
    excess = median(deviations)
    # The deviations of a few weeks may be small by chance; those of all hours of the last week are many.
    spread = np.fmax(median(np.abs(deviations - excess[:, None])), noise)
    known = np.isfinite(deviations).sum(axis=1)
    is_known = known >= FEWEST_VALUES
    return Comparison(np.where(is_known, excess, 0.0), spread, known, is_known)


def _growth(values: Floats, at: Hours, is_idle: Flags) -> tuple[Floats, Floats]:
    """How much the values of the seven days before have grown since each of the weeks before, and how much their hours
    differ from those of the week before, of which each has a half."""
    hours = at[:, None] - np.arange(1, WEEK_HOURS + 1)
    changes = [_changes(values, is_idle, hours, WEEK_HOURS * week) for week in range(1, HISTORY_WEEKS)]
    growth = np.stack([median(change, fewest=FEWEST_HOURS) for change in changes], axis=1)
    return growth, median(np.abs(changes[0] - growth[:, :1])) / np.sqrt(2.0)


def _changes(values: Floats, is_idle: Flags, hours: Hours, before: int) -> Floats:
    """How much more each hour has than so many hours before; unknown where both are idle, as at night, and where the
    earlier ones are not all recorded."""
    earlier = hours - before
    are_idle = is_idle[np.clip(hours, 0, None)] & is_idle[np.clip(earlier, 0, None)]
    is_recorded = hours[:, -1:] >= before
    return np.where(is_recorded & ~are_idle, taken(values, hours) - taken(values, earlier), np.nan)


def of_active_weeks(until: Floats, weeks: Hours, values: Floats) -> Floats:
    """The values of the newest weeks in which rows came; NaN for the others. A table may have paused for a month.

    Parameters
    ----------
    until: how many rows came before each hour. weeks: the last hour of each.
    """
    ends = np.clip(weeks + 1, 0, len(until) - 1)
    is_active = until[ends] > until[np.clip(ends - WEEK_HOURS, 0, None)]
    is_active &= np.isfinite(values)
    return np.where(is_active & (np.cumsum(is_active, axis=1) <= COMPARED_WEEKS), values, np.nan)


def sums_of(counts: Floats, hours: int) -> tuple[Floats, Floats]:
    """The sum of so many hours up to each hour, NaN where not all are recorded; and the sum of all before each hour."""
    until = np.concatenate(([0.0], np.cumsum(counts)))
    sums = np.full(len(counts), np.nan)
    sums[hours - 1 :] = until[hours:] - until[: len(until) - hours]
    return sums, until


def taken(values: Floats, at: Hours) -> Floats:
    """The values of some hours; NaN before the first."""
    return np.where(at >= 0, values[np.clip(at, 0, None)], np.nan)


def median(values: Floats, *, fewest: int = 1) -> Floats:
    """The median of each row, without what is unknown; unknown of too few values."""
    known = np.isfinite(values).sum(axis=1)
    ordered = np.sort(values, axis=1)  # what is unknown comes last
    row = np.arange(len(ordered))
    low, high = np.clip((known - 1) // 2, 0, None), np.clip(known // 2, 0, values.shape[1] - 1)
    return np.where(known >= fewest, (ordered[row, low] + ordered[row, high]) / 2, np.nan)


def two_in_a_row(is_beyond: Flags) -> Flags:
    """Where an incident is open that two hours in a row begin and two others end."""
    is_open, found = False, np.zeros(len(is_beyond), dtype=np.bool_)
    for hour in range(len(is_beyond)):
        last = is_beyond[max(hour - RUNNING_HOURS + 1, 0) : hour + 1]
        is_open = bool(last.any()) if is_open else len(last) == RUNNING_HOURS and bool(last.all())
        found[hour] = is_open
    return found


def begin_of_open(opened: Hours, at: Hours) -> int:
    """The first unusual hour of what is open at the last of some hours that follow each other."""
    usual = np.flatnonzero(opened == 0)
    first = at[0] if len(usual) == 0 else at[usual[-1] + 1]
    return max(int(first) - RUNNING_HOURS + 1, 0)
