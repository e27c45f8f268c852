"""What every launcher keeps. The cases run on the fake and on the local launcher, with real small processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.launcher import FakeLauncher, reborn
from tests.fixtures.drivers import await_condition, await_end, end_drivers

from sluice.errors import LaunchError
from sluice.launching.local import LocalLauncher
from sluice.ledger.connection import Ledger
from sluice.ledger.runs import admit_run, find_run, record_end
from sluice.observations.runs import ProcessIdentity, ProcessState, RunObservation, RunState
from sluice.ports import Launcher, LaunchRequest

WORKS = ("sleep", "300")
IGNORES_REQUESTS = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")


@pytest.fixture(params=["fake", "local"])
def launcher(request: pytest.FixtureRequest, ledger: Ledger, ledger_url: str) -> Iterator[Launcher]:
    """Each launcher in turn."""
    if request.param == "fake":
        yield FakeLauncher(ledger)
        return
    local = LocalLauncher(ledger_url=ledger_url)
    yield local
    end_drivers(ledger)


@pytest.fixture
def run(ledger: Ledger) -> RunObservation:
    """An admitted run."""
    return admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., LaunchRequest]:
    """Makes the request for a run."""

    def make(run: RunObservation, command: tuple[str, ...] = WORKS) -> LaunchRequest:
        log_file = tmp_path / "logs" / f"{run.run_id}.log"
        return LaunchRequest(run_id=run.run_id, stream=run.stream, command=command, log_file=log_file)

    return make


Ask = Callable[..., LaunchRequest]


def test_a_launched_driver_lives_and_the_ledger_knows_its_process(
    launcher: Launcher, ledger: Ledger, run: RunObservation, ask: Ask
) -> None:
    request = ask(run)
    process = launcher.launch(request)
    assert launcher.observe(process) is ProcessState.ALIVE
    known = find_run(ledger, run.run_id)
    assert (known.process, known.log_file, known.state) == (process, request.log_file, RunState.LAUNCHING)


def test_of_two_launches_for_one_run_the_second_is_refused(
    launcher: Launcher, ledger: Ledger, run: RunObservation, ask: Ask
) -> None:
    process = launcher.launch(ask(run))
    with pytest.raises(LaunchError, match="has a process already"):
        launcher.launch(ask(run))
    assert launcher.observe(process) is ProcessState.ALIVE
    assert find_run(ledger, run.run_id).process == process


def test_nothing_is_started_for_a_run_that_has_ended(
    launcher: Launcher, ledger: Ledger, run: RunObservation, ask: Ask
) -> None:
    record_end(ledger, run.run_id, state=RunState.LOST, exit_code=None, reason="never launched")
    with pytest.raises(LaunchError, match="has ended"):
        launcher.launch(ask(run))
    assert find_run(ledger, run.run_id).process is None


def test_a_stopped_driver_is_gone_and_its_end_is_recorded(
    launcher: Launcher, ledger: Ledger, run: RunObservation, ask: Ask
) -> None:
    process = launcher.launch(ask(run))
    assert launcher.stop(process, grace_seconds=10) is ProcessState.GONE
    assert launcher.observe(process) is ProcessState.GONE
    ended = await_end(ledger, run.run_id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, -15)


def test_a_driver_that_ignores_the_request_is_killed(
    launcher: Launcher, ledger: Ledger, run: RunObservation, ask: Ask
) -> None:
    if isinstance(launcher, FakeLauncher):
        launcher.ignores_requests = True
    process = launcher.launch(ask(run, IGNORES_REQUESTS))
    _await_ready(launcher, ledger, run)
    assert launcher.stop(process, grace_seconds=0.5) is ProcessState.GONE
    assert await_end(ledger, run.run_id).exit_code == -9


def test_stopping_what_is_gone_does_nothing(launcher: Launcher, run: RunObservation, ask: Ask) -> None:
    process = launcher.launch(ask(run))
    launcher.stop(process, grace_seconds=10)
    assert launcher.stop(process, grace_seconds=10) is ProcessState.GONE


def test_a_process_id_that_was_given_to_another_is_not_the_driver(
    launcher: Launcher, run: RunObservation, ask: Ask
) -> None:
    process = launcher.launch(ask(run))
    seen = launcher.observe(reborn(process))
    assert seen is not ProcessState.ALIVE
    launcher.stop(reborn(process), grace_seconds=0)
    assert launcher.observe(process) is ProcessState.ALIVE


def test_a_driver_of_another_host_is_unknown_and_never_touched(
    launcher: Launcher, run: RunObservation, ask: Ask
) -> None:
    process = launcher.launch(ask(run))
    elsewhere: ProcessIdentity = replace(process, host="another-host")
    assert launcher.observe(elsewhere) is ProcessState.UNKNOWN
    assert launcher.stop(elsewhere, grace_seconds=0) is ProcessState.UNKNOWN
    assert launcher.observe(process) is ProcessState.ALIVE


def _await_ready(launcher: Launcher, ledger: Ledger, run: RunObservation) -> None:
    if isinstance(launcher, FakeLauncher):
        return
    log_file = find_run(ledger, run.run_id).log_file
    assert log_file is not None
    await_condition(lambda: "ready" in log_file.read_text())
