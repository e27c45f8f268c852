"""Pauses, changed declarations, take-over: supervision and the reconciler on a real ledger."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.fakes.launcher import FakeLauncher
from tests.fixtures.drivers import end_drivers
from tests.fixtures.reconciling import reconcile
from tests.fixtures.streams import continuous_stream
from tests.fixtures.successors import runs_since
from tests.fixtures.supervised_runs import deliver_first_batch, process_of

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import SettingsError, UnhealthyError
from sluice.failure_reasons import Failure, FailureReason
from sluice.launching.launcher_port import LaunchRequest
from sluice.launching.launchers import LocalLauncher
from sluice.ledger.airflow_owner import DagObservation, give_to_airflow, require_ownership
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import SuspensionCause, find_desired_state, set_desired_state, suspend
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.runs import beat, find_run, recent_runs, record_end
from sluice.processes.host_processes import observe_process
from sluice.processes.process_identity import ProcessState
from sluice.supervision import supervisor as supervisor_module
from sluice.supervision.limits import LEFT_TO_ITS_TASK
from sluice.supervision.stream_commands import restart_stream, start_stream
from sluice.supervision.stream_verdict import verdict_of
from sluice.supervision.supervision_values import SupervisionAction, SupervisionReason
from sluice.supervision.supervisor import SupervisionResult, Supervisor, plan_supervision, supervise

WANTED = continuous_stream(restart={"first_delay": "1 millisecond"})
UNPAUSED = DagObservation(airflow="ours", is_paused=False)
PAUSED = DagObservation(airflow="ours", is_paused=True)
PAUSED_BY_AIRFLOW = DagObservation(airflow="ours", is_paused=True, has_failed=True)


def started(supervisor: Supervisor, wanted: LoadedStream = WANTED) -> RunObservation:
    """A run whose driver was heard."""
    run = supervise(supervisor, wanted).run
    assert run is not None
    beat(supervisor.ledger, run.run_id)
    return find_run(supervisor.ledger, run.run_id)


def words(supervised: SupervisionResult) -> tuple[SupervisionAction, SupervisionReason]:
    """The action and the reason."""
    return supervised.decision.action, supervised.decision.reason


def fall_silent(ledger: Ledger) -> None:
    """Let ten minutes pass without a heartbeat."""
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.runs SET heartbeat_at = heartbeat_at - interval '10 minutes'"))
        connection.execute(text("UPDATE sluice.leases SET expires_at = expires_at - interval '10 minutes'"))


def end_earlier(ledger: Ledger, by: timedelta) -> None:
    """Let time pass since the newest run ended."""
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.runs SET ended_at = ended_at - :by"), {"by": by})
        connection.execute(text("UPDATE sluice.desired_states SET suspended_at = suspended_at - :by"), {"by": by})


def test_a_paused_dag_stops_its_stream_and_the_unpaused_one_goes_on(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    run = started(supervisor)
    assert reconcile(supervisor, WANTED, dag=UNPAUSED).acted is False
    paused = reconcile(supervisor, WANTED, dag=PAUSED)
    assert paused.changed == ("its DAG was paused: the stream is to stop",)
    assert words(paused.supervised) == (SupervisionAction.WAIT, SupervisionReason.STOPPING)
    assert beat(ledger, run.run_id).desired_state is DesiredState.STOPPED
    launcher.end(process_of(run), exit_code=0)
    again = reconcile(supervisor, WANTED, dag=PAUSED)
    assert (again.acted, again.changed) == (False, ())
    assert words(again.supervised) == (SupervisionAction.FINISH, SupervisionReason.STOPPED_AS_REQUESTED)
    assert "while its DAG is paused" in again.supervised.decision.explanation
    unpaused = reconcile(supervisor, WANTED, dag=UNPAUSED)
    assert unpaused.acted is False, "its own task starts it"
    assert words(unpaused.supervised) == (SupervisionAction.LAUNCH, SupervisionReason.WANTED_AGAIN)


def test_a_pause_beside_a_start_is_ignored_and_an_event_says_how_to_stop(
    supervisor: Supervisor, ledger: Ledger
) -> None:
    started(supervisor)
    reconcile(supervisor, WANTED, dag=UNPAUSED)
    set_desired_state(ledger, "flights", DesiredState.RUNNING)

    paused = reconcile(supervisor, WANTED, dag=PAUSED)

    assert words(paused.supervised)[1] is SupervisionReason.HEARTBEAT_FRESH
    (said, *_) = recent_events(ledger, EventSubject.STREAM, "flights", limit=9)
    assert (said.action, said.reason) == ("ignore_pause", "started_since")
    assert "sluice stream stop" in said.explanation


def test_a_dag_that_airflow_does_not_know_changes_nothing(supervisor: Supervisor, ledger: Ledger) -> None:
    suspend(ledger, "flights", SuspensionCause.PAUSED)
    assert reconcile(supervisor, WANTED, dag=None).changed == ()
    assert find_desired_state(ledger, "flights").suspension is SuspensionCause.PAUSED


def give_up(supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger) -> LoadedStream:
    """Let the stream fail so that no restart would help; it is given up."""
    run = started(supervisor)
    record_end(
        ledger,
        run.run_id,
        state=RunState.FAILED,
        exit_code=1,
        reason="a column is missing",
        failure=Failure.of(FailureReason.SCHEMA_DIFFERS),
    )
    launcher.end(process_of(run), exit_code=1)
    assert supervise(supervisor, WANTED).decision.action is SupervisionAction.GIVE_UP
    return WANTED


@pytest.mark.parametrize("paused", [PAUSED, PAUSED_BY_AIRFLOW], ids=["its runs are unknown", "its run failed"])
def test_a_stream_that_was_given_up_stays_given_up_when_airflow_pauses_its_dag(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger, paused: DagObservation
) -> None:
    reconcile(supervisor, WANTED, dag=UNPAUSED)
    give_up(supervisor, launcher, ledger)
    for _ in range(3):
        done = reconcile(supervisor, WANTED, dag=paused)
        assert (done.changed, done.supervised.decision.action) == ((), SupervisionAction.GIVE_UP)
        assert verdict_of(done.supervised.decision).is_healthy is False
    begun = start_stream(supervisor, WANTED, requested_by="ann")
    assert begun is not None
    assert begun.run is not None, "a person starts it although its DAG is still paused"
    beat(ledger, begun.run.run_id)
    assert words(reconcile(supervisor, WANTED, dag=paused).supervised)[1] is SupervisionReason.HEARTBEAT_FRESH


def test_a_red_task_stops_no_living_driver(supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger) -> None:
    """Settings or declaration were wrong, or the retries were spent; Airflow pauses the DAG without a click."""
    run = started(supervisor)
    reconcile(supervisor, WANTED, dag=UNPAUSED)
    assert reconcile(supervisor, WANTED, dag=PAUSED_BY_AIRFLOW).changed == ()
    assert beat(ledger, run.run_id).desired_state is DesiredState.RUNNING
    launcher.end(process_of(run), exit_code=1)
    end_earlier(ledger, LEFT_TO_ITS_TASK)
    again = reconcile(supervisor, WANTED, dag=PAUSED_BY_AIRFLOW)
    assert again.acted, "it is to run, and its paused DAG has no task that restarts it"


def test_a_new_airflow_whose_dags_are_all_paused_stops_nothing(supervisor: Supervisor, ledger: Ledger) -> None:
    run = started(supervisor)
    reconcile(supervisor, WANTED, dag=UNPAUSED)
    new = replace(PAUSED, airflow="a new one")
    for _ in range(2):
        assert reconcile(supervisor, WANTED, dag=new).changed == ()
    assert beat(ledger, run.run_id).desired_state is DesiredState.RUNNING
    reconcile(supervisor, WANTED, dag=replace(new, is_paused=False))
    assert reconcile(supervisor, WANTED, dag=new).changed, "its own pause counts, once it was seen unpaused"


def test_a_ledger_belongs_to_one_airflow_until_it_is_given_away(ledger: Ledger) -> None:
    require_ownership(ledger, "first")
    require_ownership(ledger, "first")
    with pytest.raises(SettingsError, match="belongs to Airflow first since") as refused:
        require_ownership(ledger, "second")
    assert "`sluice ledger airflow --give-to second`" in str(refused.value)
    assert give_to_airflow(ledger, "second", given_by="ann").claimed_by == "ann"
    require_ownership(ledger, "second")
    with pytest.raises(SettingsError, match="belongs to Airflow second"):
        require_ownership(ledger, "first")


def test_a_person_starts_a_stream_that_a_pause_has_stopped(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    run = started(supervisor)
    reconcile(supervisor, WANTED, dag=UNPAUSED)
    reconcile(supervisor, WANTED, dag=PAUSED)
    launcher.end(process_of(run), exit_code=0)
    assert reconcile(supervisor, WANTED, dag=PAUSED).supervised.decision.action is SupervisionAction.FINISH
    again = start_stream(supervisor, WANTED, requested_by="ann")
    assert again is not None
    assert again.run is not None
    beat(ledger, again.run.run_id)
    assert reconcile(supervisor, WANTED, dag=PAUSED).changed == (), "the pause is older than the start"
    assert find_desired_state(ledger, "flights").effective_state is DesiredState.RUNNING


def test_a_stream_that_never_ran_is_left_to_its_dag_however_long_ago_it_was_asked_for(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="ann")
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.desired_states SET requested_at = requested_at - interval '1 hour'"))
    done = reconcile(supervisor, WANTED, dag=UNPAUSED)
    assert (done.acted, words(done.supervised)) == (False, (SupervisionAction.LAUNCH, SupervisionReason.NEVER_STARTED))
    assert launcher.requests == []


def test_what_no_task_saw_is_done_after_a_while(supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger) -> None:
    assert reconcile(supervisor, WANTED, dag=UNPAUSED).acted is False, "a first start is left to the stream's DAG"
    launcher.end(process_of(started(supervisor)), exit_code=1)
    assert reconcile(supervisor, WANTED, dag=UNPAUSED).acted is False
    end_earlier(ledger, LEFT_TO_ITS_TASK)
    assert reconcile(supervisor, WANTED, dag=None).acted is False
    done = reconcile(supervisor, WANTED, dag=UNPAUSED)
    assert (done.acted, words(done.supervised)) == (True, (SupervisionAction.LAUNCH, SupervisionReason.RESTART_DUE))
    assert len(launcher.requests) == 2


def test_beside_a_paused_dag_only_the_command_of_a_request_is_waited_for(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    launcher.end(process_of(started(supervisor)), exit_code=1)
    assert reconcile(supervisor, WANTED, dag=PAUSED).acted is True, "a new DAG: no person has paused it, it has no task"
    launcher.end(process_of(recent_runs(ledger, "flights", limit=1)[0]), exit_code=1)
    set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="ann")
    assert reconcile(supervisor, WANTED, dag=PAUSED).acted is False
    with ledger.transaction() as connection:
        earlier = text("UPDATE sluice.desired_states SET requested_at = requested_at - :by")
        connection.execute(earlier, {"by": LEFT_TO_ITS_TASK})
    assert reconcile(supervisor, WANTED, dag=PAUSED).acted is True
    assert len(launcher.requests) == 3


def test_a_driver_that_disappeared_from_a_paused_stream_is_closed(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    run = started(supervisor)
    reconcile(supervisor, WANTED, dag=UNPAUSED)
    reconcile(supervisor, WANTED, dag=PAUSED)
    launcher.disappear(process_of(run))
    reconcile(supervisor, WANTED, dag=PAUSED)
    assert find_run(ledger, run.run_id).state is RunState.LOST
    assert len(launcher.requests) == 1


def test_a_changed_declaration_replaces_the_run_at_a_batch_boundary(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    run = started(supervisor)
    deliver_first_batch(ledger, run, WANTED)
    changed = continuous_stream(digest="new", trigger={"processing_time": "9 seconds"})
    assert words(plan_supervision(changed, ledger=ledger, launcher=launcher)) == (
        SupervisionAction.REPLACE,
        SupervisionReason.DECLARATION_CHANGED,
    )
    done = reconcile(supervisor, changed, dag=UNPAUSED)
    assert (done.acted, words(done.supervised)) == (True, (SupervisionAction.WAIT, SupervisionReason.STOPPING))
    assert find_run(ledger, run.run_id).end_asked_because == "its declaration has changed"
    assert launcher.kills == []
    launcher.end(process_of(run), exit_code=0)
    again = supervise(supervisor, changed)
    assert words(again) == (SupervisionAction.LAUNCH, SupervisionReason.WANTED_AGAIN), "its end is not a failure"
    assert again.run is not None
    assert (again.run.declaration_digest, runs_since(ledger, run)) == ("new", 1)


def test_a_change_that_the_checkpoint_cannot_follow_leaves_the_run_alone(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    run = started(supervisor)
    deliver_first_batch(ledger, run, WANTED)
    changed = continuous_stream(digest="new", inputs={"records": {"stream": {"rate": {}}}})
    done = reconcile(supervisor, changed, dag=UNPAUSED)
    assert (done.acted, words(done.supervised)) == (False, (SupervisionAction.ADOPT, SupervisionReason.CHANGE_REFUSED))
    assert "input records was `kafka connection=flights_kafka topics=flights` and is now `rate`" in (
        done.supervised.decision.explanation
    )
    assert beat(ledger, run.run_id).desired_state is DesiredState.RUNNING
    launcher.end(process_of(run), exit_code=1)
    assert words(supervise(supervisor, changed)) == (SupervisionAction.GIVE_UP, SupervisionReason.CHANGE_REFUSED)
    assert len(launcher.requests) == 1


def test_an_unknown_driver_loses_its_place_when_its_lease_is_over(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    run = started(supervisor)
    launcher.hide(process_of(run))
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.runs SET heartbeat_at = heartbeat_at - interval '10 minutes'"))
    assert words(supervise(supervisor, WANTED)) == (SupervisionAction.WAIT, SupervisionReason.DRIVER_UNKNOWN)
    fall_silent(ledger)
    successor = supervise(supervisor, WANTED).run
    assert successor is not None
    assert runs_since(ledger, run) == 1
    assert find_run(ledger, run.run_id).state is RunState.LOST
    answer = beat(ledger, run.run_id)
    assert (answer.desired_state, answer.holds_lease) == (DesiredState.STOPPED, False)


def test_a_wedged_driver_out_of_sight_loses_its_lease_when_its_stop_is_overdue(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    """Its main thread hangs, its heartbeat does not: the lease would never expire."""
    run = started(supervisor)
    launcher.hide(process_of(run))
    set_desired_state(ledger, "flights", DesiredState.STOPPED, requested_by="ann")
    assert words(supervise(supervisor, WANTED)) == (SupervisionAction.WAIT, SupervisionReason.STOPPING)
    with ledger.transaction() as connection:
        connection.execute(
            text("UPDATE sluice.desired_states SET requested_at = requested_at - interval '121 seconds'")
        )
    assert words(supervise(supervisor, WANTED)) == (SupervisionAction.FINISH, SupervisionReason.STOPPED_AS_REQUESTED)
    assert beat(ledger, run.run_id).holds_lease is False, "it learns that it must end"
    assert str(find_run(ledger, run.run_id).reason).endswith("what it still publishes will be refused.")


def test_a_restart_does_not_override_a_later_stop(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    run = started(supervisor)

    def stop_meanwhile(_: str) -> None:
        set_desired_state(ledger, "flights", DesiredState.STOPPED, requested_by="bob")
        launcher.end(process_of(run), exit_code=0)

    with pytest.raises(UnhealthyError, match="asked to stop by bob while it was restarted; it stays stopped"):
        restart_stream(supervisor, WANTED, requested_by="ann", on_look=stop_meanwhile)
    assert find_desired_state(ledger, "flights").effective_state is DesiredState.STOPPED
    assert len(launcher.requests) == 1


def test_a_restart_requests_before_its_wait_and_never_after_it(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    """A request after the wait would override a stop that came just before it."""
    run = started(supervisor)
    requested: list[datetime | None] = []

    def note(_: str) -> None:
        requested.append(find_desired_state(ledger, "flights").requested_at)
        launcher.end(process_of(run), exit_code=0)

    restarted = restart_stream(supervisor, WANTED, requested_by="ann", on_look=note)
    assert restarted is not None
    assert restarted.decision.action is SupervisionAction.LAUNCH
    assert [find_desired_state(ledger, "flights").requested_at] == requested


@pytest.mark.parametrize("is_hidden", [False, True], ids=["it would be ended", "its place would be taken"])
def test_a_silent_driver_that_is_heard_in_time_keeps_its_place(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, is_hidden: bool
) -> None:
    """As when the database's clock is set forward by an hour: every lease is over until the next heartbeat."""
    run = started(supervisor)
    fall_silent(ledger)
    if is_hidden:
        launcher.hide(process_of(run))
    monkeypatch.setattr(supervisor_module, "HEARD_AGAIN_SECONDS", 60.0)
    late = threading.Timer(1.0, beat, (ledger, run.run_id))
    late.start()
    assert words(supervise(supervisor, WANTED)) == (SupervisionAction.ADOPT, SupervisionReason.HEARTBEAT_FRESH)
    late.join()
    assert [seen.run_id for seen in recent_runs(ledger, "flights", limit=9)] == [run.run_id]


@pytest.fixture
def real_supervisor(supervisor: Supervisor, ledger: Ledger, ledger_url: str, tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor of real processes that sleep."""

    def request_for(wanted: LoadedStream, run: RunObservation) -> LaunchRequest:
        log_file = tmp_path / f"{run.run_id}.log"
        return LaunchRequest(run_id=run.run_id, stream=wanted.name, command=("sleep", "600"), log_file=log_file)

    yield replace(supervisor, launcher=LocalLauncher(ledger_url=ledger_url), request_for=request_for)
    end_drivers(ledger)


def test_a_suspended_driver_is_ended_by_its_identity_before_another_takes_over(
    real_supervisor: Supervisor, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "STOP_GRACE_SECONDS", 0.5)
    monkeypatch.setattr(supervisor_module, "EXIT_RECORD_SECONDS", 30.0)
    first = started(real_supervisor)
    os.kill(process_of(first).pid, signal.SIGSTOP)
    assert supervise(real_supervisor, WANTED).run == first, "its lease is not over"
    fall_silent(ledger)
    second = supervise(real_supervisor, WANTED).run
    assert second is not None
    assert observe_process(process_of(first)) is ProcessState.GONE
    assert (find_run(ledger, first.run_id).reason, runs_since(ledger, first)) == ("killed by SIGKILL", 1)
    assert len([run for run in recent_runs(ledger, "flights", limit=9) if run.is_live]) == 1
