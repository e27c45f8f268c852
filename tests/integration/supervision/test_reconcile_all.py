"""One pass of the reconciler over all streams: undeclared runs, streams that fail, alerts, on a real ledger."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from sqlalchemy import text
from tests.fakes.launcher import FakeLauncher
from tests.fixtures.streams import continuous_stream

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.errors import DeclarationError
from sluice.failure_reasons import Failure, FailureReason
from sluice.ledger.airflow_owner import DagObservation
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import SuspensionCause, set_desired_state, suspend
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.runs import admit_run, beat, find_run, record_end
from sluice.ledger.stream_troubles import record_report, record_trouble
from sluice.messages import Location
from sluice.processes.process_identity import ProcessIdentity, ProcessState
from sluice.supervision import alerts as alerts_module
from sluice.supervision.alerts import Alert, report_given_up, report_good_increment, report_red_increment
from sluice.supervision.limits import STOPPED_WITHIN
from sluice.supervision.platform_dags import MISSED_WHILE_PAUSED
from sluice.supervision.reconciler import reconcile_all
from sluice.supervision.supervisor import Supervisor, supervise

WANTED = continuous_stream(restart={"first_delay": "1 millisecond"})
UNPAUSED = DagObservation(airflow="ours", is_paused=False)
BROKEN = DeclarationError("boom", location=Location(file=Path("/pipelines/flights.stream.yaml"), line=3))


def named(name: str) -> LoadedStream:
    """A continuous stream of another name."""
    return replace(WANTED, declaration=WANTED.declaration.model_copy(update={"stream": name}))


def declared(
    *streams: LoadedStream, problems: tuple[DeclarationError, ...] = (), others: tuple[str, ...] = ("other",)
) -> Declarations:
    """What a folder declares. others: names that files declare besides."""
    names = tuple(sorted({stream.name for stream in streams} | set(others)))
    return Declarations(
        folder=Path("/pipelines"),
        streams={stream.name: stream for stream in streams},
        tables={},
        problems=problems,
        stream_names=names,
        table_names=(),
    )


def started(supervisor: Supervisor, wanted: LoadedStream = WANTED) -> RunObservation:
    """A run whose driver was heard."""
    run = supervise(supervisor, wanted).run
    assert run is not None
    beat(supervisor.ledger, run.run_id)
    return find_run(supervisor.ledger, run.run_id)


def passed(supervisor: Supervisor, declarations: Declarations, *, seconds: float = 50.0) -> dict[str, Alert]:
    """One pass, in which Airflow knows every DAG as unpaused."""
    alerts = reconcile_all(supervisor, declarations, observe_dag=lambda _: UNPAUSED, number=0, pass_seconds=seconds)
    return {alert.stream: alert for alert in alerts}


def let_pass(ledger: Ledger, by: timedelta) -> None:
    """Let time pass for what is wrong and for what was asked."""
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.troubles SET since = since - :by"), {"by": by})
        connection.execute(text("UPDATE sluice.runs SET end_asked_at = end_asked_at - :by"), {"by": by})


def test_a_run_whose_declaration_was_deleted_is_reported_at_once_and_ended(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    launcher.ignores_requests = True
    run = started(supervisor)
    alert = passed(supervisor, declared())["flights"]
    assert (alert.reason, alert.is_new) == ("undeclared", True)
    assert f"No file in /pipelines declares flights any more, and run {run.run_id}" in alert.sentence
    assert beat(ledger, run.run_id).desired_state is DesiredState.RUNNING, "the folder may be incomplete for a moment"
    let_pass(ledger, timedelta(minutes=1))
    assert passed(supervisor, declared())["flights"].is_new is False
    assert find_run(ledger, run.run_id).end_asked_because == "no file declares its stream any more"
    assert beat(ledger, run.run_id).desired_state is DesiredState.STOPPED
    let_pass(ledger, STOPPED_WITHIN + timedelta(seconds=1))
    passed(supervisor, declared())
    assert run.process in launcher.kills, "a driver that does not obey is ended"
    assert passed(supervisor, declared()) == {}


def test_a_stream_whose_dag_airflow_cannot_be_asked_about_keeps_no_other_one_waiting(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    first, second = named("first"), named("second")
    left = started(supervisor, second)
    started(supervisor, first)
    assert left.process is not None
    launcher.disappear(left.process)

    def observe_dag(stream: str) -> DagObservation:
        if stream == "first":
            raise RuntimeError("the metadata database is away")
        return UNPAUSED

    alerts = reconcile_all(supervisor, declared(first, second), observe_dag=observe_dag, number=0)

    assert [(alert.stream, "the metadata database is away" in alert.sentence) for alert in alerts] == [("first", True)]
    assert find_run(ledger, left.run_id).state is RunState.LOST, "the other one was looked after"


def test_the_age_of_a_trouble_begins_anew_with_another_reason(ledger: Ledger) -> None:
    record_trouble(ledger, "flights", reason="silent", explanation="It was not heard.", by="a test")
    let_pass(ledger, timedelta(hours=1))
    same = record_trouble(ledger, "flights", reason="silent", explanation="It was not heard for an hour.", by="a test")
    assert same.lasted >= timedelta(hours=1)
    record_report(ledger, same, by="a test")
    other = record_trouble(ledger, "flights", reason="undeclared", explanation="No file declares it.", by="a test")
    assert (other.lasted < timedelta(minutes=1), other.reported_at) == (True, None)


def test_a_run_whose_declaration_comes_back_goes_on(supervisor: Supervisor, ledger: Ledger) -> None:
    run = started(supervisor)
    passed(supervisor, declared())
    assert passed(supervisor, declared(WANTED)) == {}
    let_pass(ledger, timedelta(minutes=5))
    passed(supervisor, declared())
    assert find_run(ledger, run.run_id).end_asked_at is None, "it is missing for a moment only"


def test_an_empty_folder_ends_no_run(supervisor: Supervisor, ledger: Ledger) -> None:
    run = started(supervisor)
    for _ in range(2):
        assert passed(supervisor, declared(others=()))["flights"].reason == "undeclared"
        let_pass(ledger, timedelta(hours=1))
    assert find_run(ledger, run.run_id).end_asked_at is None


def test_a_continuous_run_of_a_stream_that_is_incremental_now_is_ended(supervisor: Supervisor, ledger: Ledger) -> None:
    run = started(supervisor)
    changed = WANTED.declaration.model_copy(update={"mode": "incremental"})
    declarations = declared(replace(WANTED, declaration=changed))
    assert passed(supervisor, declarations)["flights"].reason == "mode changed"
    let_pass(ledger, timedelta(minutes=1))
    passed(supervisor, declarations)
    assert find_run(ledger, run.run_id).end_asked_because == "its stream is declared with another mode now"


def test_a_broken_declaration_of_a_stream_that_ran_is_reported_and_its_dead_run_closed(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    run = started(supervisor)
    declarations = declared(problems=(BROKEN,), others=("flights",))
    alert = passed(supervisor, declarations)["flights"]
    assert (alert.reason, "continues with its previous declaration: " in alert.sentence) == ("declaration broken", True)
    let_pass(ledger, timedelta(hours=1))
    assert beat(ledger, run.run_id).desired_state is DesiredState.RUNNING
    assert run.process is not None
    launcher.disappear(run.process)
    passed(supervisor, declarations)
    assert find_run(ledger, run.run_id).state is RunState.LOST
    assert "has ended, and none is started" in passed(supervisor, declarations)["flights"].sentence


class DeniedLauncher(FakeLauncher):
    """A launcher on which the driver of one stream cannot be observed, as one of another user."""

    denied: ProcessIdentity | None = None
    hangs = False

    def observe(self, process: ProcessIdentity) -> ProcessState:
        """Raise or hang for one process."""
        if process == self.denied and self.hangs:
            threading.Event().wait(60)
        if process == self.denied:
            raise psutil.AccessDenied(process.pid)
        return super().observe(process)


@pytest.mark.parametrize("hangs", [False, True], ids=["raises", "hangs"])
def test_one_stream_never_keeps_the_others_waiting(supervisor: Supervisor, ledger: Ledger, hangs: bool) -> None:
    launcher = DeniedLauncher(ledger)
    supervisor = replace(supervisor, launcher=launcher)
    first, second = named("a_first"), named("z_last")
    launcher.denied = started(supervisor, first).process
    started(supervisor, second)
    launcher.hangs = hangs
    changed = replace(second, digest="new")
    alerts = passed(supervisor, declared(first, changed), seconds=5.0)
    assert list(alerts) == ["a_first"]
    assert ("not done in the time" if hangs else "AccessDenied") in alerts["a_first"].sentence
    newest = supervise(replace(supervisor, launcher=FakeLauncher(ledger)), changed).seen.newest_run
    assert newest is not None
    assert newest.end_asked_because == "its declaration has changed", "the last stream was reconciled"


def test_each_pass_begins_with_another_stream(supervisor: Supervisor) -> None:
    declarations = declared(named("first"), named("second"), named("third"))
    orders = []
    for number in range(5):
        asked: list[str] = []

        def observe_dag(stream: str, asked: list[str] = asked) -> DagObservation:
            if stream not in MISSED_WHILE_PAUSED:
                asked.append(stream)
            return UNPAUSED

        reconcile_all(supervisor, declarations, observe_dag=observe_dag, number=number)
        orders.append(asked)
    assert {order[0] for order in orders} == {"first", "second", "third"}
    assert all(order[0] != after[0] for order, after in pairwise(orders))
    assert all(sorted(order) == ["first", "second", "third"] for order in orders)


def test_a_crash_looping_stream_is_alerted_until_it_is_healthy(supervisor: Supervisor, ledger: Ledger) -> None:
    wanted = continuous_stream(restart={"first_delay": "1 hour", "longest_delay": "1 hour"})
    for _ in range(3):
        run = admit_run(
            ledger, stream="flights", mode="continuous", declaration_digest=wanted.digest, launched_by="a test"
        )
        failure = Failure.of(FailureReason.UNEXPLAINED)
        record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason="boom", failure=failure)
    first, second = (passed(supervisor, declared(wanted))["flights"] for _ in range(2))
    assert (first.reason, first.is_new, second.is_new) == ("crash looping", True, False)
    assert _alert_events(ledger) == [("alert", "crash_looping")], "saved once"
    assert started(supervisor, continuous_stream(digest="corrected")).is_live
    assert passed(supervisor, declared(continuous_stream(digest="corrected"))) == {}
    assert _alert_events(ledger) == [("recover", "crash_looping"), ("alert", "crash_looping")]
    recovered = recent_events(ledger, subject=EventSubject.STREAM, name="flights", limit=1)[0]
    assert recovered.explanation.startswith("It was crash looping since 20")


def _alert_events(ledger: Ledger) -> list[tuple[str, str]]:
    """The alerts and recoveries of the stream, newest first."""
    events = recent_events(ledger, subject=EventSubject.STREAM, name="flights", limit=99)
    return [(event.action, event.reason) for event in events if event.action in ("alert", "recover")]


def test_a_red_increment_is_alerted_by_its_task_until_one_succeeds(supervisor: Supervisor, ledger: Ledger) -> None:
    increment = replace(WANTED, declaration=WANTED.declaration.model_copy(update={"mode": "incremental"}))
    for _ in range(2):
        report_red_increment(ledger, "flights", sentence="the table has other columns", by="airflow: flights, r1")
    assert passed(supervisor, declared(increment)) == {}, "the reconciler has nothing to do with it"
    assert _alert_events(ledger) == [("alert", "failed")], "saved once"
    report_good_increment(ledger, "flights", by="airflow: flights, r3")
    report_good_increment(ledger, "flights", by="airflow: flights, r4")
    assert _alert_events(ledger) == [("recover", "failed"), ("alert", "failed")]
    report_red_increment(ledger, "flights", sentence="again", by="airflow: flights, r5")
    passed(supervisor, declared())
    assert _alert_events(ledger)[0] == ("recover", "failed"), "its declaration was deleted"


def test_a_stop_by_a_paused_dag_is_doubtful_when_the_dag_has_failed_since(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    """A person unpaused it while the ledger was away, and Airflow paused it for a failed run before it was noticed."""
    run = started(supervisor)
    suspend(ledger, "flights", SuspensionCause.PAUSED)
    assert run.process is not None
    launcher.end(run.process, exit_code=0)
    paused = DagObservation(airflow="ours", is_paused=True)
    red = replace(paused, has_failed=True)
    assert reconcile_all(supervisor, declared(WANTED), observe_dag=lambda _: paused, number=0) == ()
    (alert,) = reconcile_all(supervisor, declared(WANTED), observe_dag=lambda _: red, number=0)
    assert (alert.reason, "confirm the stop: `sluice stream stop flights`" in alert.sentence) == ("stopped", True)
    set_desired_state(ledger, "flights", DesiredState.STOPPED, requested_by="ann")
    assert reconcile_all(supervisor, declared(WANTED), observe_dag=lambda _: red, number=0) == ()


PAUSED = DagObservation(airflow="ours", is_paused=True)
RED = replace(PAUSED, has_failed=True)


def failed(ledger: Ledger, wanted: LoadedStream = WANTED) -> RunObservation:
    """A run that ended in a way that no restart repairs."""
    run = admit_run(
        ledger, stream=wanted.name, mode="continuous", declaration_digest=wanted.digest, launched_by="a test"
    )
    failure = Failure.of(FailureReason.SCHEMA_DIFFERS)
    return record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason="other columns", failure=failure)


def passed_beside(supervisor: Supervisor, dag: DagObservation | None) -> tuple[Alert, ...]:
    """One pass in which Airflow says this of the DAG of the stream."""
    return reconcile_all(supervisor, declared(WANTED), observe_dag=lambda _: dag, number=0)


def test_a_second_give_up_is_alerted_although_the_dag_is_red_since_the_first(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    """A person has started the stream without unpausing its DAG, so that no task is there to be red again."""
    first = failed(ledger)
    sentence = "other columns"
    assert report_given_up(ledger, "flights", sentence=sentence, occasion=first.run_id, by="airflow: flights, r1")
    let_pass(ledger, timedelta(hours=1))
    assert passed_beside(supervisor, RED) == (), "its own red task has reported it"
    assert not report_given_up(ledger, "flights", sentence=sentence, occasion=first.run_id, by="airflow: flights, r2")
    set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="ann")
    run = started(supervisor)
    assert passed_beside(supervisor, RED) == ()
    record_end(
        ledger,
        run.run_id,
        state=RunState.FAILED,
        exit_code=1,
        reason="other columns",
        failure=Failure.of(FailureReason.SCHEMA_DIFFERS),
    )
    (alert,) = passed_beside(supervisor, RED)
    assert (alert.reason, alert.is_new) == ("given up", True), "at once: the paused DAG has no task to wait for"
    let_pass(ledger, timedelta(hours=1))
    assert [one.is_new for one in passed_beside(supervisor, RED)] == [False]
    given_up = [
        one for one in recent_events(ledger, EventSubject.STREAM, "flights", limit=99) if one.action == "give_up"
    ]
    assert [one.run_id for one in given_up] == [run.run_id, first.run_id], "no task is there to record it"


def test_the_red_dag_of_a_stream_that_was_given_up_is_no_reason_to_be_silent_after_another_start_at_once(
    supervisor: Supervisor, ledger: Ledger
) -> None:
    """No pass has met the stream healthy in between."""
    first = failed(ledger)
    report_given_up(ledger, "flights", sentence="other columns", occasion=first.run_id, by="airflow: flights, r1")
    set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="ann")
    failed(ledger)
    (alert,) = passed_beside(supervisor, RED)
    assert (alert.reason, alert.is_new) == ("given up", True)
    assert _alert_events(ledger) == [("alert", "given_up"), ("recover", "given_up"), ("alert", "given_up")]


def test_what_could_not_be_reconciled_is_new_once_and_ends_once(supervisor: Supervisor, ledger: Ledger) -> None:
    started(supervisor)

    def away(stream: str) -> DagObservation:
        raise RuntimeError(f"no answer about {stream}")

    alerts = [reconcile_all(supervisor, declared(WANTED), observe_dag=away, number=0) for _ in range(3)]
    assert [[(one.reason, one.is_new) for one in each] for each in alerts] == [
        [("not reconciled", True)],
        [("not reconciled", False)],
        [("not reconciled", False)],
    ]
    passed_beside(supervisor, UNPAUSED)
    assert _alert_events(ledger) == [("recover", "not_reconciled"), ("alert", "not_reconciled")]


def test_few_free_connections_are_new_once_and_end_once(
    supervisor: Supervisor, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts_module, "CONNECTIONS_SHARE", 0.0)
    alerts = [passed(supervisor, declared()) for _ in range(2)]
    assert [each["the ledger"].is_new for each in alerts] == [True, False]
    monkeypatch.undo()
    assert passed(supervisor, declared()) == {}
    events = recent_events(ledger, EventSubject.STREAM, "the ledger", limit=9)
    assert [event.action for event in events] == ["recover", "alert"]
