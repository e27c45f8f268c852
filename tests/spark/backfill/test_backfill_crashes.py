"""A backfill is killed at a step: the table shows the interval as before or as after, and the next run completes it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.fixtures.backfills import (
    DAY_5,
    DAY_8,
    at_step,
    backfill,
    declare_read_stream,
    delete_days,
    expected,
    ids_by_duckdb,
    staging_tables,
)
from tests.fixtures.crash_points import IN_A_BACKFILL
from tests.fixtures.stack import Stack
from tests.fixtures.work import applications_of, ask_for, await_killed, start, waited_for
from tests.fixtures.workshop import Workshop

from sluice.ledger.backfill_attempts import BackfillState, recent_attempts
from sluice.ledger.connection import database_time
from sluice.leftovers.observe_leftovers import Leftovers
from sluice.publication.crash_points import CrashPoint
from sluice.work.requests import ReplaceInterval

VISIBLE_FROM = (CrashPoint.PUBLISHED, CrashPoint.RECORDED)
IDS = sorted(row["id"] for row in expected())
OTHER_IDS = [number for number in IDS if not 50 <= number < 80]


@pytest.mark.drill  # every test run kills one (`test_work_crashes.py`)
@pytest.mark.parametrize("step", IN_A_BACKFILL, ids=str)
def test_a_killed_backfill_is_completed_by_the_next(step: CrashPoint, workshop: Workshop, services: Stack) -> None:
    stream = declare_read_stream(workshop)
    delete_days(workshop, "target")
    request = ReplaceInterval(stream=stream, start=DAY_5, end=DAY_8)
    item = ask_for(workshop, request)
    dies_at = (step, 1)
    with waited_for(workshop, [item]), applications_of(workshop, services.environment(), dies_at=dies_at) as launcher:
        await_killed(workshop, start(workshop, item, request, launcher))
    assert ids_by_duckdb(workshop) == (IDS if step in VISIBLE_FROM else OTHER_IDS)
    now = database_time(workshop.ledger) + timedelta(days=40)
    left = Leftovers(
        catalog=workshop.catalog, ledger=workshop.ledger, settings=workshop.settings, now=now, stream=stream
    )
    left_tables = [one.place.partition(".")[2] for one in left.due]
    assert left_tables == staging_tables(workshop, stream)
    assert bool(left_tables) is (step not in (CrashPoint.PLANNED, CrashPoint.COMPUTED, CrashPoint.RECORDED))

    result = backfill(workshop, stream)

    assert ids_by_duckdb(workshop) == IDS
    assert result.state is (BackfillState.UNCHANGED if step in VISIBLE_FROM else BackfillState.PUBLISHED)
    assert staging_tables(workshop, stream) == []
    first = recent_attempts(workshop.ledger, stream, limit=10)[-1]
    assert first.state is (BackfillState.PUBLISHED if step is CrashPoint.RECORDED else BackfillState.LOST)


@pytest.mark.parametrize(
    "steps",
    # Every run fails before the commit in `test_work_intervals.py`.
    [(CrashPoint.PUBLISHED,), pytest.param(IN_A_BACKFILL, marks=pytest.mark.full)],
    ids=["after the commit", "each step"],
)
def test_an_error_at_any_step_leaves_nothing_half_visible(workshop: Workshop, steps: tuple[CrashPoint, ...]) -> None:
    stream = declare_read_stream(workshop)
    delete_days(workshop, "target")

    def fail() -> None:
        raise OSError("the backfill fails here")

    for step in steps:
        with pytest.raises(OSError, match="fails here"):
            backfill(workshop, stream, reached=at_step(step, fail))
        assert ids_by_duckdb(workshop) == (IDS if step in VISIBLE_FROM else OTHER_IDS)
        assert staging_tables(workshop, stream) == []
        if step in VISIBLE_FROM and step is not steps[-1]:
            delete_days(workshop, "target")

    assert backfill(workshop, stream).state is BackfillState.UNCHANGED
    assert workshop.rows("target") == expected()
