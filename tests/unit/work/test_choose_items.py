"""Which waiting items an application claims: lanes, batches of intervals, and items that run alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from sluice.backfill.intervals import Interval
from sluice.ledger.work_values import WorkItem, WorkKind
from sluice.work.choose_items import (
    ALONE_WITHIN,
    GATHERED_FOR,
    INTERVALS_AT_ONCE,
    LANE_WIDTHS,
    Bench,
    IntervalLane,
    interval_of,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def item(kind: WorkKind, subject: str = "one", *, day: int = 0, runs_alone: bool = False, age: int = 60) -> WorkItem:
    """An item of the queue, asked for some seconds before noon."""
    start = datetime(2013, 1, 1, tzinfo=UTC) + timedelta(days=day)
    interval = {"start": start.isoformat(), "end": (start + timedelta(days=1)).isoformat()}
    return WorkItem(
        item=f"{kind}-{subject}-{day}-{runs_alone}",
        kind=kind,
        subject=subject,
        payload={"stream": subject, **interval} if kind is WorkKind.INTERVAL else {"stream": subject},
        asked_by="a test",
        asked_at=NOON - timedelta(seconds=age),
        attempt=0,
        runs_alone=runs_alone,
        linger_seconds=0,
    )


def chosen(
    waiting: Sequence[WorkItem], running: Sequence[WorkItem] = (), *, at_once: int = 2, together: int = 1
) -> list[WorkItem]:
    """What is claimed at noon."""
    lane = IntervalLane(at_once=at_once, together=together)
    return list(Bench(running=running, lane_of=lambda _: lane, now=NOON).choose(waiting))


@pytest.mark.parametrize("kind", LANE_WIDTHS)
def test_of_each_kind_so_many_run_at_the_same_time(kind: WorkKind) -> None:
    items = [item(kind, f"s{number}") for number in range(LANE_WIDTHS[kind] + 2)]
    assert chosen(items) == items[: LANE_WIDTHS[kind]]
    assert chosen(items[1:], items[:1]) == items[1 : LANE_WIDTHS[kind]]


def test_a_full_lane_keeps_no_other_kind_waiting() -> None:
    tables = [item(WorkKind.MAINTAIN_TABLE, f"t{number}") for number in range(9)]
    increment = item(WorkKind.INCREMENT)
    assert chosen([*tables, increment])[-1] == increment


def test_two_items_about_one_stream_run_one_after_the_other() -> None:
    first, second, other = (item(WorkKind.INCREMENT, name, day=day) for name, day in (("a", 0), ("a", 1), ("b", 0)))
    assert chosen([first, second, other]) == [first, other]
    assert chosen([second], [first]) == []


def test_of_intervals_as_many_run_as_their_stream_declares() -> None:
    days = [item(WorkKind.INTERVAL, day=day) for day in range(5)]
    of_other = item(WorkKind.INTERVAL, "other", day=0)
    assert chosen([*days, of_other], at_once=3) == [*days[:3], of_other]


def test_intervals_that_overlap_run_one_after_the_other() -> None:
    first, same = item(WorkKind.INTERVAL, day=0), item(WorkKind.INTERVAL, day=0, age=30)
    assert chosen([first, same]) == [first]
    assert chosen([same], [first]) == []
    assert chosen([item(WorkKind.INTERVAL, day=1)], [first]) != []


def test_intervals_whose_followers_overlap_run_one_after_the_other() -> None:
    """Those that follow are widened by a margin; one may also be asked for by itself."""

    def followers_of(one: WorkItem) -> dict[str, Interval]:
        return {"gold": interval_of(one).widened(timedelta(hours=1))} if one.subject == "one" else {}

    source, beside = item(WorkKind.INTERVAL, day=1), item(WorkKind.INTERVAL, day=2)
    golds = [item(WorkKind.INTERVAL, "gold", day=day) for day in (2, 5)]
    lane = IntervalLane(at_once=8, together=1)

    found = Bench(running=[source], lane_of=lambda _: lane, now=NOON, followers_of=followers_of).choose(
        [beside, *golds]
    )

    assert found == (golds[1],)


def test_intervals_are_gathered_for_a_moment_while_others_of_their_stream_run() -> None:
    running, next_day = [item(WorkKind.INTERVAL, day=0)], item(WorkKind.INTERVAL, day=1, age=0)
    assert chosen([next_day], running, at_once=4, together=2) == []
    assert chosen([next_day], [], at_once=4, together=2) == [next_day]
    waited = item(WorkKind.INTERVAL, day=1, age=int(GATHERED_FOR.total_seconds()) + 1)
    assert chosen([waited], running, at_once=4, together=2) == [waited]
    both = [next_day, item(WorkKind.INTERVAL, day=2, age=0)]
    assert chosen(both, running, at_once=4, together=2) == both


def test_an_item_in_which_an_application_died_runs_beside_no_other_one() -> None:
    poison, other = item(WorkKind.INCREMENT, "p", runs_alone=True), item(WorkKind.INCREMENT, "o")
    assert chosen([poison, other]) == [poison]
    assert chosen([other, poison]) == [other]
    assert chosen([poison], [other]) == []
    assert chosen([other], [poison]) == []


def test_nothing_is_claimed_any_more_until_an_item_that_runs_alone_has_its_turn() -> None:
    poison, running, later = (
        item(WorkKind.INCREMENT, "p", runs_alone=True),
        item(WorkKind.INCREMENT, "r"),
        item(WorkKind.INCREMENT, "l"),
    )
    assert chosen([poison, later], [running]) == []


def test_an_item_that_runs_alone_has_its_turn_after_a_while_whatever_else_comes() -> None:
    patience = int(ALONE_WITHIN.total_seconds())
    poison = item(WorkKind.MAINTAIN_TABLE, "p", runs_alone=True, age=patience + 1)
    increments = [item(WorkKind.INCREMENT, f"s{number}", age=1) for number in range(3)]
    assert chosen([*increments, poison]) == [poison]
    assert chosen([*increments[1:], poison], increments[:1]) == [], "the application becomes idle first"

    patient = item(WorkKind.MAINTAIN_TABLE, "p", runs_alone=True, age=patience - 1)
    assert chosen([*increments[1:], patient], increments[:1]) == increments[1:]


def test_the_intervals_of_many_streams_share_the_memory_of_an_application() -> None:
    waiting = [item(WorkKind.INTERVAL, f"s{stream}", day=day) for stream in range(20) for day in range(2)]
    assert chosen(waiting) == waiting[:INTERVALS_AT_ONCE]
    assert chosen(waiting[INTERVALS_AT_ONCE:], waiting[:INTERVALS_AT_ONCE]) == []
    of_one = [item(WorkKind.INTERVAL, day=day) for day in range(20)]
    assert chosen(of_one, at_once=16) == of_one[:16], "as many as its stream declares"
