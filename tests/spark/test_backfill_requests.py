"""One application replaces the intervals of many runs; when it is killed, nothing is half visible and others go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from tests.fixtures.backfills import (
    application,
    ask,
    day_of_january,
    declare_read_stream,
    delete_days,
    expected,
    ids_by_duckdb,
    name_of_run,
    staging_tables,
    states_of_requests,
    waited_for,
)
from tests.fixtures.drill import sampled
from tests.fixtures.stack import Stack
from tests.fixtures.workshop import Workshop

from sluice.backfill.backfill_steps import BackfillStep
from sluice.backfill.run_results import results_of_run
from sluice.errors import VerificationError
from sluice.ledger.backfill_attempts import BackfillState, recent_attempts
from sluice.ledger.backfill_requests import application_lock, observe_request
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.records.backfill_request import RequestState
from sluice.processes.deadline import wait_until

KILLED_AT = (BackfillStep.STAGED,)
"""A sample: each costs a process with a JVM. `make drill` kills at every step."""

VISIBLE_FROM = (BackfillStep.PUBLISHED, BackfillStep.RECORDED)
IDS = sorted(row["id"] for row in expected())
DONE = RequestState.DONE


@pytest.fixture
def stream(workshop: Workshop) -> str:
    """A stream that has read eight days, three of which were deleted from its target."""
    name = declare_read_stream(workshop)
    delete_days(workshop, "target")
    return name


@pytest.mark.parametrize("at_once", sampled([1, 2, 6], [6]))
def test_one_application_replaces_the_days_of_three_runs(at_once: int, workshop: Workshop, stream: str) -> None:
    numbers = [ask(workshop, stream, day) for day in (5, 6, 7)]

    result = application(workshop, stream, 5, at_once=at_once)

    assert states_of_requests(workshop, numbers) == [DONE, DONE, DONE]
    assert workshop.rows("target") == expected()
    assert result.key == f"{stream}/backfill/20130105T0000-20130106T0000/1"
    assert staging_tables(workshop, stream) == []
    for day in (5, 6, 7):
        of_run = results_of_run(workshop.ledger, name_of_run(day))[stream]
        assert (of_run["interval"][:10], of_run["state"]) == (f"2013-01-0{day}", "published")
        assert (of_run["rows"]["published"], of_run["rows"]["quarantined"]) == (3, 2)
    events = recent_events(workshop.ledger, EventSubject.STREAM, stream, limit=20)
    assert {event.actor.name for event in events} >= {name_of_run(day) for day in (5, 6, 7)}


def test_an_application_without_a_request_takes_none(workshop: Workshop, stream: str) -> None:
    number = ask(workshop, stream, 6)

    application(workshop, stream, 5)

    assert states_of_requests(workshop, [number]) == [RequestState.WAITING]


def test_beside_another_application_only_the_own_day_is_replaced(workshop: Workshop, stream: str) -> None:
    numbers = [ask(workshop, stream, day) for day in (5, 6)]

    with application_lock(workshop.ledger, stream):
        application(workshop, stream, 5)

    assert states_of_requests(workshop, numbers) == [DONE, RequestState.WAITING]


def test_an_application_whose_time_is_over_takes_no_further_day(workshop: Workshop, stream: str) -> None:
    numbers = [ask(workshop, stream, day) for day in (5, 6)]

    application(workshop, stream, 5, takes_for_seconds=0)

    assert states_of_requests(workshop, numbers) == [DONE, RequestState.WAITING]


def test_a_run_that_has_read_edited_declarations_starts_its_own_application(workshop: Workshop, stream: str) -> None:
    numbers = [ask(workshop, stream, 5), ask(workshop, stream, 6, digest="edited")]

    application(workshop, stream, 5)

    assert states_of_requests(workshop, numbers) == [DONE, RequestState.WAITING]


def test_a_day_that_fails_is_reported_to_its_run_and_no_further_one_is_taken(workshop: Workshop, stream: str) -> None:
    """The second day fails, as an imbalance would make it."""
    numbers = [ask(workshop, stream, day) for day in (5, 6, 7)]
    computed: list[BackfillStep] = []

    def fail_the_second_time(step: BackfillStep) -> None:
        computed.extend([step] if step is BackfillStep.COMPUTED else [])
        if step is BackfillStep.COMPUTED and len(computed) == 2:
            raise VerificationError("The rows do not add up.")

    result = application(workshop, stream, 5, reached=fail_the_second_time)

    assert result.state is BackfillState.PUBLISHED
    assert states_of_requests(workshop, numbers) == [DONE, RequestState.FAILED, RequestState.WAITING]
    failure = observe_request(workshop.ledger, numbers[1]).failure or ""
    assert failure.splitlines()[-1] == "sluice: failed: VerificationError: The rows do not add up."
    assert observe_request(workshop.ledger, numbers[2]).needs_application


def test_an_unexpected_error_leaves_the_request_to_its_run(workshop: Workshop, stream: str) -> None:
    number = ask(workshop, stream, 5)

    def fail(_: BackfillStep) -> None:
        raise OSError("the application fails here")

    with pytest.raises(OSError, match="fails here"):
        application(workshop, stream, 5, reached=fail)

    seen = observe_request(workshop.ledger, number)
    assert (seen.state, seen.needs_application) == (RequestState.TAKEN, True)


@pytest.mark.parametrize("step", sampled(BackfillStep, KILLED_AT), ids=str)
def test_when_an_application_is_killed_at_another_runs_day_that_run_completes_it(
    step: BackfillStep, workshop: Workshop, stream: str, services: Stack
) -> None:
    numbers = [ask(workshop, stream, day) for day in (5, 6, 7)]
    fifth = day_of_january(5)
    command = [f"--stream={stream}", f"--start={fifth.start.isoformat()}", f"--end={fifth.end.isoformat()}"]
    with waited_for(workshop, numbers):
        killed = subprocess.run(  # noqa: S603  # our own program
            [
                *(sys.executable, "-m", "tests.faults.dying_backfill", *command),
                *(f"--step={step}", "--time=2", f"--asked-by={name_of_run(5)}"),
            ],
            env={
                **{name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"},
                **services.environment(),
                "SLUICE_PIPELINES": str(workshop.folder),
            },
            capture_output=True,
            text=True,
            timeout=420,
            check=False,
        )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-4000:]

    hidden = {60, 61, 62} if step not in VISIBLE_FROM else set()
    assert ids_by_duckdb(workshop) == [number for number in IDS if number not in hidden | {70, 71, 72}]
    seen = wait_until(
        lambda: [observe_request(workshop.ledger, number) for number in numbers],
        lambda looked: not looked[0].has_application,
        seconds=60,
    )
    assert [one.state for one in seen] == [DONE, RequestState.TAKEN, RequestState.WAITING]
    assert [one.needs_application for one in seen] == [False, True, False]

    with waited_for(workshop, numbers):
        application(workshop, stream, 6)

    assert states_of_requests(workshop, numbers) == [DONE, DONE, DONE]
    assert ids_by_duckdb(workshop) == IDS
    assert staging_tables(workshop, stream) == []
    of_sixth = [one for one in recent_attempts(workshop.ledger, stream, limit=9) if one.launched_by == name_of_run(6)]
    first_state = BackfillState.PUBLISHED if step is BackfillStep.RECORDED else BackfillState.LOST
    second_state = BackfillState.UNCHANGED if step in VISIBLE_FROM else BackfillState.PUBLISHED
    assert [one.state for one in of_sixth] == [second_state, first_state]
