"""The events that supervision and a person's commands leave: each before its action, none for a pass without one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.fakes.launcher import FakeLauncher
from tests.fixtures.drivers import await_condition
from tests.fixtures.reconciling import reconcile
from tests.fixtures.stream_commands import Sluice, document
from tests.fixtures.streams import continuous_stream
from tests.fixtures.supervised_runs import process_of

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import LaunchError
from sluice.failure_reasons import Failure, FailureReason
from sluice.launching.launcher_port import LaunchRequest
from sluice.ledger.airflow_owner import DagObservation
from sluice.ledger.connection import Ledger
from sluice.ledger.events import EventObservation, EventSubject, recent_events
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.runs import beat, find_run, newest_run, record_end
from sluice.processes.process_identity import ProcessIdentity, ProcessState
from sluice.supervision.stream_commands import reset_breaker, restart_stream, start_stream, stop_stream
from sluice.supervision.supervisor import Supervisor, supervise

WANTED = continuous_stream(restart={"first_delay": "1 millisecond"})
PAUSED = DagObservation(airflow="ours", is_paused=True)
UNPAUSED = DagObservation(airflow="ours", is_paused=False)


class StrictLauncher(FakeLauncher):
    """Refuses to act unless the newest event says that it will."""

    def launch(self, request: LaunchRequest) -> ProcessIdentity:
        """Start a driver whose launch was saved."""
        self._require("launch", request.run_id)
        return super().launch(request)

    def stop(self, process: ProcessIdentity, *, grace_seconds: float) -> ProcessState:
        """End a driver whose end was saved."""
        self._require("end_driver", newest(self.ledger).run_id)
        return super().stop(process, grace_seconds=grace_seconds)

    def _require(self, action: str, run_id: str | None) -> None:
        event = newest(self.ledger)
        if (event.action, event.run_id) != (action, run_id):
            raise LaunchError(f"{action} of {run_id} was not saved before it is carried out: {event}")


@pytest.fixture
def launcher(ledger: Ledger) -> FakeLauncher:
    """Drivers in memory."""
    return StrictLauncher(ledger)


@pytest.fixture
def supervisor(supervisor: Supervisor) -> Supervisor:
    """A supervisor of a task of Airflow."""
    return replace(supervisor, launched_by="airflow: flights, run 1")


def newest(ledger: Ledger) -> EventObservation:
    """The newest event of the stream."""
    return recent_events(ledger, EventSubject.STREAM, "flights", limit=1)[0]


def actions(ledger: Ledger) -> list[str]:
    """The actions that were saved, oldest first."""
    return [event.action for event in reversed(recent_events(ledger, EventSubject.STREAM, "flights", limit=100))]


def running(supervisor: Supervisor, wanted: LoadedStream = WANTED) -> RunObservation:
    """A run whose driver was heard."""
    run = supervise(supervisor, wanted).run
    assert run is not None
    beat(supervisor.ledger, run.run_id)
    return find_run(supervisor.ledger, run.run_id)


def test_a_start_is_one_event_and_later_passes_leave_none(supervisor: Supervisor, ledger: Ledger) -> None:
    run = running(supervisor)
    for _ in range(3):
        supervise(supervisor, WANTED)
        reconcile(supervisor, WANTED, dag=UNPAUSED)
    assert actions(ledger) == ["launch"]
    event = newest(ledger)
    assert (event.reason, event.run_id, event.actor.name) == ("never_started", run.run_id, "airflow: flights, run 1")
    assert event.explanation == "Stream flights has never run."


def test_a_restart_names_the_failure_that_it_follows(supervisor: Supervisor, ledger: Ledger) -> None:
    run = running(supervisor)
    record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason="boom")
    supervise(supervisor, WANTED)
    event = newest(ledger)
    assert (event.action, event.reason, event.evidence["failures"]) == ("launch", "restart_due", 1)
    assert "boom" in event.explanation


def test_a_driver_that_is_gone_is_closed_with_an_event(
    supervisor: Supervisor, ledger: Ledger, launcher: FakeLauncher
) -> None:
    run = running(supervisor)
    launcher.disappear(process_of(run))
    supervise(supervisor, WANTED)
    assert actions(ledger) == ["launch", "close_run", "launch"]
    assert recent_events(ledger, EventSubject.STREAM, "flights", limit=9)[1].run_id == run.run_id


def test_a_run_is_adopted_once_by_each_task(supervisor: Supervisor, ledger: Ledger) -> None:
    running(supervisor)
    for launched_by in ("airflow: flights, run 2", "airflow: flights, run 3"):
        for _ in range(3):
            supervise(replace(supervisor, launched_by=launched_by), WANTED)
    supervise(supervisor, WANTED)
    assert actions(ledger) == ["launch", "adopt", "adopt"]


def test_a_stream_that_is_given_up_has_one_event_until_it_is_started_again(
    supervisor: Supervisor, ledger: Ledger
) -> None:
    def fail() -> None:
        failure = Failure.of(FailureReason.TRANSFORMATION_FAILED)
        record_end(
            ledger, running(supervisor).run_id, state=RunState.FAILED, exit_code=1, reason="boom", failure=failure
        )
        for _ in range(3):
            supervise(supervisor, WANTED)

    fail()
    assert actions(ledger) == ["launch", "give_up"]
    assert newest(ledger).evidence["failure_reason"] == "transformation_failed"
    reset_breaker(supervisor, WANTED, requested_by="command line: ann@host")
    fail()
    assert actions(ledger) == ["launch", "give_up", "reset_breaker", "launch", "give_up"]


def test_a_changed_declaration_replaces_a_run_with_one_event(supervisor: Supervisor, ledger: Ledger) -> None:
    running(supervisor)
    changed = continuous_stream(digest="changed", restart={"first_delay": "1 millisecond"})
    for _ in range(3):
        supervise(supervisor, changed)
    assert actions(ledger) == ["launch", "replace"]


def test_a_driver_that_does_not_stop_is_ended_after_its_event(
    supervisor: Supervisor, ledger: Ledger, launcher: FakeLauncher
) -> None:
    run = running(supervisor)
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.leases SET expires_at = now()"))
        connection.execute(text("UPDATE sluice.runs SET heartbeat_at = now() - interval '1 hour'"))
    supervise(supervisor, WANTED)
    assert actions(ledger)[:2] == ["launch", "end_driver"]
    assert launcher.observe(process_of(run)) is ProcessState.GONE


def test_a_paused_dag_suspends_and_resumes_with_one_event_each(supervisor: Supervisor, ledger: Ledger) -> None:
    running(supervisor)
    for dag in (UNPAUSED, PAUSED, PAUSED, PAUSED, UNPAUSED, UNPAUSED):
        reconcile(supervisor, WANTED, dag=dag)
    assert actions(ledger)[:3] == ["launch", "suspend", "resume"]
    assert actions(ledger).count("suspend") == actions(ledger).count("resume") == 1


@pytest.mark.parametrize(
    ("command", "action"),
    [
        (lambda supervisor: start_stream(supervisor, WANTED, requested_by="ann"), "start"),
        (lambda supervisor: stop_stream(supervisor, WANTED, requested_by="ann", on_look=lambda _: None), "stop"),
        (lambda supervisor: restart_stream(supervisor, WANTED, requested_by="ann", on_look=lambda _: None), "restart"),
        (lambda supervisor: reset_breaker(supervisor, WANTED, requested_by="ann"), "reset_breaker"),
    ],
)
def test_a_command_is_saved_with_its_person_before_anything_else(
    supervisor: Supervisor, ledger: Ledger, command: Callable[[Supervisor], object], action: str
) -> None:
    command(supervisor)
    events = recent_events(ledger, EventSubject.STREAM, "flights", limit=9)
    assert (events[-1].action, events[-1].reason, events[-1].actor.name) == (action, "requested", "ann")
    assert [event.action for event in events].count(action) == 1


def test_a_person_s_commands_are_listed_newest_first(sluice: Sluice, ledger: Ledger) -> None:
    assert sluice("stream", "events", "flights") == (0, "flights: no event is recorded\n", "")
    sluice("stream", "start", "flights")
    sluice("stream", "stop", "flights")
    listed = document(sluice("stream", "events", "flights", "--json"))
    assert [event["action"] for event in listed["events"]] == ["stop", "launch", "start"]
    stop, launch, start = listed["events"]
    assert start["actor"]["kind"] == stop["actor"]["kind"] == "person"
    assert start["actor"]["name"].startswith("command line: ")
    assert launch["run_id"] == newest_run(ledger, "flights").run_id  # type: ignore[union-attr]
    assert [event["action"] for event in document(sluice("stream", "show", "flights", "--json"))["events"]] == [
        "stop",
        "launch",
        "start",
    ]
    output = sluice("stream", "show", "flights")[1]
    assert "Events" in output
    assert "command line: " in output


def test_events_are_limited_by_number_and_time(sluice: Sluice) -> None:
    sluice("stream", "stop", "flights")
    sluice("stream", "reset-breaker", "flights")
    assert len(document(sluice("stream", "events", "flights", "--limit", "1", "--json"))["events"]) == 1
    assert len(document(sluice("stream", "events", "flights", "--since", "1 hour", "--json"))["events"]) == 2
    assert document(sluice("stream", "events", "flights", "--since", "2199-01-01T00:00", "--json"))["events"] == []
    exit_code, _, errors = sluice("stream", "events", "flights", "--since", "yesterday")
    assert exit_code == 2
    assert "--since is neither a duration nor a time, got 'yesterday'." in errors


def test_an_unknown_stream_is_refused_and_a_former_one_keeps_its_events(sluice: Sluice, tmp_path: Path) -> None:
    assert sluice("stream", "events", "nothing")[0] == 2
    sluice("stream", "stop", "flights")
    (tmp_path / "pipelines" / "flights.stream.yaml").unlink()
    assert "stop" in sluice("stream", "events", "flights")[1]


def test_new_events_are_followed(sluice: Sluice, tmp_path: Path) -> None:
    sluice("stream", "stop", "flights")
    output = tmp_path / "followed"
    command = [sys.executable, "-m", "sluice.cli.app", "stream", "events", "flights", "--follow", "--json"]
    with output.open("w") as log, subprocess.Popen(command, stdout=log) as follower:  # noqa: S603  # ours
        await_condition(lambda: len(output.read_text().splitlines()) == 1)
        sluice("stream", "reset-breaker", "flights")
        await_condition(lambda: len(output.read_text().splitlines()) == 2)
        follower.terminate()
    assert [json.loads(line)["action"] for line in output.read_text().splitlines()] == ["stop", "reset_breaker"]


def test_the_heartbeat_wait_is_no_event(supervisor: Supervisor, ledger: Ledger) -> None:
    run = running(supervisor)
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.runs SET heartbeat_at = now() - :age"), {"age": timedelta(minutes=2)})
    supervise(supervisor, WANTED)
    assert find_run(ledger, run.run_id).is_live
    assert actions(ledger) == ["launch"]
