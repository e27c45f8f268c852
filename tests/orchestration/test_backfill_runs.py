"""Backfills in a real Airflow: created through its API and its command line, each run with its own interval."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest
from sqlalchemy import select
from tests.fakes.driver import Behaviour, tell_drivers
from tests.fixtures.airflow import RunningAirflow

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.backfill_attempts import BackfillState, begin_attempt, end_attempt
from sluice.ledger.backfill_requests import BackfillRequest, application_lock, end_request, take_request
from sluice.ledger.records.backfill_request import RequestState, TakenRequest

DAG = "refilled__backfill"
TASK = "replace_interval"


def intervals(airflow: RunningAirflow) -> dict[str, str]:
    """The starts of the intervals that jobs were asked to compute, by the state of their run."""
    runs = [run for run in airflow.runs(DAG) if run["run_type"] == "backfill"]
    return {run["data_interval_start"][:10]: run["state"] for run in runs}


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
    log = airflow.log(DAG, TASK, fifth["dag_run_id"])
    assert "--start=2013-01-05T00:00:00+00:00" in log
    assert "--end=2013-01-06T00:00:00+00:00" in log

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


def test_runs_wait_without_a_worker_for_the_application_of_another_run(airflow: RunningAirflow) -> None:
    """This test is the application: it takes the requests, and ends them."""
    dag, ledger = "shared_days__backfill", airflow.ledger
    digest = load_declarations(airflow.pipelines).digest
    taken: list[TakenRequest] = []

    def have_asked() -> bool:
        if (request := take_request(ledger, "shared_days", digest=digest)) is not None:
            taken.append(request)
        return len(taken) == 3

    def states() -> list[str]:
        return [run["state"] for run in sorted(airflow.runs(dag), key=lambda run: run["data_interval_start"])]

    airflow.wait(lambda: airflow.client.get(f"/api/v2/dags/{dag}").is_success, within_seconds=180)
    with application_lock(ledger, "shared_days") as is_mine:
        assert is_mine
        asked = {"dag_id": dag, "from_date": "2013-01-05T00:00:00Z", "to_date": "2013-01-07T00:00:00Z"}
        airflow.post("backfills", {**asked, "max_active_runs": 3})
        airflow.wait(have_asked, within_seconds=300, what=lambda: str(taken))
        runs = {run["data_interval_start"][:10]: run["dag_run_id"] for run in airflow.runs(dag)}
        for run_id in runs.values():
            airflow.await_task(dag, TASK, "deferred", run_id=run_id)
        assert airflow.holding_slots([dag]) == []

        taken.sort(key=lambda one: one.request.interval_start)
        for request in taken[:2]:
            key = begin_attempt(
                ledger,
                "shared_days",
                start=request.request.interval_start,
                end=request.request.interval_end,
                launched_by=request.request.launched_by,
            )
            end_attempt(ledger, key, BackfillState.PUBLISHED, rows={"published": 3}, snapshot_id=2**60)
            end_request(ledger, request.number, RequestState.DONE)
        failure = "sluice: failed: SchemaError: the word is no number."
        end_request(ledger, taken[2].number, RequestState.FAILED, failure=failure)
        ended = ["success", "success", "failed"]

        def have_ended() -> bool:
            # On a busy machine Airflow may take a call back for a lost try; the run then asks again.
            if (again := take_request(ledger, "shared_days", digest=digest)) is not None:
                end_request(ledger, again.number, RequestState.FAILED, failure=failure)
            return states() == ended

        airflow.wait(have_ended, within_seconds=240, what=lambda: str(states()))

    sixth = f"dags/{dag}/dagRuns/{runs['2013-01-06']}/taskInstances/{TASK}/xcomEntries/results"
    result = airflow.get(sixth, deserialize="true")["value"]["shared_days"]
    assert (result["interval"][:10], result["state"]) == ("2013-01-06", "published")
    assert (result["rows"], result["snapshot"]) == ({"published": 3}, str(2**60))
    newest = {run_id: airflow.task(dag, TASK, run_id)["try_number"] for run_id in runs.values()}
    logs = [airflow.log(dag, TASK, run_id, attempt) for run_id, attempt in newest.items()]
    assert not any("fake driver" in log for log in logs), "no run has started an application of its own"
    assert any("the word is no number" in log for log in logs)


def test_a_backfill_that_is_called_off_while_it_works_asks_for_nothing_more(airflow: RunningAirflow) -> None:
    """Airflow's own cancel fails the runs that have not begun. A person marks the task that works as failed."""
    dag = "called_off__backfill"
    tell_drivers(airflow.behaviours, "called_off", Behaviour(hangs=True))

    def applications() -> list[psutil.Process]:
        """Those that work for the stream."""
        found = psutil.process_iter(["cmdline"])
        return [process for process in found if "--stream=called_off" in (process.info["cmdline"] or ())]

    def states() -> list[str]:
        return [run["state"] for run in sorted(airflow.runs(dag), key=lambda run: run["data_interval_start"])]

    def requests() -> list[str]:
        asked_for = select(BackfillRequest.state).where(BackfillRequest.stream == "called_off")
        with airflow.ledger.transaction() as connection:
            return list(connection.execute(asked_for).scalars())

    airflow.wait(lambda: airflow.client.get(f"/api/v2/dags/{dag}").is_success, within_seconds=180)
    asked = {"dag_id": dag, "from_date": "2013-01-05T00:00:00Z", "to_date": "2013-01-07T00:00:00Z"}
    backfill = airflow.post("backfills", {**asked, "max_active_runs": 1})
    airflow.wait(lambda: bool(applications()), within_seconds=300, what=lambda: str(states()))

    airflow.client.put(f"/api/v2/backfills/{backfill['id']}/cancel").raise_for_status()

    assert states() == ["running", "failed", "failed"]
    (working,) = [run["dag_run_id"] for run in airflow.runs(dag) if run["state"] == "running"]
    airflow.mark(dag, TASK, working, "failed")
    airflow.wait(lambda: not applications(), within_seconds=120)
    airflow.wait(lambda: states() == ["failed"] * 3, within_seconds=120, what=lambda: str(states()))
    airflow.wait(lambda: requests() == [RequestState.WITHDRAWN], within_seconds=120, what=lambda: str(requests()))


def test_the_streams_own_dag_takes_no_backfill_and_names_the_one_that_does(airflow: RunningAirflow) -> None:
    airflow.wait(lambda: airflow.client.get("/api/v2/dags/refilled").is_success, within_seconds=180)
    asked = {"dag_id": "refilled", "from_date": "2013-01-05T00:00:00Z", "to_date": "2013-01-07T00:00:00Z"}

    with pytest.raises(AssertionError, match="does not allow backfill runs"):
        airflow.post("backfills", asked)

    assert airflow.runs("refilled") == []
    assert "refilled__backfill" in airflow.get("dags/refilled/details")["doc_md"]


def test_a_run_that_is_triggered_by_hand_fails_with_the_way_to_backfill(airflow: RunningAirflow) -> None:
    run = airflow.trigger(DAG)

    airflow.await_task(DAG, TASK, "failed", run_id=run)
    assert airflow.task(DAG, TASK, run)["try_number"] == 1
    log = airflow.log(DAG, TASK, run)
    assert "runs for backfills only" in log
    assert "choose Backfill" in log
    assert "fake driver" not in log
