"""The position of the replay, read from the topic: which records were sent, and which come next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache

import pyarrow as pa

from sluice.demo.flights_data import DAYS_OF_DATA, FIRST_DAY, Span, flights_of
from sluice.demo.replay_plan import PlannedRecord, ReplayPlan, parse_plan_name, plan_replay

SHORTEST_SPAN_DAYS = 2
"""A shorter span cannot contain flights that are more than a day late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextReplay:
    """A plan and those of its records that the topic does not hold yet.

    is_continued: whether an earlier replay of this plan was interrupted.
    """

    plan: ReplayPlan
    missing: tuple[PlannedRecord, ...]
    is_continued: bool

    @property
    def on_time(self) -> tuple[PlannedRecord, ...]:
        """The missing records that are sent on time."""
        late = {record.sequence for record in self.plan.late_set}
        return tuple(record for record in self.missing if record.sequence not in late)

    @property
    def late_set(self) -> tuple[PlannedRecord, ...]:
        """The missing records that are sent after the watermark has passed them."""
        late = {record.sequence for record in self.plan.late_set}
        return tuple(record for record in self.missing if record.sequence in late)


def make_plan(name: str) -> ReplayPlan:
    """Recompute the plan of this name.

    Raises
    ------
    ValueError: when the text is not the name of a plan.
    """
    seed, span = parse_plan_name(name)
    return _plan(seed, span)


@cache
def _plan(seed: int, span: Span) -> ReplayPlan:
    """A plan is sent and, at every check, compared with the tables; it takes half a second of a processor."""
    return plan_replay(flights_of(span), span=span, seed=seed)


def plans_in(sent: pa.Table) -> tuple[str, ...]:
    """The names of the plans that the topic holds records of, in the order of their days.

    Parameters
    ----------
    sent: the content of the topic, as `FlightsTopic.read` gives it.
    """
    names = {str(name) for name in sent["plan"].to_pylist() if name is not None}
    return tuple(sorted(names, key=lambda name: parse_plan_name(name)[1].first_day))


def next_replay(sent: pa.Table, *, days: int, seed: int) -> NextReplay | None:
    """The records to send now: the rest of an interrupted plan, otherwise the next days of the year.

    Only the newest plan can be incomplete: a plan starts after all records of the previous one were sent.

    Parameters
    ----------
    sent: the content of the topic, as `FlightsTopic.read` gives it.
    days: how many days a new plan spans; fewer when the year ends.
    seed: the seed of a new plan.

    Returns
    -------
    None when the whole year has been sent.
    """
    names = plans_in(sent)
    first_day = FIRST_DAY
    if names:
        newest = make_plan(names[-1])
        there = _sequences(sent, names[-1])
        if missing := tuple(record for record in newest.records if record.sequence not in there):
            return NextReplay(plan=newest, missing=missing, is_continued=True)
        first_day = newest.span.next_day
    span = next_span(first_day_offset=(first_day - FIRST_DAY).days, days=days)
    if span is None:
        return None
    plan = _plan(seed, span)
    return NextReplay(plan=plan, missing=plan.records, is_continued=False)


def next_span(*, first_day_offset: int, days: int) -> Span | None:
    """The days from an offset on; up to the end of the year when the remaining days would be too few for a span.

    Returns
    -------
    None when no day is left.
    """
    left = DAYS_OF_DATA - first_day_offset
    if left <= 0:
        return None
    length = left if left - days < SHORTEST_SPAN_DAYS else days
    return Span(first_day=FIRST_DAY + timedelta(days=first_day_offset), days=length)


def _sequences(sent: pa.Table, plan_name: str) -> frozenset[object]:
    places = zip(sent["plan"].to_pylist(), sent["sequence"].to_pylist(), strict=True)
    return frozenset(sequence for plan, sequence in places if plan == plan_name)
