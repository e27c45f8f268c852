"""Everything around the drivers dies at once, and comes back: the streams run on, or come back, without a person."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.drivers import processes_of
from tests.fixtures.ledger import PostgresServer
from tests.fixtures.successors import runs_since
from tests.fixtures.supervised_streams import DEADLINE_SECONDS, TASK, await_running, lives, started

from sluice.ledger.batches import newest_batch
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import find_run, recent_runs

COMPONENTS = ("triggerer", "scheduler", "dag-processor", "api-server")
AWAY_SECONDS = 60.0


@pytest.mark.full  # every test run has outages of the ledger (`test_ledger_outage.py`) and kills parts of Airflow
def test_streams_outlive_a_minute_without_database_and_the_death_of_every_component(
    airflow: RunningAirflow, postgres_server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    dying, _ = started(airflow, "dying_too")
    run, dag_run = started(airflow, "outliving")
    assert run.process is not None
    went_away_at = time.monotonic()
    postgres_server.stop()
    for component in COMPONENTS:
        airflow.components.kill(component)
    for pid in processes_of(dying.run_id):  # with its attendant, as when a machine is switched off
        os.kill(pid, signal.SIGKILL)
    time.sleep(max(0.0, AWAY_SECONDS - (time.monotonic() - went_away_at)))  # the outage itself is what is tested
    assert lives(run), "the driver goes on without its ledger"
    postgres_server.start()
    airflow.await_health()
    seen = find_run(airflow.ledger, run.run_id)
    assert (seen.is_live, seen.process, seen.token) == (True, run.process, run.token)
    await_running(airflow, "dying_too", after=dying)
    assert (runs_since(airflow.ledger, dying), find_run(airflow.ledger, dying.run_id).state) == (1, RunState.LOST)
    batch = newest_batch(airflow.ledger, "outliving")
    airflow.wait(lambda: newest_batch(airflow.ledger, "outliving") != batch, within_seconds=DEADLINE_SECONDS)
    killed_at = time.monotonic()
    os.kill(run.process.pid, signal.SIGKILL)
    again = await_running(airflow, "outliving", after=run)
    with capsys.disabled():
        sys.stdout.write(f"\na driver killed just after that was replaced in {time.monotonic() - killed_at:.0f} s\n")
    assert runs_since(airflow.ledger, run) == 1
    airflow.await_task("outliving", TASK, "deferred", run_id=dag_run)
    assert [one.run_id for one in recent_runs(airflow.ledger, "outliving", limit=9) if one.is_live] == [again.run_id]
