"""A driver that dies at any named place, and the next one: nothing is lost, nothing is there twice."""

from __future__ import annotations

import signal
from itertools import product

import pytest
from tests.fixtures.drill import sampled
from tests.fixtures.publication import Workbench

from sluice.publication.crash_points import CrashPoint

BATCHES = 4
EVERY_ROW = sorted([10 * number for number in range(BATCHES)] + [10 * number + 1 for number in range(BATCHES)])
PLACES = (
    CrashPoint.BATCH_BEGUN,
    CrashPoint.STAGED,
    CrashPoint.CHECKED,
    CrashPoint.PUBLISHED,
    CrashPoint.CLEARED,
)
KILLED_AT = (CrashPoint.STAGED, CrashPoint.CHECKED, CrashPoint.PUBLISHED)
CASES = tuple(product(PLACES, (1, 3)))


class DeadDriverError(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("case", sampled(CASES, [CASES[4], CASES[7]], full=CASES))
def test_a_driver_that_dies_at_a_place_and_the_next_one(bench: Workbench, case: tuple[CrashPoint, int]) -> None:
    place, together = case

    def die(point: CrashPoint) -> None:
        if point is place and bench.mark().token == dying.run:
            raise DeadDriverError

    dying = bench.as_run(2)
    for run in (2, 3):
        dying = bench.as_run(run)
        with pytest.raises(DeadDriverError):
            dying.drive(BATCHES, together=together, reached=die)
    bench.as_run(4).drive(BATCHES, together=together)
    assert bench.ids() == EVERY_ROW
    assert bench.staged() == ()


@pytest.mark.full  # every run: a publisher that is killed there
@pytest.mark.parametrize("place", KILLED_AT)
def test_a_driver_that_is_killed_and_the_next_one(bench: Workbench, place: CrashPoint) -> None:
    with bench.as_run(2).driver_process(BATCHES, die_at=place, time=2) as driver:
        exit_code, _ = driver.result()
    assert exit_code == -signal.SIGKILL
    visible = bench.ids()
    assert visible == EVERY_ROW[: len(visible)]
    bench.as_run(3).drive(BATCHES)
    assert bench.ids_by_duckdb() == EVERY_ROW


def test_a_publisher_that_is_killed_between_check_and_commit(bench: Workbench) -> None:
    batch = bench.stage(0, [1])
    with bench.process(0, signal_at_check=signal.SIGKILL) as publisher:
        exit_code, _ = publisher.result()
    assert exit_code == -signal.SIGKILL
    assert bench.ids() == []
    bench.publish(batch)
    assert bench.ids() == [1]
