"""Observe, decide, act: on a real ledger, with the drivers of a fake launcher, and with real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.fakes.launcher import HOST, FakeLauncher
from tests.fixtures.drivers import end_drivers, processes_of
from tests.fixtures.streams import continuous_stream

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.failure_reasons import Failure, FailureReason, next_step
from sluice.launching.driver_records import write_exit_note
from sluice.launching.launcher_port import LaunchRequest
from sluice.launching.launchers import LocalLauncher
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.run_values import DesiredState, DriverExit, RunObservation, RunState
from sluice.ledger.runs import admit_run, beat, find_run, newest_run, recent_runs, record_end
from sluice.processes.process_identity import ProcessIdentity
from sluice.supervision import supervisor as supervisor_module
from sluice.supervision.limits import STARTS_WITHIN, STOPPED_WITHIN
from sluice.supervision.supervision_values import SupervisionAction, SupervisionReason
from sluice.supervision.supervisor import SupervisionResult, Supervisor, act_on, plan_supervision, supervise

WANTED = continuous_stream(restart={"attempts": 3, "first_delay": "1 hour", "longest_delay": "1 day"})


@pytest.fixture
def launcher(ledger: Ledger) -> FakeLauncher:
    """Drivers in memory."""
    return FakeLauncher(ledger)


@pytest.fixture
def supervisor(ledger: Ledger, launcher: FakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """A supervisor that does not wait for the attendants of fake drivers."""
    monkeypatch.setattr(supervisor_module, "EXIT_RECORD_SECONDS", 0.0)

    def request_for(wanted: LoadedStream, run: RunObservation) -> LaunchRequest:
        log_file = tmp_path / f"{run.run_id}.log"
        return LaunchRequest(run_id=run.run_id, stream=wanted.name, command=("true",), log_file=log_file)

    return Supervisor(ledger=ledger, launcher=launcher, request_for=request_for, launched_by="a test")


def words(supervised: SupervisionResult) -> tuple[SupervisionAction, SupervisionReason]:
    """The action and the reason."""
    return supervised.decision.action, supervised.decision.reason


def process_of(supervised: SupervisionResult) -> ProcessIdentity:
    """The process of the run that was left."""
    assert supervised.run is not None
    assert supervised.run.process is not None
    return supervised.run.process


def move_back(ledger: Ledger, column: str, by: timedelta, *, table: str = "runs") -> None:
    """Let time pass, for one column of the ledger."""
    with ledger.transaction() as connection:
        statement = f"UPDATE sluice.{table} SET {column} = {column} - :by"  # noqa: S608  # names of this file
        connection.execute(text(statement), {"by": by})


def test_a_stream_that_never_ran_is_launched_and_then_adopted(supervisor: Supervisor, launcher: FakeLauncher) -> None:
    first = supervise(supervisor, WANTED)
    assert words(first) == (SupervisionAction.LAUNCH, SupervisionReason.NEVER_STARTED)
    assert first.run is not None
    assert (first.run.launched_by, first.run.declaration_digest) == ("a test", "d")
    again = supervise(supervisor, WANTED)
    assert words(again) == (SupervisionAction.ADOPT, SupervisionReason.STARTING)
    assert again.run == first.run
    assert len(launcher.requests) == 1


def test_judging_changes_nothing(launcher: FakeLauncher, ledger: Ledger) -> None:
    assert words(plan_supervision(WANTED, ledger=ledger, launcher=launcher)) == (
        SupervisionAction.LAUNCH,
        SupervisionReason.NEVER_STARTED,
    )
    assert launcher.requests == []
    assert newest_run(ledger, "flights") is None


def test_a_failed_run_is_restarted_at_once_and_then_after_its_delay_until_the_budget_is_spent(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    launcher.end(process_of(supervise(supervisor, WANTED)), exit_code=1)
    again = supervise(supervisor, WANTED)
    assert words(again) == (SupervisionAction.LAUNCH, SupervisionReason.RESTART_DUE)
    assert again.run is not None
    for delay in (timedelta(hours=1), timedelta(hours=2)):
        launcher.end(process_of(supervise(supervisor, WANTED)), exit_code=1)
        waiting = supervise(supervisor, WANTED)
        assert words(waiting) == (SupervisionAction.RESTART_LATER, SupervisionReason.BACKING_OFF)
        assert waiting.run is None
        assert waiting.decision.delay is not None
        assert 0.75 * delay - timedelta(minutes=1) <= waiting.decision.delay <= delay  # shortened by the run's share
        move_back(ledger, "ended_at", delay)
    launcher.end(process_of(supervise(supervisor, WANTED)), exit_code=1)
    given_up = supervise(supervisor, WANTED)
    assert words(given_up) == (SupervisionAction.GIVE_UP, SupervisionReason.RESTART_BUDGET_SPENT)
    assert "exit code 1" in given_up.decision.explanation
    set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="ann")
    assert words(supervise(supervisor, WANTED)) == (SupervisionAction.LAUNCH, SupervisionReason.WANTED_AGAIN)


def test_a_driver_that_disappeared_is_closed_as_lost_and_restarted(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    first = supervise(supervisor, WANTED)
    launcher.disappear(process_of(first))
    assert words(supervise(supervisor, WANTED)) == (SupervisionAction.LAUNCH, SupervisionReason.RESTART_DUE)
    _, lost = recent_runs(ledger, "flights", limit=9)
    assert (lost.state, lost.exit_code) == (RunState.LOST, None)


def test_the_word_of_the_driver_itself_is_awaited_before_a_run_is_called_lost(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "EXIT_RECORD_SECONDS", 20.0)
    first = supervise(supervisor, WANTED)
    process = process_of(first)
    launcher.disappear(process)
    with ThreadPoolExecutor(max_workers=1) as pool:
        closing = pool.submit(supervise, supervisor, WANTED)
        launcher.end(process, exit_code=3)
        closing.result()
    _, ended = recent_runs(ledger, "flights", limit=9)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 3)


def test_a_new_request_resets_the_count_of_a_run_that_is_only_now_found_lost(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    """As after a restart of the machine: nobody saw the drivers end."""
    launcher.disappear(process_of(supervise(supervisor, WANTED)))
    set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="ann")
    assert words(supervise(supervisor, WANTED)) == (SupervisionAction.LAUNCH, SupervisionReason.WANTED_AGAIN)


def test_a_note_beside_the_log_is_believed(supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger) -> None:
    first = supervise(supervisor, WANTED)
    assert first.run is not None
    assert first.run.log_file is not None
    launcher.disappear(process_of(first))
    write_exit_note(first.run.log_file, DriverExit(state=RunState.FAILED, exit_code=1, reason="broker gone"))
    supervise(supervisor, WANTED)
    ended = find_run(ledger, first.run.run_id)
    assert (ended.state, ended.exit_code, ended.reason) == (RunState.FAILED, 1, "broker gone")


def test_an_admitted_run_without_a_driver_is_closed_and_replaced(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    """Whoever admitted it died before it launched."""
    abandoned = admit_run(
        ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a dead task"
    )
    assert words(supervise(supervisor, WANTED)) == (SupervisionAction.WAIT, SupervisionReason.BEING_LAUNCHED)
    move_back(ledger, "launched_at", timedelta(hours=2))
    assert words(supervise(supervisor, WANTED)) == (SupervisionAction.LAUNCH, SupervisionReason.RESTART_DUE)
    assert find_run(ledger, abandoned.run_id).state is RunState.LOST
    assert len(launcher.requests) == 1


def test_an_unknown_driver_is_left_alone_for_ever(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    first = supervise(supervisor, WANTED)
    assert first.run is not None
    beat(ledger, first.run.run_id)
    launcher.hide(process_of(first))
    assert words(supervise(supervisor, WANTED)) == (SupervisionAction.ADOPT, SupervisionReason.HEARTBEAT_FRESH)
    move_back(ledger, "heartbeat_at", timedelta(days=365))
    left = supervise(supervisor, WANTED)
    assert words(left) == (SupervisionAction.WAIT, SupervisionReason.DRIVER_UNKNOWN)
    assert left.run == find_run(ledger, first.run.run_id)
    assert len(launcher.requests) == 1


def test_a_driver_that_does_not_stop_in_time_is_ended(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    launcher.ignores_requests = True
    first = supervise(supervisor, WANTED)
    set_desired_state(ledger, "flights", DesiredState.STOPPED, requested_by="ann")
    assert words(supervise(supervisor, WANTED)) == (SupervisionAction.WAIT, SupervisionReason.STOPPING)
    assert launcher.kills == []
    move_back(ledger, "requested_at", STOPPED_WITHIN, table="desired_states")
    finished = supervise(supervisor, WANTED)
    assert words(finished) == (SupervisionAction.FINISH, SupervisionReason.STOPPED_AS_REQUESTED)
    assert "as requested by ann" in finished.decision.explanation
    assert launcher.kills == [process_of(first)]


def test_a_stopped_stream_stays_stopped_and_its_end_is_no_failure(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    first = supervise(supervisor, WANTED)
    set_desired_state(ledger, "flights", DesiredState.STOPPED)
    launcher.end(process_of(first), exit_code=0)
    assert supervise(supervisor, WANTED).decision.action is SupervisionAction.FINISH
    set_desired_state(ledger, "flights", DesiredState.RUNNING)
    assert words(supervise(supervisor, WANTED)) == (SupervisionAction.LAUNCH, SupervisionReason.WANTED_AGAIN)
    assert len(launcher.requests) == 2


def test_a_driver_that_cannot_be_started_is_a_failure_with_its_sentence(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    launcher.refusal = "spark-submit is not found."
    waiting = supervise(supervisor, WANTED)
    assert words(waiting) == (SupervisionAction.RESTART_LATER, SupervisionReason.BACKING_OFF)
    assert "LaunchError: spark-submit is not found." in waiting.decision.explanation
    failed = recent_runs(ledger, "flights", limit=9)
    assert [(one.state, one.exit_code) for one in failed] == [(RunState.FAILED, None)] * 2, "the first, and one at once"


def test_a_new_declaration_is_a_new_beginning(supervisor: Supervisor, launcher: FakeLauncher) -> None:
    launcher.end(process_of(supervise(supervisor, WANTED)), exit_code=1)
    repaired = continuous_stream(digest="repaired")
    assert words(supervise(supervisor, repaired)) == (SupervisionAction.LAUNCH, SupervisionReason.WANTED_AGAIN)


def test_eight_supervisors_at_once_leave_one_driver(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = list(pool.map(lambda _: supervise(supervisor, WANTED), range(8)))
    assert len(launcher.requests) == 1
    assert len(recent_runs(ledger, "flights", limit=20)) == 1
    assert {answer.run.run_id for answer in answers if answer.run is not None} == {launcher.requests[0].run_id}
    assert all(answer.run is not None for answer in answers)


@pytest.fixture
def real_supervisor(ledger: Ledger, ledger_url: str, tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor of real processes that sleep."""

    def request_for(wanted: LoadedStream, run: RunObservation) -> LaunchRequest:
        log_file = tmp_path / f"{run.run_id}.log"
        return LaunchRequest(run_id=run.run_id, stream=wanted.name, command=("sleep", "300"), log_file=log_file)

    launcher = LocalLauncher(ledger_url=ledger_url)
    yield Supervisor(ledger=ledger, launcher=launcher, request_for=request_for, launched_by="a test")
    end_drivers(ledger)


def test_four_supervisors_of_real_processes_leave_one_driver(real_supervisor: Supervisor, ledger: Ledger) -> None:
    with ThreadPoolExecutor(max_workers=4) as pool:
        answers = list(pool.map(lambda _: supervise(real_supervisor, WANTED), range(4)))
    (run,) = recent_runs(ledger, "flights", limit=20)
    assert {answer.run.run_id for answer in answers if answer.run is not None} == {run.run_id}
    assert len(processes_of(run.run_id)) == 2, "the driver and its attendant"


def test_a_killed_real_driver_is_restarted(real_supervisor: Supervisor, ledger: Ledger) -> None:
    quick = continuous_stream(restart={"first_delay": "1 millisecond"})
    first = supervise(real_supervisor, quick)
    end_drivers(ledger)
    second = supervise(real_supervisor, quick)
    assert words(second) == (SupervisionAction.LAUNCH, SupervisionReason.RESTART_DUE)
    assert process_of(second) != process_of(first)
    assert first.run is not None
    assert find_run(ledger, first.run.run_id).reason == "killed by SIGKILL"


def test_an_end_that_was_recorded_twice_stays_the_first(supervisor: Supervisor, ledger: Ledger) -> None:
    first = supervise(supervisor, WANTED)
    assert first.run is not None
    record_end(ledger, first.run.run_id, state=RunState.LOST, exit_code=None, reason="closed by a supervisor")
    assert beat(ledger, first.run.run_id).desired_state is DesiredState.STOPPED


def test_a_failure_that_another_start_would_repeat_is_not_repeated(
    supervisor: Supervisor, ledger: Ledger, launcher: FakeLauncher
) -> None:
    first = supervise(supervisor, WANTED)
    assert first.run is not None
    lost = Failure.of(FailureReason.OFFSETS_LOST)
    record_end(ledger, first.run.run_id, state=RunState.FAILED, exit_code=1, reason="DeliveryError: no", failure=lost)
    given_up = supervise(supervisor, WANTED)
    assert words(given_up) == (SupervisionAction.GIVE_UP, SupervisionReason.RESTART_WOULD_NOT_HELP)
    assert given_up.decision.failure == lost
    assert next_step(FailureReason.OFFSETS_LOST, stream="flights") in given_up.decision.explanation
    set_desired_state(ledger, "flights", DesiredState.RUNNING)
    assert supervise(supervisor, WANTED).decision.action is SupervisionAction.LAUNCH
    assert len(launcher.requests) == 2


def test_the_first_failure_that_is_recorded_stays(supervisor: Supervisor, ledger: Ledger) -> None:
    first = supervise(supervisor, WANTED)
    assert first.run is not None
    for reason in (FailureReason.KAFKA_UNREACHABLE, FailureReason.DRIVER_KILLED):
        failure = Failure.of(reason)
        record_end(ledger, first.run.run_id, state=RunState.FAILED, exit_code=1, reason="no", failure=failure)
    assert find_run(ledger, first.run.run_id).failure == Failure.of(FailureReason.KAFKA_UNREACHABLE)


def test_an_open_breaker_stays_open_though_runs_stayed_up_and_a_person_closes_it(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    often = continuous_stream(
        supervision={"restart": {"first_delay": "1 millisecond"}, "breaker": {"failures": 3, "window": "1 day"}}
    )
    for expected in (SupervisionReason.NEVER_STARTED, SupervisionReason.RESTART_DUE, SupervisionReason.RESTART_DUE):
        started = supervise(supervisor, often)
        assert words(started) == (SupervisionAction.LAUNCH, expected)
        move_back(ledger, "launched_at", timedelta(hours=1))  # each stayed up for longer than `stable_after`
        assert started.run is not None
        beat(ledger, started.run.run_id)
        launcher.end(process_of(started), exit_code=1)
    for _ in range(2):
        given_up = supervise(supervisor, often)
        assert words(given_up) == (SupervisionAction.GIVE_UP, SupervisionReason.BREAKER_OPEN)
    set_desired_state(ledger, "flights", DesiredState.RUNNING)
    assert supervise(supervisor, often).decision.action is SupervisionAction.LAUNCH


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[str], object]) -> None:
    """Let something happen to a run after the supervisor's first look for it."""

    def look(ledger: Ledger, run_id: str) -> RunObservation:
        seen = find_run(ledger, run_id)
        if seen.is_live:
            happens(run_id)
        return seen

    monkeypatch.setattr(supervisor_module, "find_run", look)


def test_a_silent_driver_that_reports_while_it_is_waited_for_keeps_its_place(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = supervise(supervisor, WANTED)
    assert first.run is not None
    beat(ledger, first.run.run_id)
    launcher.hide(process_of(first))
    move_back(ledger, "heartbeat_at", timedelta(hours=1))
    move_back(ledger, "expires_at", timedelta(hours=1), table="leases")
    planned = plan_supervision(WANTED, ledger=ledger, launcher=launcher)
    assert words(planned) == (SupervisionAction.TAKE_OVER, SupervisionReason.LEASE_OVER)
    meanwhile(monkeypatch, lambda run_id: beat(ledger, run_id))

    act_on(supervisor, planned)

    assert find_run(ledger, first.run.run_id).is_live, "the clock of the database may have jumped"


def test_the_end_that_a_parent_records_within_its_time_stays(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = supervise(supervisor, WANTED)
    assert first.run is not None
    launcher.disappear(process_of(first))
    monkeypatch.setattr(supervisor_module, "EXIT_RECORD_SECONDS", 10.0)
    meanwhile(
        monkeypatch,
        lambda run_id: record_end(ledger, run_id, state=RunState.FAILED, exit_code=137, reason="it was killed"),
    )

    act_on(supervisor, plan_supervision(WANTED, ledger=ledger, launcher=launcher))

    ended = find_run(ledger, first.run.run_id)
    assert (ended.state, ended.exit_code, ended.reason) == (RunState.FAILED, 137, "it was killed")


def test_after_a_reboot_the_streams_of_a_host_start_some_at_a_time(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first restart of each is due at once, and all at once would take the time of everything that runs."""
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    monkeypatch.setattr("socket.gethostname", lambda: HOST)
    monkeypatch.setattr(supervisor_module, "EXIT_RECORD_SECONDS", 0.0)
    streams = [continuous_stream(f"stream_{number}") for number in range(7)]
    for stream in streams:
        launcher.disappear(process_of(supervise(supervisor, stream)))
    move_back(ledger, "launched_at", timedelta(minutes=5))

    waves = []
    while streams:
        results = {stream.name: words(supervise(supervisor, stream)) for stream in streams}
        started = [name for name, result in results.items() if result[0] is SupervisionAction.LAUNCH]
        waves.append(len(started))
        assert set(results.values()) - {(SupervisionAction.LAUNCH, SupervisionReason.RESTART_DUE)} <= {
            (SupervisionAction.RESTART_LATER, SupervisionReason.HOST_BUSY)
        }
        streams = [stream for stream in streams if stream.name not in started]
        move_back(ledger, "launched_at", STARTS_WITHIN)
    assert waves == [3, 3, 1]
