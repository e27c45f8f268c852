"""When a maintenance run ends red: by itself, or because of the runs before it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sluice.ledger.maintenance_runs import (
    MaintenanceObservation,
    MaintenanceStep,
    StepObservation,
    StepOutcome,
    TableFigures,
)
from sluice.maintenance.run_maintenance import BLOCKED_FOR_LONG, problems_of_run

NOW = datetime(2026, 11, 23, 12, 17, tzinfo=UTC)
HOUR = timedelta(hours=1)


def run(outcome: StepOutcome, reason: str = "some_reason", *, hours_ago: int = 0) -> MaintenanceObservation:
    """A run whose one step ended like this."""
    step = StepObservation(
        step=MaintenanceStep.EXPIRE_SNAPSHOTS, outcome=outcome, reason=reason, explanation="why it did"
    )
    return MaintenanceObservation(
        table="bronze.flights",
        started_at=NOW - hours_ago * HOUR,
        ended_at=NOW - hours_ago * HOUR,
        launched_by="a test",
        before=TableFigures(),
        after=TableFigures(),
        operations=(step,),
    )


def blocked(hours: int, reason: str = "reader_not_started") -> tuple[MaintenanceObservation, ...]:
    """Hourly runs before now, all blocked, newest first."""
    return tuple(run(StepOutcome.SKIPPED, reason, hours_ago=ago) for ago in range(1, hours + 1))


@pytest.mark.parametrize("outcome", [StepOutcome.DONE, StepOutcome.SKIPPED])
def test_what_was_done_or_not_due_is_green(outcome: StepOutcome) -> None:
    assert problems_of_run(run(outcome), (run(StepOutcome.FAILED, hours_ago=1),)) == ()


@pytest.mark.parametrize("outcome", [StepOutcome.REFUSED, StepOutcome.FAILED])
def test_what_failed_or_could_harm_is_red_at_once(outcome: StepOutcome) -> None:
    assert problems_of_run(run(outcome), ()) == (f"expire_snapshots {outcome}, some_reason: why it did",)


def test_a_step_that_gives_way_to_writers_is_red_the_second_time() -> None:
    yielded = run(StepOutcome.YIELDED, "writers_won")

    assert problems_of_run(yielded, ()) == ()
    assert problems_of_run(yielded, (run(StepOutcome.DONE, hours_ago=1), yielded)) == ()
    (problem,) = problems_of_run(yielded, (run(StepOutcome.YIELDED, hours_ago=1),))
    assert problem.endswith("; the run before yielded, too")


@pytest.mark.parametrize(
    "reason", ["reader_not_started", "readers_need_snapshots", "writer_late", "partitions_unnamed"]
)
def test_a_step_that_is_blocked_is_red_after_days(reason: str) -> None:
    hours = int(BLOCKED_FOR_LONG / HOUR)
    now_blocked = run(StepOutcome.SKIPPED, reason)

    assert problems_of_run(now_blocked, blocked(hours - 1, reason)) == ()
    (problem,) = problems_of_run(now_blocked, blocked(hours, reason))
    assert problem == (
        f"expire_snapshots skipped, {reason}: why it did; every run since 2026-11-21 12:17 UTC was blocked"
    )


def test_a_run_that_was_not_blocked_in_between_starts_the_time_again() -> None:
    earlier = (*blocked(10), run(StepOutcome.DONE, hours_ago=11), *blocked(100))

    assert problems_of_run(run(StepOutcome.SKIPPED, "reader_not_started"), earlier) == ()


def test_nothing_to_do_is_never_a_problem() -> None:
    earlier = tuple(run(StepOutcome.SKIPPED, "nothing_expirable", hours_ago=ago) for ago in range(1, 200))

    assert problems_of_run(run(StepOutcome.SKIPPED, "nothing_expirable"), earlier) == ()
