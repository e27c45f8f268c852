"""What follows when DAGs are paused, deleted and made again, or restored with their database: on a real ledger."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from tests.fakes.launcher import FakeLauncher
from tests.fixtures.streams import continuous_stream
from tests.integration.supervision.test_reconcile_all import declared, let_pass, passed

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import LaunchError, LedgerError
from sluice.ledger.airflow_owner import DagObservation, PauseOrigin, find_dag_pause, forget_dags
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import (
    DesiredStateObservation,
    SuspensionCause,
    find_desired_state,
    set_desired_state,
    suspend,
)
from sluice.ledger.events import EventAction, EventSubject, recent_events
from sluice.ledger.run_values import DesiredState, RunObservation
from sluice.ledger.runs import beat, find_run
from sluice.processes.process_identity import ProcessIdentity, ProcessState
from sluice.supervision import followed_pauses
from sluice.supervision.alerts import Alert
from sluice.supervision.followed_pauses import MANY_PAUSES, DagLooks, follow_pauses, follow_unpausing, newest_look
from sluice.supervision.reconciler import look_after, reconcile_all
from sluice.supervision.stream_commands import request_start, request_stop, reset_breaker
from sluice.supervision.supervisor import Supervisor, read_to_judge, supervise

WANTED = continuous_stream()
UNPAUSED = DagObservation(airflow="ours", is_paused=False)
PAUSED = DagObservation(airflow="ours", is_paused=True)
MADE_AGAIN = replace(PAUSED, has_runs=False)


def streams(count: int) -> list[LoadedStream]:
    """So many streams."""
    return [continuous_stream(f"stream_{number}") for number in range(count)]


def look(supervisor: Supervisor, dag: DagObservation | None, *wanted: LoadedStream) -> DagLooks:
    """One look at the DAGs of these streams, which are all alike."""
    return follow_pauses(supervisor, wanted or (WANTED,), lambda _: dag, seconds=10.0)


def suspension(ledger: Ledger, stream: str = "flights") -> SuspensionCause | None:
    """What suspends a stream."""
    return find_desired_state(ledger, stream).suspension


def started(supervisor: Supervisor, wanted: LoadedStream = WANTED) -> RunObservation:
    """A run whose driver was heard."""
    run = supervise(supervisor, wanted).run
    assert run is not None
    beat(supervisor.ledger, run.run_id)
    return find_run(supervisor.ledger, run.run_id)


def test_a_dag_that_was_deleted_and_made_again_stops_nothing_and_is_alerted(
    supervisor: Supervisor, ledger: Ledger
) -> None:
    """A person deletes the DAG to clear its history; the next parse makes it again, paused as every new one."""
    run = started(supervisor)
    alerts: list[tuple[Alert, ...]] = []
    for dag in (UNPAUSED, None, PAUSED, PAUSED):
        beat(ledger, run.run_id)
        alerts.append(reconcile_all(supervisor, declared(WANTED), observe_dag={"flights": dag}.get, number=0))
    assert suspension(ledger) is None
    assert find_run(ledger, run.run_id).desired_state is DesiredState.RUNNING
    assert [[(alert.reason, alert.is_new) for alert in each] for each in alerts] == [
        [],
        [],
        [("pause unclear", True)],
        [("pause unclear", False)],
    ]
    assert "`sluice stream stop flights`" in alerts[-1][0].sentence
    request_start(ledger, "flights", requested_by="ann")
    beat(ledger, run.run_id)
    assert reconcile_all(supervisor, declared(WANTED), observe_dag=lambda _: PAUSED, number=0) == ()


def test_a_dag_that_was_made_again_between_two_looks_has_no_run_and_stops_nothing(
    supervisor: Supervisor, ledger: Ledger
) -> None:
    look(supervisor, UNPAUSED)
    look(supervisor, MADE_AGAIN)
    assert suspension(ledger) is None
    known = find_dag_pause(ledger, "flights")
    assert known is not None
    assert known.origin is PauseOrigin.UNCLEAR


@pytest.mark.parametrize(("failed_runs", "is_stopped"), [(3, False), (2, True), (1, True), (None, True)])
def test_a_red_run_without_a_logical_date_is_no_pause_of_a_person(
    supervisor: Supervisor, ledger: Ledger, failed_runs: int | None, is_stopped: bool
) -> None:
    """Airflow names the newest run by logical date, which is green here, and pauses the DAG for the newest one. The
    failed runs are counted when the DAG was unpaused, and not in the looks after that."""
    for dag in (replace(UNPAUSED, failed_runs=2), UNPAUSED, replace(PAUSED, failed_runs=failed_runs)):
        looks = look(supervisor, dag)
    assert (suspension(ledger) is SuspensionCause.PAUSED) is is_stopped
    known, seen = find_dag_pause(ledger, "flights"), looks.dags["flights"]
    assert known is not None
    assert seen is not None
    assert known.origin is (PauseOrigin.PERSON if is_stopped else PauseOrigin.FAILURE)
    assert seen.has_failed is not is_stopped
    assert known.failed_runs == 2
    look(supervisor, UNPAUSED)
    look(supervisor, PAUSED)
    assert suspension(ledger) is SuspensionCause.PAUSED, "the next pause is judged by itself"


def test_a_metadata_database_of_yesterday_stops_nothing(supervisor: Supervisor, ledger: Ledger) -> None:
    look(supervisor, UNPAUSED)
    assert forget_dags(ledger, "ours") == 1
    look(supervisor, PAUSED)
    assert suspension(ledger) is None


def test_many_dags_that_turn_paused_in_one_pass_stop_nothing(supervisor: Supervisor, ledger: Ledger) -> None:
    few, many = streams(MANY_PAUSES - 1), streams(MANY_PAUSES)
    look(supervisor, UNPAUSED, *many)
    look(supervisor, PAUSED, *many)
    assert {suspension(ledger, stream.name) for stream in many} == {None}
    look(supervisor, UNPAUSED, *many)
    look(supervisor, PAUSED, *few)
    assert {suspension(ledger, stream.name) for stream in few} == {SuspensionCause.PAUSED}, "a person may do that"


def test_a_stream_that_is_stopped_already_is_not_among_the_many(supervisor: Supervisor, ledger: Ledger) -> None:
    one, *others = streams(MANY_PAUSES)
    look(supervisor, UNPAUSED, one, *others)
    for stream in others:
        set_desired_state(ledger, stream.name, DesiredState.STOPPED, requested_by="a person")
    look(supervisor, PAUSED, one, *others)
    assert suspension(ledger, one.name) is SuspensionCause.PAUSED


def test_the_pause_of_a_person_stops_and_says_so(supervisor: Supervisor, ledger: Ledger) -> None:
    look(supervisor, UNPAUSED)
    assert look(supervisor, PAUSED).changes["flights"] == "its DAG was paused: the stream is to stop"
    assert suspension(ledger) is SuspensionCause.PAUSED
    known = find_dag_pause(ledger, "flights")
    assert known is not None
    assert known.origin is PauseOrigin.PERSON
    assert not follow_unpausing(supervisor, "flights", lambda _: PAUSED)
    assert follow_unpausing(supervisor, "flights", lambda _: UNPAUSED)
    assert suspension(ledger) is None


def test_a_dag_that_is_unpaused_and_paused_between_two_looks_stops_its_stream(
    supervisor: Supervisor, ledger: Ledger
) -> None:
    """No pass has seen it unpaused. The stream's own task has: it runs in an unpaused DAG alone."""
    look(supervisor, replace(PAUSED, has_runs=False))
    assert not follow_unpausing(supervisor, "flights", lambda _: replace(UNPAUSED, failed_runs=0))
    look(supervisor, replace(PAUSED, failed_runs=0))
    assert suspension(ledger) is SuspensionCause.PAUSED


def test_a_failure_between_two_looks_is_no_pause_of_a_person(supervisor: Supervisor, ledger: Ledger) -> None:
    look(supervisor, replace(PAUSED, has_runs=False))
    follow_unpausing(supervisor, "flights", lambda _: replace(UNPAUSED, failed_runs=2))
    look(supervisor, replace(PAUSED, failed_runs=3))
    assert suspension(ledger) is None


def test_a_pause_after_a_start_by_the_streams_own_task_is_newer(supervisor: Supervisor, ledger: Ledger) -> None:
    look(supervisor, UNPAUSED)
    request_start(ledger, "flights", requested_by="airflow: flights, unpaused")
    follow_unpausing(supervisor, "flights", lambda _: UNPAUSED)
    look(supervisor, PAUSED)
    assert suspension(ledger) is SuspensionCause.PAUSED


def test_what_a_streams_task_sees_while_a_pass_asks_is_known_to_the_pass(
    supervisor: Supervisor, ledger: Ledger
) -> None:
    look(supervisor, PAUSED)
    before = looking(lambda: follow_unpausing(supervisor, "flights", lambda _: UNPAUSED), PAUSED)
    looks = follow_pauses(supervisor, [WANTED], before, seconds=10.0)
    assert suspension(ledger) is None, "the answer was asked for before the DAG was seen unpaused"
    assert looks.dags == {"flights": UNPAUSED}
    look(supervisor, PAUSED)
    assert suspension(ledger) is SuspensionCause.PAUSED


def test_a_driver_is_left_to_the_task_that_has_seen_its_dag_unpaused_since_the_pass_asked(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    look(supervisor, PAUSED)
    follow_unpausing(supervisor, "flights", lambda _: UNPAUSED)
    run = started(supervisor)
    assert run.process is not None
    launcher.end(run.process, exit_code=1)
    known = read_to_judge(ledger, [WANTED], with_progress=True)["flights"]

    assert newest_look(ledger, "flights", PAUSED) == UNPAUSED
    of_another = replace(PAUSED, airflow="another")
    assert newest_look(ledger, "flights", of_another) is of_another
    assert not look_after(supervisor, WANTED, known, dag=UNPAUSED).acted
    assert look_after(supervisor, WANTED, known, dag=PAUSED).acted


def test_a_look_of_before_does_not_replace_a_newer_one(supervisor: Supervisor, ledger: Ledger) -> None:
    """The task asks, the pass sees the pause and records it, the task records."""
    look(supervisor, UNPAUSED)
    request_start(ledger, "flights", requested_by="ann")

    def paused_meanwhile(_: str) -> DagObservation:
        look(supervisor, PAUSED)
        return UNPAUSED

    follow_unpausing(supervisor, "flights", paused_meanwhile)
    known = find_dag_pause(ledger, "flights")
    assert known is not None
    assert known.is_paused


def test_what_following_one_pause_raises_keeps_no_other_one_waiting(
    supervisor: Supervisor, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = streams(2)
    look(supervisor, UNPAUSED, first, second)

    def suspend_second(of: Ledger, stream: str, *arguments: Any, **named: Any) -> DesiredStateObservation:
        if stream == first.name:
            raise LedgerError("no answer about the first one")
        return suspend(of, stream, *arguments, **named)

    monkeypatch.setattr(followed_pauses, "suspend", suspend_second)
    assert list(look(supervisor, PAUSED, first, second).problems) == [first.name]
    assert suspension(ledger, second.name) is SuspensionCause.PAUSED
    monkeypatch.undo()
    assert look(supervisor, PAUSED, first).changes, "what was lost is noticed again"


@dataclass(slots=True)
class SilentLauncher(FakeLauncher):
    """Where the drivers run, nobody answers."""

    def observe(self, process: ProcessIdentity) -> ProcessState:
        """No answer."""
        raise LaunchError(f"no answer about process {process.pid}")


def test_what_looking_at_one_driver_raises_keeps_no_other_pause_waiting(supervisor: Supervisor, ledger: Ledger) -> None:
    first, second = streams(2)
    look(supervisor, UNPAUSED, first, second)
    started(supervisor, first)
    silent = replace(supervisor, launcher=SilentLauncher(ledger))
    assert list(look(silent, PAUSED, first, second).problems) == [first.name]
    assert suspension(ledger, first.name) is None
    assert suspension(ledger, second.name) is SuspensionCause.PAUSED
    assert look(supervisor, PAUSED, first).changes, "what was not followed is noticed again"


def looking(during: Callable[[], object], dag: DagObservation) -> Callable[[str], DagObservation]:
    """Airflow answers slowly: somebody else acts between the look at the ledger and the answer."""

    def observe_dag(_: str) -> DagObservation:
        during()
        return dag

    return observe_dag


def test_a_start_while_airflow_is_asked_is_newer_than_the_pause(supervisor: Supervisor, ledger: Ledger) -> None:
    look(supervisor, UNPAUSED)
    by_a_person = looking(lambda: request_start(ledger, "flights", requested_by="ann"), PAUSED)
    follow_pauses(supervisor, [WANTED], by_a_person, seconds=10.0)
    assert suspension(ledger) is None
    newest = recent_events(ledger, EventSubject.STREAM, "flights", limit=1)[0]
    assert (newest.action, newest.reason) == (EventAction.IGNORE_PAUSE, "started_since")


def test_unpausing_resumes_no_stream_whose_task_was_marked_meanwhile(supervisor: Supervisor, ledger: Ledger) -> None:
    suspend(ledger, "flights", SuspensionCause.PAUSED)

    def mark() -> None:
        request_start(ledger, "flights", requested_by="ann")
        suspend(ledger, "flights", SuspensionCause.MARKED)

    follow_pauses(supervisor, [WANTED], looking(mark, UNPAUSED), seconds=10.0)
    assert suspension(ledger) is SuspensionCause.MARKED


def test_what_was_decided_on_an_older_request_is_not_written(supervisor: Supervisor, ledger: Ledger) -> None:
    given_up_on = find_desired_state(ledger, "flights")
    request_stop(ledger, "flights", requested_by="ann")
    set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="a task", decided_on=given_up_on)
    assert find_desired_state(ledger, "flights").desired_state is DesiredState.STOPPED
    reset = reset_breaker(supervisor, WANTED, requested_by="bob")
    assert (reset.desired_state, reset.requested_by) == (DesiredState.STOPPED, "ann"), "only the count is reset"


def test_a_slow_airflow_leaves_time_for_the_drivers_and_comes_to_every_dag(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    wanted = streams(6)
    asked: list[str] = []

    def observe_dag(stream: str) -> DagObservation:
        asked.append(stream)
        time.sleep(0.2)  # the share of the pass is over after a second of them
        return UNPAUSED

    for number in range(8):
        alerts = reconcile_all(supervisor, declared(*wanted), observe_dag=observe_dag, number=number, pass_seconds=2.0)
        assert {alert.reason for alert in alerts} <= {"never started"}, "every stream was reconciled"
        if number and {stream.name for stream in wanted} <= set(asked):
            break  # a crowded machine asks about fewer in a pass
    assert {stream.name for stream in wanted} <= set(asked)


@pytest.mark.full  # every run: an Airflow that is slow
def test_a_dag_that_airflow_never_answers_about_leaves_out_no_other_one(supervisor: Supervisor, ledger: Ledger) -> None:
    wanted, hangs = streams(4), threading.Event()

    def observe_dag(stream: str) -> DagObservation:
        if stream == "stream_1":
            hangs.wait(30)
        return UNPAUSED

    asked = set()
    for number in range(6):
        looks = follow_pauses(supervisor, [*wanted[number % 4 :], *wanted[: number % 4]], observe_dag, seconds=0.3)
        assert set(looks.problems) <= {"stream_1"}
        asked |= {name for name, dag in looks.dags.items() if dag == UNPAUSED}
    hangs.set()
    assert asked == {"stream_0", "stream_2", "stream_3"}


def test_a_stream_whose_dag_was_not_asked_about_is_as_it_was_last_seen(supervisor: Supervisor, ledger: Ledger) -> None:
    red = replace(PAUSED, has_failed=True)
    look(supervisor, red)
    assert follow_pauses(supervisor, [WANTED], lambda _: UNPAUSED, seconds=0.0).dags == {"flights": red}
    assert passed(supervisor, declared(WANTED), seconds=0.0)["flights"].reason == "not reconciled"
    let_pass(ledger, timedelta(0))
