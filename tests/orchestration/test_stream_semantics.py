"""What a person does in Airflow, and what becomes of the stream: pause, mark, edit, the form of `stream_control`."""

from __future__ import annotations

import sys
import time

import pytest
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.sample_declarations import write_continuous_stream
from tests.fixtures.successors import runs_since
from tests.fixtures.supervised_streams import DEADLINE_SECONDS, TASK, await_ended, await_running, lives, started

from sluice.ledger.batches import newest_batch
from sluice.ledger.desired_states import SuspensionCause, find_desired_state
from sluice.ledger.generations import GenerationObservation, find_generation
from sluice.ledger.run_values import DesiredState, RunState
from sluice.ledger.runs import find_run, recent_runs

RECONCILER = "stream_reconciler"


def _reconciled(airflow: RunningAirflow, *, state: str = "success") -> str:
    """Let the reconciler look now instead of at the next minute; its log. state: failed while a stream is unhealthy."""
    airflow.wait(lambda: airflow.client.get(f"/api/v2/dags/{RECONCILER}").is_success, within_seconds=DEADLINE_SECONDS)
    run = airflow.trigger(RECONCILER)
    airflow.await_task(RECONCILER, "reconcile", state, run_id=run)
    return airflow.log(RECONCILER, "reconcile", run)


def test_pausing_a_dag_drains_its_stream_and_unpausing_lets_it_go_on(
    airflow: RunningAirflow, capsys: pytest.CaptureFixture[str]
) -> None:
    run, dag_run = started(airflow, "paused")
    paused_at = time.monotonic()
    airflow.patch("dags/paused", {"is_paused": True})
    airflow.trigger(RECONCILER)  # it looks now instead of at the next minute
    ended = await_ended(airflow, "paused")
    drained_seconds = time.monotonic() - paused_at
    with capsys.disabled():
        sys.stdout.write(f"\na paused stream was drained after {drained_seconds:.0f} s\n")
    assert (ended.run_id, ended.state, ended.reason) == (run.run_id, RunState.FINISHED, "stopped as requested")
    assert find_desired_state(airflow.ledger, "paused").suspension is SuspensionCause.PAUSED
    airflow.wait(lambda: not lives(run), within_seconds=DEADLINE_SECONDS)
    unpaused_at = time.monotonic()
    airflow.unpause("paused")
    await_running(airflow, "paused", after=run)
    with capsys.disabled():
        sys.stdout.write(f"the unpaused stream ran again after {time.monotonic() - unpaused_at:.0f} s\n")
    assert runs_since(airflow.ledger, run) == 1
    airflow.await_task("paused", TASK, "deferred", run_id=dag_run)
    assert find_desired_state(airflow.ledger, "paused").effective_state is DesiredState.RUNNING


@pytest.mark.full  # every run: a pause, and marks in `test_triggers.py`
def test_marking_the_task_failed_stops_the_stream_after_its_batch_until_the_dag_is_unpaused(
    airflow: RunningAirflow,
) -> None:
    run, dag_run = started(airflow, "marked")
    airflow.mark("marked", TASK, dag_run, "failed")
    ended = await_ended(airflow, "marked")
    assert (ended.run_id, ended.state, ended.reason) == (run.run_id, RunState.FINISHED, "stopped as requested")
    airflow.wait(lambda: airflow.is_paused("marked"), within_seconds=DEADLINE_SECONDS)
    _reconciled(airflow)
    suspension = find_desired_state(airflow.ledger, "marked").suspension
    assert suspension is SuspensionCause.MARKED, "Airflow paused the DAG, no person"
    airflow.unpause("marked")
    await_running(airflow, "marked", after=run)
    assert runs_since(airflow.ledger, run) == 1


@pytest.mark.full  # every run: a pause with a later unpausing
def test_unpausing_at_once_lets_a_stream_go_on_whose_task_was_marked_failed(airflow: RunningAirflow) -> None:
    run, dag_run = started(airflow, "marked_briefly")
    airflow.mark("marked_briefly", TASK, dag_run, "failed")
    await_ended(airflow, "marked_briefly")
    airflow.wait(lambda: airflow.is_paused("marked_briefly"), within_seconds=DEADLINE_SECONDS)
    airflow.unpause("marked_briefly")  # mostly before the reconciler has seen that the DAG is paused
    await_running(airflow, "marked_briefly", after=run)
    assert runs_since(airflow.ledger, run) == 1


@pytest.mark.full  # every run: a pause, and marks in `test_triggers.py`
def test_marking_the_task_successful_stops_the_stream_until_a_task_of_it_is_cleared(airflow: RunningAirflow) -> None:
    run, dag_run = started(airflow, "marked_well")
    airflow.mark("marked_well", TASK, dag_run, "success")
    ended = await_ended(airflow, "marked_well")
    assert (ended.run_id, ended.state, ended.reason) == (run.run_id, RunState.FINISHED, "stopped as requested")
    airflow.wait(lambda: len(airflow.runs("marked_well")) == 2, within_seconds=DEADLINE_SECONDS)
    airflow.await_task("marked_well", TASK, "deferred")
    assert len(recent_runs(airflow.ledger, "marked_well", limit=9)) == 1, "the next run of the DAG waits"
    airflow.clear("marked_well", TASK, airflow.runs("marked_well")[-1]["dag_run_id"])
    await_running(airflow, "marked_well", after=run)
    assert runs_since(airflow.ledger, run) == 1


@pytest.mark.full  # every run follows one without Airflow (`test_reconciler.py`)
def test_an_edited_declaration_is_followed_at_a_batch_boundary_or_refused_with_the_reason(
    airflow: RunningAirflow,
) -> None:
    followed, _ = started(airflow, "edited")
    refused, _ = started(airflow, "edited_badly")
    write_continuous_stream(airflow.pipelines, "edited", writes="silver.edited", more="engine: {driver_memory: 600m}\n")
    write_continuous_stream(airflow.pipelines, "edited_badly", reads="gold.first", writes="silver.edited_badly")
    log = _reconciled(airflow, state="failed")
    again = await_running(airflow, "edited", after=followed)
    ended = find_run(airflow.ledger, followed.run_id)
    assert (ended.state, ended.reason) == (RunState.FINISHED, "stopped as requested")
    assert ended.end_asked_because == "its declaration has changed"
    assert again.declaration_digest != followed.declaration_digest
    assert "input rows was `iceberg table=bronze.flights` and is now `iceberg table=gold.first`" in log
    assert "reason=change_refused" in log
    assert "state=change refused Run" in log, "it is red as long as the stream cannot follow"
    assert lives(refused)
    assert find_run(airflow.ledger, refused.run_id).is_live


@pytest.mark.full
def test_the_form_shows_a_plan_and_does_nothing_in_a_dry_run(airflow: RunningAirflow) -> None:
    run, _ = started(airflow, "controlled")
    dag_run = airflow.trigger("stream_control", stream="controlled", verb="stop", dry_run=True)
    airflow.await_task("stream_control", "carry_out", "success", run_id=dag_run)
    assert f"for run {run.run_id}, which finishes its batch" in airflow.log("stream_control", "plan", dag_run)
    assert find_desired_state(airflow.ledger, "controlled").requested_at is None
    dag_run = airflow.trigger("stream_control", stream="controlled", verb="restart", dry_run=False)
    airflow.await_task("stream_control", "carry_out", "success", run_id=dag_run)
    await_running(airflow, "controlled", after=run)
    assert runs_since(airflow.ledger, run) == 1
    assert str(find_run(airflow.ledger, run.run_id).end_asked_because).startswith(
        "restarted by airflow: stream_control"
    )
    with pytest.raises(AssertionError, match="explode"):
        airflow.trigger("stream_control", stream="controlled", verb="explode", dry_run=False)
    restarted = runs_since(airflow.ledger, run)
    airflow.clear("stream_control", "carry_out", dag_run)
    airflow.await_task("stream_control", "carry_out", "failed", run_id=dag_run)
    assert "a run that is cleared does nothing again" in airflow.log("stream_control", "carry_out", dag_run, attempt=2)
    assert runs_since(airflow.ledger, run) == restarted


@pytest.mark.drill  # every test run has both without Airflow (`test_reset_commands.py`, `test_approvals.py`)
def test_a_reset_is_refused_while_a_driver_lives_and_a_rejected_one_changes_nothing(airflow: RunningAirflow) -> None:
    started(airflow, "kept")
    refused = airflow.trigger("stream_control", stream="kept", verb="reset", dry_run=False)
    airflow.await_task("stream_control", "plan", "failed", run_id=refused)
    assert "stop it first" in airflow.log("stream_control", "plan", refused)
    _stop(airflow, "kept")
    rejected = _asked_for_reset(airflow, "kept")
    _answer(airflow, rejected, "Reject")
    airflow.await_task("stream_control", "approve", "success", run_id=rejected)
    airflow.await_task("stream_control", "carry_out_approved", "skipped", run_id=rejected)
    assert _generation(airflow, "kept").generation == 1


@pytest.mark.full  # every run: `test_control_task.py`, without a driver
def test_a_reset_is_carried_out_once_when_a_person_has_approved_its_plan(airflow: RunningAirflow) -> None:
    run, _ = started(airflow, "left_behind")
    _stop(airflow, "left_behind")
    approved = _asked_for_reset(airflow, "left_behind")
    assert _generation(airflow, "left_behind").generation == 1, "nothing is done before the answer"
    with pytest.raises(AssertionError, match="name one run"):  # the event of a task cannot be sent by a person
        airflow.post(
            f"dags/stream_control/dagRuns/{approved}/taskInstances/plan/xcomEntries", {"key": "digest", "value": "x"}
        )
    _answer(airflow, approved, "Approve")
    airflow.await_task("stream_control", "carry_out_approved", "success", run_id=approved)
    opened = _generation(airflow, "left_behind")
    assert opened.generation == 2
    assert opened.opened_by.startswith("airflow: stream_control, ")
    assert ", approved by " in opened.opened_by
    airflow.await_run("stream_control", approved, "success")
    airflow.clear("stream_control", "carry_out_approved", approved)
    airflow.await_task("stream_control", "carry_out_approved", "failed", run_id=approved)
    assert _generation(airflow, "left_behind") == opened, "what was approved is done once"
    airflow.trigger("stream_control", stream="left_behind", verb="start", dry_run=False)
    assert await_running(airflow, "left_behind", after=run).generation == 2


def _stop(airflow: RunningAirflow, stream: str) -> None:
    """Stop a stream by the form, once it has brought a batch; nobody is asked."""
    airflow.wait(lambda: newest_batch(airflow.ledger, stream) is not None, within_seconds=DEADLINE_SECONDS)
    stop = airflow.trigger("stream_control", stream=stream, verb="stop", dry_run=False)
    airflow.await_task("stream_control", "carry_out", "success", run_id=stop)
    assert airflow.tasks("stream_control", stop)["approve"] == "skipped", "other verbs do not ask"


def _asked_for_reset(airflow: RunningAirflow, stream: str) -> str:
    """A run of the form whose reset waits for an answer, with the plan in the question."""
    dag_run = airflow.trigger("stream_control", stream=stream, verb="reset", dry_run=False)
    airflow.await_task("stream_control", "approve", "awaiting_input", run_id=dag_run)
    airflow.await_noticed("stream_control", "approve", dag_run)
    question = airflow.get(f"dags/stream_control/dagRuns/{dag_run}/taskInstances/approve/-1/hitlDetails")
    assert question["subject"] == f"reset {stream}?"
    assert question["body"].startswith("1. Leave generation 1, its offsets. Its newest batch is ")
    assert airflow.tasks("stream_control", dag_run)["carry_out"] == "skipped"
    return dag_run


def _answer(airflow: RunningAirflow, dag_run: str, answer: str) -> None:
    path = f"dags/stream_control/dagRuns/{dag_run}/taskInstances/approve/-1/hitlDetails"
    airflow.patch(path, {"chosen_options": [answer], "params_input": {}})


def _generation(airflow: RunningAirflow, stream: str) -> GenerationObservation:
    generation = find_generation(airflow.ledger, stream)
    assert generation is not None
    return generation
