"""Tasks of a real Airflow that wait for shared Spark applications, which are fakes, and what may happen meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from tests.fakes.application import APPLICATIONS
from tests.fakes.behaviour import Behaviour, tell_drivers
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.queued_work import applications_of, items_of, states_of

from sluice.ledger.applications import find_application, recent_applications
from sluice.ledger.batches import newest_batch
from sluice.ledger.work_items import observe_item
from sluice.ledger.work_values import WorkState
from sluice.processes.host_processes import kill_group
from sluice.work.pools import last_lines_of_item
from sluice_airflow.operators import SPARK_POOL

TOGETHER = ("together_one", "together_two", "together_three")
"""Incremental streams whose runs share applications."""

RUN = "run"
"""The task of an incremental stream."""


@pytest.fixture(autouse=True)
def _nothing_hangs_afterwards(airflow: RunningAirflow) -> Iterator[None]:
    yield
    for told in airflow.behaviours.glob("*.json"):
        told.unlink()


def _begun(airflow: RunningAirflow, stream: str, *, hangs: bool = True) -> str:
    """A run of an incremental stream whose work has begun, and hangs, while the triggerer looks at its item."""
    tell_drivers(airflow.behaviours, stream, Behaviour(hangs=hangs))
    airflow.unpause(stream)
    run = airflow.trigger(stream)
    airflow.wait(lambda: WorkState.CLAIMED in states_of(airflow.ledger, stream), within_seconds=240)
    airflow.await_triggered(stream, RUN, run)
    return run


def _log_of(airflow: RunningAirflow, item: str) -> list[str]:
    return last_lines_of_item(observe_item(airflow.ledger, item), limit=100)


def _goes_on(airflow: RunningAirflow, subject: str) -> None:
    tell_drivers(airflow.behaviours, subject, Behaviour())


@pytest.mark.full  # every run: `test_work_operator.py`
def test_many_tasks_start_one_application_and_hold_no_slot_while_they_wait(airflow: RunningAirflow) -> None:
    for stream in TOGETHER:
        tell_drivers(airflow.behaviours, stream, Behaviour(hangs=True))
        airflow.unpause(stream)

    runs = {stream: airflow.trigger(stream) for stream in TOGETHER}
    for stream, run in runs.items():
        airflow.await_task(stream, RUN, "deferred", run_id=run)
    airflow.wait(
        lambda: [states_of(airflow.ledger, stream) for stream in TOGETHER] == [[WorkState.CLAIMED]] * len(TOGETHER),
        within_seconds=120,
    )

    assert airflow.holding_slots(TOGETHER) == []
    for stream in TOGETHER:
        _goes_on(airflow, stream)
    for stream, run in runs.items():
        airflow.await_run(stream, run, "success")
        assert airflow.task(stream, RUN, run)["try_number"] == 1
    (application,) = applications_of(airflow.ledger, *TOGETHER)
    pool = find_application(airflow.ledger, application).pool.name
    started = [one.application for one in recent_applications(airflow.ledger, limit=1000) if one.pool.name == pool]
    assert started == [application]


@pytest.mark.full
def test_a_marked_task_withdraws_its_item_and_stops_no_neighbour(airflow: RunningAirflow) -> None:
    neighbour, marked = _begun(airflow, "neighbour"), _begun(airflow, "called_back")
    assert len(applications_of(airflow.ledger, "neighbour", "called_back")) == 1

    airflow.mark("called_back", RUN, marked, "failed")

    (item,) = items_of(airflow.ledger, "called_back")
    airflow.wait(
        lambda: any("was stopped" in line for line in _log_of(airflow, item.item)),
        within_seconds=120,
        what=lambda: str(_log_of(airflow, item.item)),
    )
    assert states_of(airflow.ledger, "called_back") == [WorkState.WITHDRAWN]
    assert states_of(airflow.ledger, "neighbour") == [WorkState.CLAIMED]
    _goes_on(airflow, "neighbour")
    airflow.await_run("neighbour", neighbour, "success")
    assert [item.attempt for item in items_of(airflow.ledger, "neighbour")] == [1]


@pytest.mark.full  # every run: `test_work_operator.py`
def test_a_cleared_task_asks_again_and_nothing_is_done_twice(airflow: RunningAirflow) -> None:
    run = _begun(airflow, "asked_for_twice")
    (first,) = items_of(airflow.ledger, "asked_for_twice")
    airflow.await_noticed("asked_for_twice", RUN, run)

    airflow.clear("asked_for_twice", RUN, run)

    airflow.wait(
        lambda: states_of(airflow.ledger, "asked_for_twice") == [WorkState.CLAIMED, WorkState.WITHDRAWN],
        within_seconds=240,
        what=lambda: str(states_of(airflow.ledger, "asked_for_twice")),
    )
    assert newest_batch(airflow.ledger, "asked_for_twice") is None
    _goes_on(airflow, "asked_for_twice")
    airflow.await_run("asked_for_twice", run, "success")
    newest = newest_batch(airflow.ledger, "asked_for_twice")
    assert newest is not None
    assert newest.key.batch == 0, "one batch was published"
    again, withdrawn = items_of(airflow.ledger, "asked_for_twice")
    assert (withdrawn.item, again.asked_by) == (first.item, first.asked_by)
    assert len(applications_of(airflow.ledger, "asked_for_twice")) == 1


@pytest.mark.full  # every run: `test_work_operator.py`
def test_when_its_application_is_killed_a_task_goes_on_by_another_one(airflow: RunningAirflow) -> None:
    run = _begun(airflow, "orphaned")
    (killed,) = applications_of(airflow.ledger, "orphaned")
    pid = find_application(airflow.ledger, killed).pid
    assert pid is not None

    kill_group(pid)

    airflow.wait(lambda: applications_of(airflow.ledger, "orphaned") - {killed} != set(), within_seconds=240)
    assert "SIGKILL" in str(find_application(airflow.ledger, killed).reason)
    (item,) = items_of(airflow.ledger, "orphaned")
    assert (item.attempt, item.runs_alone) == (2, True)
    _goes_on(airflow, "orphaned")
    airflow.await_run("orphaned", run, "success")
    assert airflow.task("orphaned", RUN, run)["try_number"] == 1, "it needed no try of the task"


@pytest.mark.full  # every run kills applications without Airflow (`test_work_crashes.py`)
def test_an_application_and_its_item_outlast_the_workers_and_the_triggerer(airflow: RunningAirflow) -> None:
    """The application is no child of the task that has started it, and whichever triggerer comes next looks on."""
    run = _begun(airflow, "outlasting")
    (application,) = applications_of(airflow.ledger, "outlasting")
    pid = find_application(airflow.ledger, application).pid
    assert pid is not None

    # A killed worker's task keeps its slot until Airflow looks for such tasks, every five minutes.
    airflow.wait(lambda: airflow.get(f"pools/{SPARK_POOL}")["occupied_slots"] == 0, within_seconds=120)
    for component in ("scheduler", "triggerer"):  # the scheduler's processes below it are the workers
        airflow.kill(component)
    airflow.await_health()

    assert psutil.pid_exists(pid)
    _goes_on(airflow, "outlasting")
    airflow.await_run("outlasting", run, "success")
    assert applications_of(airflow.ledger, "outlasting") == {application}
    assert len(items_of(airflow.ledger, "outlasting")) == 1


@pytest.mark.full
def test_an_application_that_cannot_begin_makes_its_task_red_with_its_words(airflow: RunningAirflow) -> None:
    tell_drivers(airflow.behaviours, APPLICATIONS, Behaviour(fails_with="LaunchError: There is no Java."))
    airflow.unpause("never_begun")

    run = airflow.trigger("never_begun")

    airflow.await_task("never_begun", RUN, "up_for_retry", run_id=run, within_seconds=300)
    log = airflow.log("never_begun", RUN, run)
    assert "2 Spark applications ended before they took any work" in log
    assert "There is no Java" in log
    airflow.mark("never_begun", RUN, run, "failed")
