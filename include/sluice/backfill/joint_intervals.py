"""Decides which intervals are computed together: those that touch, when no file of the target holds rows of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sluice.backfill.intervals import Interval

Wanted = TypeVar("Wanted")


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
