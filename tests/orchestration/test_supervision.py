"""A continuous stream in a real Airflow: launched, adopted, restarted, given up, stopped; never two drivers."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import UTC, datetime

import psutil
import pytest
from tests.fakes.behaviour import Behaviour, tell_drivers
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.drill import sampled
from tests.fixtures.sample_declarations import UNMAINTAINED, write_continuous_stream, write_table
from tests.fixtures.successors import runs_since
from tests.fixtures.supervised_streams import (
    DEADLINE_SECONDS,
    SECOND_WAIT_SECONDS,
    TASK,
    await_ended,
    await_running,
    kill_driver,
    lives,
    started,
)

from sluice.failure_reasons import Failure, FailureReason, next_step
from sluice.ledger.batches import newest_batch
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.run_values import DesiredState, RunState
from sluice.ledger.runs import newest_run, recent_runs
from sluice_airflow.tasks.stream_task import DECISION_KEY


def test_unpausing_launches_a_detached_driver_at_once_and_holds_no_slot(airflow: RunningAirflow) -> None:
    airflow.wait(lambda: airflow.client.get("/api/v2/dags/launched").is_success, within_seconds=DEADLINE_SECONDS)
    airflow.wait(_is_the_next_minute_far, within_seconds=DEADLINE_SECONDS)
    unpaused_at = datetime.now(UTC)
    run, _ = started(airflow, "launched")
    due_at = datetime.fromisoformat(airflow.runs("launched")[0]["run_after"])
    assert due_at < unpaused_at, "its time had come already: it did not wait for the next minute"
    assert run.launched_by.startswith("airflow: launched, scheduled__")
    assert run.process is not None
    assert os.getsid(run.process.pid) not in {os.getsid(0), 0}
    batch = newest_batch(airflow.ledger, "launched")
    airflow.wait(lambda: newest_batch(airflow.ledger, "launched") != batch, within_seconds=DEADLINE_SECONDS)
    assert airflow.task("launched", TASK)["state"] == "deferred", "it holds no slot while its driver publishes"
    airflow.wait(lambda: _occupied(airflow) == (0, 0), within_seconds=DEADLINE_SECONDS)  # others of the pool end


def _occupied(airflow: RunningAirflow) -> tuple[int, int]:
    """The slots of the pool of supervision that run and that are queued."""
    pool = airflow.get("pools/supervision")
    return pool["running_slots"], pool["queued_slots"]


def _is_the_next_minute_far() -> bool:
    """Else a run may be due when that minute begins, after the moment at which its DAG is unpaused."""
    return datetime.now(UTC).second < 40


@pytest.mark.parametrize("number", sampled([6, 20], (), full=[6]))  # every run: one stream holds no slot
def test_more_streams_than_workers_hold_no_slot(airflow: RunningAirflow, number: int) -> None:
    streams = [f"crowd_{number}_{one:02}" for one in range(number)]
    for stream in streams:
        tell_drivers(airflow.behaviours, stream, Behaviour(beat_seconds=2.0))
        write_table(airflow.pipelines, f"silver.{stream}", more=UNMAINTAINED)
        write_continuous_stream(airflow.pipelines, stream, writes=f"silver.{stream}")
    airflow.parse_again("launched")
    for stream in streams:
        airflow.unpause(stream)
    runs = [started(airflow, stream)[0] for stream in streams]
    batches = {stream: newest_batch(airflow.ledger, stream) for stream in streams}
    for _ in range(20):
        assert airflow.holding_slots(streams) == []
        assert airflow.get("pools/supervision")["deferred_slots"] >= len(streams)
        time.sleep(0.25)
    assert [run.stream for run in runs if not lives(run)] == []
    for stream in streams:
        airflow.wait(
            lambda one=stream: newest_batch(airflow.ledger, one) != batches[one],  # type: ignore[misc]
            within_seconds=DEADLINE_SECONDS,
        )
    for stream in streams:  # Airflow runs nothing of a paused DAG: the rest of the ring is not slowed down
        airflow.patch(f"dags/{stream}", {"is_paused": True})
        set_desired_state(airflow.ledger, stream, DesiredState.STOPPED, requested_by="a test")
    assert {await_ended(airflow, stream).state for stream in streams} == {RunState.FINISHED}


def test_clearing_the_task_adopts_the_driver_that_lives(airflow: RunningAirflow) -> None:
    run, dag_run = started(airflow, "cleared")
    airflow.clear("cleared", TASK, dag_run)
    airflow.wait(lambda: airflow.task("cleared", TASK, dag_run)["try_number"] == 2, within_seconds=DEADLINE_SECONDS)
    airflow.await_task("cleared", TASK, "deferred", run_id=dag_run)
    newest = newest_run(airflow.ledger, "cleared")  # a live run reports every two seconds
    assert newest is not None
    assert [one.run_id for one in recent_runs(airflow.ledger, "cleared", limit=9)] == [newest.run_id]
    assert await_running(airflow, "cleared").process == run.process
    assert lives(run)


@pytest.mark.full  # every run: a cleared task adopts the driver
def test_a_run_that_is_triggered_by_hand_starts_no_second_driver(airflow: RunningAirflow) -> None:
    run, dag_run = started(airflow, "triggered_twice")
    second = airflow.trigger("triggered_twice")
    airflow.await_task("triggered_twice", TASK, "deferred", run_id=dag_run)
    assert airflow.task("triggered_twice", TASK, second)["state"] is None, "it waits in the queue"
    assert [seen.run_id for seen in recent_runs(airflow.ledger, "triggered_twice", limit=9)] == [run.run_id]
    assert lives(run)


@pytest.mark.full  # every run: at once, and then not (`killed` of `test_pages_in_browser.py`)
def test_a_killed_driver_is_started_again_by_the_same_task_at_once_and_the_next_time_after_a_wait(
    airflow: RunningAirflow,
) -> None:
    first, dag_run = started(airflow, "killed")
    kill_driver(first)
    second = await_running(airflow, "killed", after=first)
    # What a task logs is in its file a moment after it was logged.
    airflow.wait(lambda: "restart_due" in airflow.log("killed", TASK, dag_run, 1), within_seconds=DEADLINE_SECONDS)
    assert "backing_off" not in airflow.log("killed", TASK, dag_run, 1), "Airflow ran the task once for the restart"
    kill_driver(second)
    third = await_running(airflow, "killed", after=second)
    seen = recent_runs(airflow.ledger, "killed", limit=9)
    assert [one.token for one in seen] == [third.token, second.token, first.token]
    assert {(one.state, one.reason) for one in seen[1:]} == {(RunState.FAILED, "killed by SIGKILL")}
    assert seen[1].ended_at is not None
    assert (third.launched_at - seen[1].ended_at).total_seconds() >= 0.75 * SECOND_WAIT_SECONDS
    airflow.await_task("killed", TASK, "deferred", run_id=dag_run)
    assert len(airflow.runs("killed")) == 1


@pytest.mark.full  # every run gives one up without Airflow (`test_supervisor.py`)
def test_a_stream_that_keeps_failing_is_given_up_red_with_the_reason_and_unpausing_asks_again(
    airflow: RunningAirflow,
) -> None:
    tell_drivers(airflow.behaviours, "given_up", Behaviour(fails_with="CheckpointError: The checkpoint is damaged."))
    airflow.unpause("given_up")
    airflow.wait(lambda: bool(airflow.runs("given_up")), within_seconds=DEADLINE_SECONDS)
    dag_run = airflow.runs("given_up")[0]["dag_run_id"]
    task = airflow.await_task("given_up", TASK, "failed", run_id=dag_run)
    airflow.wait(lambda: airflow.is_paused("given_up"), within_seconds=DEADLINE_SECONDS)
    (run,) = recent_runs(airflow.ledger, "given_up", limit=9)  # another start would only have repeated it
    assert (run.state, run.failure) == (RunState.FAILED, Failure.of(FailureReason.CHECKPOINT_DAMAGED))
    log = airflow.log("given_up", TASK, dag_run, task["try_number"])
    stored_in_airflow = airflow.get(f"dags/given_up/dagRuns/{dag_run}/taskInstances/{TASK}/state-store/{DECISION_KEY}")
    for word in (
        "restart_would_not_help",
        "checkpoint: checkpoint_damaged",
        next_step(FailureReason.CHECKPOINT_DAMAGED, stream="given_up"),
    ):
        assert word in log
        assert word in str(stored_in_airflow["value"]["explanation"]) or word == stored_in_airflow["value"]["reason"]
    for word in (
        "CheckpointError: The checkpoint is damaged.",
        "`sluice stream start given_up`",
        "unpause it: that starts the stream again",
    ):
        assert word in log
    called = airflow.called("given_up")
    assert (called["kind"], called["stream"]) == ("StreamGivenUpError", "given_up")
    words = stored_in_airflow["value"]
    assert (words["reason"], words["failure_reason"]) == ("restart_would_not_help", "checkpoint_damaged")
    assert words["next_step"] == next_step(FailureReason.CHECKPOINT_DAMAGED, stream="given_up")
    for key in ("reason", "failure_reason", "next_step"):
        assert called[key] == words[key]
    assert called["sentence"] in log, "the callback, the state and the log say the same"
    assert words["explanation"] in called["sentence"]
    assert len(airflow.runs("given_up")) == 1
    tell_drivers(airflow.behaviours, "given_up", Behaviour())
    airflow.unpause("given_up")
    assert await_running(airflow, "given_up").state is RunState.RUNNING


@pytest.mark.drill  # every test run has it for the task alone (`test_stream_operator.py`)
def test_a_run_that_was_merely_queued_gives_a_stream_up_again_and_then_unpausing_asks(airflow: RunningAirflow) -> None:
    run, dag_run = started(airflow, "queued_behind")
    queued = airflow.queue_as_scheduled("queued_behind")
    tell_drivers(
        airflow.behaviours, "queued_behind", Behaviour(fails_with="CheckpointError: The checkpoint is damaged.")
    )
    kill_driver(run)
    airflow.await_task("queued_behind", TASK, "failed", run_id=dag_run)
    airflow.await_task("queued_behind", TASK, "failed", run_id=queued)
    airflow.wait(lambda: airflow.is_paused("queued_behind"), within_seconds=DEADLINE_SECONDS)
    assert len(recent_runs(airflow.ledger, "queued_behind", limit=9)) == 2, "nobody asked for a third"
    tell_drivers(airflow.behaviours, "queued_behind", Behaviour())
    airflow.unpause("queued_behind")
    await_running(airflow, "queued_behind", after=run)
    assert runs_since(airflow.ledger, run) == 2


@pytest.mark.full
def test_a_stopped_stream_ends_its_run_well_and_the_next_run_waits_for_a_request(airflow: RunningAirflow) -> None:
    run, dag_run = started(airflow, "stopped")
    set_desired_state(airflow.ledger, "stopped", DesiredState.STOPPED, requested_by="a test")
    airflow.await_task("stopped", TASK, "success", run_id=dag_run)
    ended = recent_runs(airflow.ledger, "stopped", limit=1)[0]
    assert (ended.run_id, ended.state, ended.reason) == (run.run_id, RunState.FINISHED, "stopped as requested")
    airflow.wait(lambda: len(airflow.runs("stopped")) == 2, within_seconds=DEADLINE_SECONDS)
    airflow.await_task("stopped", TASK, "deferred")
    assert len(recent_runs(airflow.ledger, "stopped", limit=9)) == 1
    set_desired_state(airflow.ledger, "stopped", DesiredState.RUNNING, requested_by="a test")
    assert await_running(airflow, "stopped").run_id != run.run_id


@pytest.mark.full
def test_a_stop_whose_task_loses_its_try_ends_the_run_as_well(airflow: RunningAirflow) -> None:
    _, dag_run = started(airflow, "stopped_unseen")
    set_desired_state(airflow.ledger, "stopped_unseen", DesiredState.STOPPED, requested_by="a test")

    def has_lost_its_try() -> bool:
        for process in airflow.components.running_tasks():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return bool(airflow.task("stopped_unseen", TASK, dag_run)["state"] == "up_for_retry")

    airflow.wait(has_lost_its_try, within_seconds=DEADLINE_SECONDS)
    assert airflow.await_task("stopped_unseen", TASK, "success", run_id=dag_run)["try_number"] == 2
