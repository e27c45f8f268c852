"""Real drivers are killed at named places; whatever was done by then, every batch is in its table once.

The places and ways that are not here are in the table of `make drill`.
"""

from __future__ import annotations

import signal

import pytest
from tests.fixtures.crash_scenarios import BATCHES, Scenario, Way
from tests.fixtures.drill import sampled
from tests.fixtures.faulty_drivers import declare_lost, faulty_driver
from tests.fixtures.stack import Stack
from tests.fixtures.tampering import ALWAYS, Fault, faulty_proxy
from tests.fixtures.workshop import Workshop

from sluice.publication.crash_points import CrashPoint

SAMPLE = (
    Scenario(way=Way.MERGE, point=CrashPoint.MERGED),
    Scenario(way=Way.TWO, point=CrashPoint.FIRST_OUTPUT_PUBLISHED),
    Scenario(way=Way.APPEND, point=CrashPoint.CHECKED, is_increment=True),
)


@pytest.mark.parametrize(
    "scenario",
    sampled(SAMPLE, SAMPLE[-1:], full=SAMPLE),  # merges and two outputs: `test_merges.py` and `test_delivery.py`
    ids=lambda scenario: f"{scenario.name}, {scenario.point}",
)
def test_no_batch_is_lost_or_doubled(scenario: Scenario, workshop: Workshop, services: Stack) -> None:
    stream = f"s{workshop.namespace}"
    scenario.declare(workshop, stream)

    scenario.crash_and_recover(workshop, services.environment(), stream)

    assert workshop.rows("target") == scenario.expected()
    if scenario.way is Way.TWO:
        words = sorted(row["word"] for row in workshop.rows("words"))
        assert words == sorted(row["word"] for row in scenario.expected())


@pytest.mark.full  # every run: `test_zombies.py`
def test_a_driver_that_was_stopped_between_check_and_commit_publishes_nothing(
    workshop: Workshop, services: Stack
) -> None:
    scenario, stream = Scenario(way=Way.MERGE, point=CrashPoint.CHECKED), f"s{workshop.namespace}"
    scenario.declare(workshop, stream)
    stopped = faulty_driver(
        workshop,
        services.environment(),
        stream,
        point=scenario.point,
        occurrence=scenario.occurrence,
        number=signal.SIGSTOP,
    )

    with stopped as driver:
        driver.await_place()
        declare_lost(workshop, stream)  # everybody believes it dead
        scenario.finish(workshop, stream)
        driver.go_on()
        end = driver.last_words()

    assert workshop.rows("target") == scenario.expected()
    assert end.startswith(("1: sluice: failed: StaleTokenError: ", "1: sluice: failed: LeaseLostError: ")), end


@pytest.mark.full  # every run: `test_lost_answers.py`
def test_a_driver_deletes_no_file_of_a_commit_that_landed_and_was_refused(workshop: Workshop, services: Stack) -> None:
    """A gateway repeats every commit: the first lands, the answer is the refusal of the second. Iceberg's own client
    would delete what it has written, staged rows and merged rows alike (decision 0033)."""
    scenario, stream = Scenario(way=Way.MERGE, point=CrashPoint.RECORDED), f"s{workshop.namespace}"
    scenario.declare(workshop, stream)

    with faulty_proxy(services.settings().catalog.uri) as proxy:
        proxy.spared = frozenset({"source"})
        proxy.faults[Fault.REPEATED] = ALWAYS
        environment = {**services.environment(), "SLUICE_CATALOG__URI": proxy.address}
        with faulty_driver(workshop, environment, stream, point=scenario.point, occurrence=BATCHES) as driver:
            driver.await_death()

    assert workshop.rows("target") == scenario.expected(BATCHES)
    assert proxy.befallen[Fault.REPEATED] > BATCHES
