"""Where the replay stands is read from the topic, so an interrupted replay goes on exactly where it was."""

from __future__ import annotations

from datetime import date, timedelta
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.demo.flights_data import DAYS_OF_DATA, FIRST_DAY, Span
from sluice.demo.flights_topic import SHORTEST_SPAN_DAYS, make_plan, next_replay, next_span, plans_in
from sluice.demo.replay_plan import PlannedRecord, ReplayPlan

SEED = 7


def _topic(*sent: tuple[ReplayPlan, tuple[PlannedRecord, ...]]) -> pa.Table:
    rows = [{"plan": plan.name, "sequence": record.sequence} for plan, records in sent for record in records]
    return pa.table({name: [row[name] for row in rows] for name in ("plan", "sequence")})


@pytest.fixture(scope="module")
def first_plan() -> ReplayPlan:
    return make_plan(f"{SEED}/2013-01-01/2")


def test_an_empty_topic_begins_with_the_first_day(first_plan: ReplayPlan) -> None:
    begun = next_replay(_topic(), days=2, seed=SEED)
    assert begun is not None
    assert begun.plan == first_plan
    assert begun.missing == first_plan.records
    assert not begun.is_continued
    assert (begun.on_time, begun.late_set) == (first_plan.on_time, first_plan.late_set)


def test_what_an_interrupted_replay_did_not_send_is_sent_and_nothing_else(first_plan: ReplayPlan) -> None:
    there = (*first_plan.records[:100], *first_plan.records[103:120])
    continued = next_replay(_topic((first_plan, there)), days=5, seed=99)
    assert continued is not None
    assert continued.is_continued
    assert continued.plan == first_plan
    assert [record.sequence for record in continued.missing[:4]] == [100, 101, 102, 120]
    assert len(continued.missing) == len(first_plan.records) - 117


def test_a_replay_that_lacks_its_late_set_is_not_complete(first_plan: ReplayPlan) -> None:
    continued = next_replay(_topic((first_plan, first_plan.on_time)), days=2, seed=SEED)
    assert continued is not None
    assert (continued.on_time, continued.late_set) == ((), first_plan.late_set)


def test_a_complete_replay_is_followed_by_the_next_days(first_plan: ReplayPlan) -> None:
    following = next_replay(_topic((first_plan, first_plan.records)), days=3, seed=SEED)
    assert following is not None
    assert following.plan.span == Span(first_day=date(2013, 1, 3), days=3)
    assert not following.is_continued


def test_plans_come_in_the_order_of_their_days(first_plan: ReplayPlan) -> None:
    later = make_plan(f"{SEED}/2013-01-03/2")
    assert plans_in(_topic((later, later.records[:1]), (first_plan, first_plan.records[:1]))) == (
        first_plan.name,
        later.name,
    )


@given(st.integers(2, 400))
def test_spans_cover_the_year_without_gap_or_overlap_and_none_is_too_short(days: int) -> None:
    spans: list[Span] = []
    while (span := next_span(first_day_offset=sum(span.days for span in spans), days=days)) is not None:
        spans.append(span)
    assert spans[0].first_day == FIRST_DAY
    assert all(before.next_day == after.first_day for before, after in pairwise(spans))
    assert spans[-1].next_day == FIRST_DAY + timedelta(days=DAYS_OF_DATA)
    assert all(span.days >= SHORTEST_SPAN_DAYS for span in spans)
