"""Backfills in a real Airflow: created through its API and its command line, each run with its own interval."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.fakes.application import INTERVAL_ROWS
from tests.fakes.behaviour import Behaviour, tell_drivers
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.queued_work import applications_of, items_of, states_of

from sluice.ledger.applications import find_application
from sluice.ledger.work_values import WorkState

DAG = "refilled__backfill"
TASK = "replace_interval"


def intervals(airflow: RunningAirflow) -> dict[str, str]:
    """The starts of the intervals of the runs, by the state of each."""
    runs = [run for run in airflow.runs(DAG) if run["run_type"] == "backfill"]
    return {run["data_interval_start"][:10]: run["state"] for run in runs}


@pytest.mark.full  # every run: three days that share an application
def test_a_backfill_has_one_run_for_each_day_and_nothing_is_scheduled(airflow: RunningAirflow) -> None:
    airflow.wait(lambda: airflow.client.get(f"/api/v2/dags/{DAG}").is_success, within_seconds=180)
    dag = airflow.get(f"dags/{DAG}")
    assert (dag["is_paused"], dag["is_backfillable"], dag["next_dagrun_logical_date"]) == (False, True, None)
    assert dag["timetable_summary"] == "backfills by day"

    asked = {"dag_id": DAG, "from_date": "2013-01-05T00:00:00Z", "to_date": "2013-01-07T00:00:00Z"}
    airflow.post("backfills", {**asked, "max_active_runs": 2, "run_backwards": True})

    days = ["2013-01-05", "2013-01-06", "2013-01-07"]
    airflow.wait(
        lambda: intervals(airflow) == dict.fromkeys(days, "success"),
        within_seconds=400,
        what=lambda: str(intervals(airflow)),
    )
    runs = airflow.runs(DAG)
    assert {run["run_type"] for run in runs} == {"backfill"}
    (fifth,) = [run for run in runs if run["data_interval_start"].startswith("2013-01-05")]
    asked_for = {item.asked_by: dict(item.payload) for item in items_of(airflow.ledger, "refilled")}
    assert asked_for[f"airflow: {DAG}, {fifth['dag_run_id']}"] == {
        "stream": "refilled",
        "start": "2013-01-05T00:00:00+00:00",
        "end": "2013-01-06T00:00:00+00:00",
        "allow_fewer": "no",
        "allow_repeated": "no",
        "agreed": "",
    }

    airflow.wait(  # Airflow admits one backfill of a DAG at a time, and notices the end of one once a minute
        lambda: all(one["completed_at"] for one in airflow.get("backfills", dag_id=DAG)["backfills"]),
        within_seconds=240,
    )
    command = ["backfill", "create", "--dag-id", DAG, "--from-date", "2013-01-05", "--to-date", "2013-01-05"]
    again = subprocess.run(  # noqa: S603  # Airflow's own command
        [sys.executable, "-m", "airflow", *command, "--reprocess-behavior", "completed"],
        env={**os.environ, **airflow.environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert again.returncode == 0, again.stderr[-2000:]
    airflow.wait(
        lambda: airflow.task(DAG, TASK, fifth["dag_run_id"]).get("try_number") == 2,
        within_seconds=240,
        what=lambda: str(airflow.task(DAG, TASK, fifth["dag_run_id"])),
    )
    assert len(airflow.runs(DAG)) == 3, "the timetable yields no run of its own"


def test_the_runs_of_a_backfill_share_an_application_and_each_shows_its_own_result(airflow: RunningAirflow) -> None:
    dag = "shared_days__backfill"
    tell_drivers(airflow.behaviours, "shared_days", Behaviour(hangs=True))

    def states() -> list[str]:
        return [run["state"] for run in sorted(airflow.runs(dag), key=lambda run: run["data_interval_start"])]

    airflow.wait(lambda: airflow.client.get(f"/api/v2/dags/{dag}").is_success, within_seconds=180)
    asked = {"dag_id": dag, "from_date": "2013-01-05T00:00:00Z", "to_date": "2013-01-07T00:00:00Z"}
    airflow.post("backfills", {**asked, "max_active_runs": 3})
    airflow.wait(
        lambda: states_of(airflow.ledger, "shared_days") == [WorkState.CLAIMED] * 3,
        within_seconds=400,
        what=lambda: str(states_of(airflow.ledger, "shared_days")),
    )
    runs = {run["data_interval_start"][:10]: run["dag_run_id"] for run in airflow.runs(dag)}
    for run_id in runs.values():
        airflow.await_task(dag, TASK, "deferred", run_id=run_id)
    assert airflow.holding_slots([dag]) == []
    assert len(applications_of(airflow.ledger, "shared_days")) == 1

    tell_drivers(airflow.behaviours, "shared_days", Behaviour())
    airflow.wait(lambda: states() == ["success"] * 3, within_seconds=240, what=lambda: str(states()))

    sixth = f"dags/{dag}/dagRuns/{runs['2013-01-06']}/taskInstances/{TASK}/xcomEntries/results"
    result = airflow.get(sixth, deserialize="true")["value"]["shared_days"]
    assert (result["interval"][:10], result["state"]) == ("2013-01-06", "published")
    assert (result["rows"], result["snapshot"]) == (INTERVAL_ROWS, str(2**60 + 1))


@pytest.mark.full  # every run: a lost checkpoint is red, with its words
def test_a_failed_interval_is_red_with_its_own_words(airflow: RunningAirflow) -> None:
    dag = "filled_in__backfill"
    tell_drivers(airflow.behaviours, "filled_in", Behaviour(fails_with="SchemaError: the word is no number."))
    airflow.wait(lambda: airflow.client.get(f"/api/v2/dags/{dag}").is_success, within_seconds=180)
    asked = {"dag_id": dag, "from_date": "2013-01-05T00:00:00Z", "to_date": "2013-01-05T00:00:00Z"}

    airflow.post("backfills", {**asked, "max_active_runs": 1})

    airflow.wait(lambda: bool(airflow.runs(dag)), within_seconds=240)
    (run,) = airflow.runs(dag)
    airflow.await_task(dag, TASK, "failed", run_id=run["dag_run_id"], within_seconds=300)
    assert airflow.task(dag, TASK, run["dag_run_id"])["try_number"] == 1, "another try would only repeat it"
    assert "the word is no number" in airflow.log(dag, TASK, run["dag_run_id"])


@pytest.mark.full
def test_a_backfill_that_is_called_off_while_it_works_asks_for_nothing_more(airflow: RunningAirflow) -> None:
    """Airflow's own cancel fails the runs that have not begun. A person marks the task that works as failed."""
    dag = "called_off__backfill"
    tell_drivers(airflow.behaviours, "called_off", Behaviour(hangs=True))

    def states() -> list[str]:
        return [run["state"] for run in sorted(airflow.runs(dag), key=lambda run: run["data_interval_start"])]

    def items() -> list[WorkState]:
        return states_of(airflow.ledger, "called_off")

    airflow.wait(lambda: airflow.client.get(f"/api/v2/dags/{dag}").is_success, within_seconds=180)
    asked = {"dag_id": dag, "from_date": "2013-01-05T00:00:00Z", "to_date": "2013-01-07T00:00:00Z"}
    backfill = airflow.post("backfills", {**asked, "max_active_runs": 1})
    airflow.wait(lambda: items() == [WorkState.CLAIMED], within_seconds=300, what=lambda: str(items()))

    airflow.client.put(f"/api/v2/backfills/{backfill['id']}/cancel").raise_for_status()

    assert states() == ["running", "failed", "failed"]
    (working,) = [run["dag_run_id"] for run in airflow.runs(dag) if run["state"] == "running"]
    airflow.await_triggered(dag, TASK, working)
    airflow.mark(dag, TASK, working, "failed")
    airflow.wait(lambda: states() == ["failed"] * 3, within_seconds=120, what=lambda: str(states()))
    airflow.wait(lambda: items() == [WorkState.WITHDRAWN], within_seconds=120, what=lambda: str(items()))
    (application,) = applications_of(airflow.ledger, "called_off")
    reason = find_application(airflow.ledger, application).reason
    assert reason in (None, "no further work came"), "it may have neighbours: nothing has ended it"


def test_the_streams_own_dag_takes_no_backfill_and_names_the_one_that_does(airflow: RunningAirflow) -> None:
    airflow.wait(lambda: airflow.client.get("/api/v2/dags/refilled").is_success, within_seconds=180)
    asked = {"dag_id": "refilled", "from_date": "2013-01-05T00:00:00Z", "to_date": "2013-01-07T00:00:00Z"}

    with pytest.raises(AssertionError, match="does not allow backfill runs"):
        airflow.post("backfills", asked)

    assert airflow.runs("refilled") == []
    assert "refilled__backfill" in airflow.get("dags/refilled/details")["doc_md"]


@pytest.mark.full  # every run: one of the stream itself is refused
def test_a_run_that_is_triggered_by_hand_fails_with_the_way_to_backfill(airflow: RunningAirflow) -> None:
    known = items_of(airflow.ledger, "refilled")

    run = airflow.trigger(DAG)

    airflow.await_task(DAG, TASK, "failed", run_id=run)
    assert airflow.task(DAG, TASK, run)["try_number"] == 1
    log = airflow.log(DAG, TASK, run)
    assert "runs for backfills only" in log
    assert "choose Backfill" in log
    assert items_of(airflow.ledger, "refilled") == known
