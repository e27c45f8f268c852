"""Decides which waiting items an application claims now. Pure: no clock, no ledger.

An application does several items at a time, each kind in a lane of its own width. So a long compaction never keeps an
increment waiting, and the memory that an application needs is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sluice.backfill.intervals import Interval, parse_interval
from sluice.ledger.work_values import WorkItem, WorkKind

LANE_WIDTHS = {
    WorkKind.INCREMENT: 4,
    WorkKind.REFRESH: 1,
    WorkKind.FIND_GAPS: 1,
    WorkKind.MAINTAIN_TABLE: 2,
    WorkKind.CHECK_TABLE: 1,
    WorkKind.REPLAY: 1,
    WorkKind.REHEARSE: 1,
}
"""How many items of a kind an application does at the same time. Of intervals, as many as their stream declares."""

INTERVALS_AT_ONCE = 8
"""How many intervals of all streams together an application replaces at the same time, if none of the streams declares
more for itself: its items share one heap."""

ALONE_WITHIN = timedelta(minutes=1)
"""After which time an item that runs alone comes before all others. Until then others go first in the order of the
queue; always, they would keep it for ever from an application that is never idle."""

GATHERED_FOR = timedelta(seconds=2)
"""How long waiting intervals are gathered while other ones of their stream are being replaced: intervals that are
replaced together end together, and those who asked for the next ones come together too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalLane:
    """How the intervals of a stream are replaced.

    at_once: how many at the same time.
    together: how many as one batch; one when they cannot share one.
    """

    at_once: int
    together: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What an application does at the moment.

    running: the items that it has claimed.
    lane_of: the lane of a stream's intervals.
    followers_of: the intervals of other streams that are replaced right after one, by stream.
    now: by the clock that has stamped the items.
    """

    running: Sequence[WorkItem]
    lane_of: Callable[[str], IntervalLane]
    now: datetime
    followers_of: Callable[[WorkItem], Mapping[str, Interval]] = lambda _: {}

    def choose(self, waiting: Sequence[WorkItem]) -> tuple[WorkItem, ...]:
        """Choose items in the order of the queue.

        An item in which an application has died runs beside no other one: once it is the first of the queue, nothing
        else is claimed until the application is idle. After a minute it is the first.
        """
        if any(item.runs_alone for item in self.running):
            return ()
        chosen: list[WorkItem] = []
        for item in sorted(waiting, key=lambda item: not self._is_overdue(item)):
            if item.runs_alone:
                if chosen:
                    continue
                return () if self.running else (item,)
            if self._has_room(item, [*self.running, *chosen]) and not self._gathers(item, waiting):
                chosen.append(item)
        return tuple(chosen)

    def _is_overdue(self, item: WorkItem) -> bool:
        """Whether an item that runs alone has waited so long that nothing goes before it."""
        return item.runs_alone and self.now - item.asked_at > ALONE_WITHIN

    def _has_room(self, item: WorkItem, beside: Sequence[WorkItem]) -> bool:
        """Whether the lane of an item has room, and none beside it is about the same thing."""
        if item.kind is WorkKind.INTERVAL:
            intervals = [one for one in beside if one.kind is WorkKind.INTERVAL]
            of_stream = [one for one in intervals if one.subject == item.subject]
            at_once = self.lane_of(item.subject).at_once
            has_room = len(of_stream) < at_once and len(intervals) < max(at_once, INTERVALS_AT_ONCE)
            return has_room and not any(self._overlap(item, one) for one in intervals)
        of_kind = [one for one in beside if one.kind is item.kind]
        return len(of_kind) < LANE_WIDTHS[item.kind] and all(one.subject != item.subject for one in of_kind)

    def _overlap(self, one: WorkItem, other: WorkItem) -> bool:
        """Whether two items replace rows of the same interval of a stream, be it one that follows."""
        here, there = (self._replaced(item) for item in (one, other))
        return any(here[stream].overlaps(there[stream]) for stream in here.keys() & there.keys())

    def _replaced(self, item: WorkItem) -> dict[str, Interval]:
        return {**self.followers_of(item), item.subject: interval_of(item)}

    def _gathers(self, item: WorkItem, waiting: Sequence[WorkItem]) -> bool:
        """Whether an interval waits a moment for those that it could share a batch with."""
        if item.kind is not WorkKind.INTERVAL:
            return False
        of_stream = [one for one in waiting if one.kind is WorkKind.INTERVAL and one.subject == item.subject]
        others_run = any(one.kind is WorkKind.INTERVAL and one.subject == item.subject for one in self.running)
        oldest = min(one.asked_at for one in of_stream)
        is_full = len(of_stream) >= self.lane_of(item.subject).together
        return others_run and not is_full and self.now - oldest < GATHERED_FOR


def interval_of(item: WorkItem) -> Interval:
    """The interval that an item asks for."""
    return parse_interval(item.payload["start"], item.payload["end"])
