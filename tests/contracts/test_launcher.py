"""What every launcher keeps. The cases run on the fake, on the local launcher with real small processes, and on the
cluster launcher with a cluster in memory; `tests/yarn` runs the very same on a real YARN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.fakes.cluster import IGNORES_ITS_LEASE, FakeCluster, fake_conf
from tests.fakes.launcher import FakeLauncher, reborn
from tests.fixtures.drivers import await_condition, await_end, end_drivers

from sluice.errors import LaunchError
from sluice.launching.cluster_launcher import ClusterLauncher
from sluice.launching.launcher_port import Launcher, LaunchRequest
from sluice.launching.launchers import LocalLauncher
from sluice.ledger import work_items
from sluice.ledger.applications import begin_application, end_application, find_application
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.runs import admit_run, find_run, record_end
from sluice.ledger.work_values import ApplicationState, NewItem, Pool, WorkKind
from sluice.processes.process_identity import ProcessIdentity, ProcessState

WORKS = ("sleep", "300")
IGNORES_REQUESTS = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")


SOON_SECONDS = 300.0
"""How long a driver may take to begin, or to be seen to have ended, wherever it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherCase:
    """A launcher, and drivers for it.

    works: a driver that does nothing for long and ends when it is to. ignores: one that only a kill ends; its log says
        `ready` where it can be read here.
    asked_exit_code: the exit code of the first when it was stopped; a cluster that ends one reports none.
    """

    launcher: Launcher
    works: tuple[str, ...] = WORKS
    ignores: tuple[str, ...] = IGNORES_REQUESTS
    asked_exit_code: int | None = -15


@pytest.fixture(params=["fake", "local", "cluster"])
def case(request: pytest.FixtureRequest, ledger: Ledger, ledger_url: str) -> Iterator[LauncherCase]:
    """Each launcher in turn."""
    if request.param == "fake":
        yield LauncherCase(launcher=FakeLauncher(ledger))
    elif request.param == "local":
        yield LauncherCase(launcher=LocalLauncher(ledger_url=ledger_url))
        end_drivers(ledger)
    else:
        cluster = FakeCluster(ledger)
        launcher = ClusterLauncher(
            connection="a_cluster",
            ledger=ledger,
            ledger_url=ledger_url,
            cluster=cluster,
            conf_for=fake_conf,
            submit=cluster.submit,
        )
        ignores = ("driver.py", IGNORES_ITS_LEASE)
        yield LauncherCase(launcher=launcher, works=("driver.py",), ignores=ignores, asked_exit_code=None)


@pytest.fixture
def launcher(case: LauncherCase) -> Launcher:
    """The launcher of the case."""
    return case.launcher


@pytest.fixture
def run(ledger: Ledger) -> RunObservation:
    """An admitted run."""
    return admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")


@pytest.fixture
def ask(case: LauncherCase, tmp_path: Path) -> Callable[..., LaunchRequest]:
    """Makes the request for a run."""

    def make(run: RunObservation, command: tuple[str, ...] | None = None) -> LaunchRequest:
        log_file = tmp_path / "logs" / f"{run.run_id}.log"
        return LaunchRequest(run_id=run.run_id, stream=run.stream, command=command or case.works, log_file=log_file)

    return make


Ask = Callable[..., LaunchRequest]


@pytest.fixture
def application(case: LauncherCase, ledger: Ledger, tmp_path: Path) -> LaunchRequest:
    """The request for an application, which an item in the queue waits for."""
    payload = {"table": "silver.flights"}
    pool = Pool(name="spark_default-0", digest="files-surroundings")
    wanted = NewItem(
        kind=WorkKind.MAINTAIN_TABLE, subject="silver.flights", payload=payload, asked_by="a test", pool=pool
    )
    (item,) = work_items.ask(ledger, wanted)
    begun = begin_application(ledger, item, started_by="a test")
    assert begun is not None
    return LaunchRequest(
        run_id=begun, stream=pool.name, command=case.works, log_file=tmp_path / "work.log", is_application=True
    )


def test_a_launched_driver_lives_the_ledger_knows_its_process_and_a_second_launch_is_refused(
    launcher: Launcher, ledger: Ledger, run: RunObservation, ask: Ask
) -> None:
    request = ask(run)
    process = launcher.launch(request)
    _await_alive(launcher, process)
    known = find_run(ledger, run.run_id)
    assert (known.process, known.log_file, known.state) == (process, request.log_file, RunState.LAUNCHING)

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


def test_a_stopped_driver_is_gone_its_end_is_recorded_and_another_stop_does_nothing(
    case: LauncherCase, launcher: Launcher, ledger: Ledger, run: RunObservation, ask: Ask
) -> None:
    process = launcher.launch(ask(run))
    _await_alive(launcher, process)
    assert launcher.stop(process, grace_seconds=30) is ProcessState.GONE
    assert launcher.observe(process) is ProcessState.GONE
    ended = await_end(ledger, run.run_id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, case.asked_exit_code)
    assert launcher.stop(process, grace_seconds=10) is ProcessState.GONE


def test_a_driver_that_ignores_the_request_is_killed(
    case: LauncherCase, launcher: Launcher, ledger: Ledger, run: RunObservation, ask: Ask
) -> None:
    if isinstance(launcher, FakeLauncher):
        launcher.ignores_requests = True
    process = launcher.launch(ask(run, case.ignores))
    _await_alive(launcher, process)
    _await_ready(launcher, ledger, run)
    assert launcher.stop(process, grace_seconds=0.5) is ProcessState.GONE
    assert await_end(ledger, run.run_id).exit_code == -9


def test_a_process_of_another_start_or_of_another_host_is_not_the_driver(
    launcher: Launcher, run: RunObservation, ask: Ask
) -> None:
    process = launcher.launch(ask(run))
    _await_alive(launcher, process)
    seen = launcher.observe(reborn(process))
    assert seen is not ProcessState.ALIVE
    launcher.stop(reborn(process), grace_seconds=0)
    assert launcher.observe(process) is ProcessState.ALIVE

    elsewhere: ProcessIdentity = replace(process, host="another-host")
    assert launcher.observe(elsewhere) is ProcessState.UNKNOWN
    assert launcher.stop(elsewhere, grace_seconds=0) is ProcessState.UNKNOWN
    assert launcher.observe(process) is ProcessState.ALIVE


def test_an_application_for_work_items_is_bound_to_its_process_and_its_end_is_recorded(
    launcher: Launcher, ledger: Ledger, application: LaunchRequest
) -> None:
    process = launcher.launch(application)
    _await_alive(launcher, process)
    bound = find_application(ledger, application.run_id)
    assert (bound.host, bound.pid, bound.log_file) == (process.host, process.pid, str(application.log_file))
    with pytest.raises(LaunchError, match="has a process already"):
        launcher.launch(application)
    assert launcher.observe(reborn(process)) is not ProcessState.ALIVE

    assert launcher.stop(process, grace_seconds=3) is ProcessState.GONE  # one that hears nothing is killed

    await_condition(lambda: find_application(ledger, application.run_id).state is ApplicationState.ENDED)


@pytest.mark.full  # every run: a run that has ended
def test_nothing_is_started_for_an_application_that_has_ended(
    launcher: Launcher, ledger: Ledger, application: LaunchRequest
) -> None:
    end_application(ledger, application.run_id, reason="it did not report")
    with pytest.raises(LaunchError, match=f"Application {application.run_id} .*has ended"):
        launcher.launch(application)
    assert find_application(ledger, application.run_id).pid is None


def _await_alive(launcher: Launcher, process: ProcessIdentity) -> None:
    """A cluster takes a driver in first, and gives it a place when it has one."""
    await_condition(lambda: launcher.observe(process) is ProcessState.ALIVE, within_seconds=SOON_SECONDS)


def _await_ready(launcher: Launcher, ledger: Ledger, run: RunObservation) -> None:
    if not isinstance(launcher, LocalLauncher):
        return
    log_file = find_run(ledger, run.run_id).log_file
    assert log_file is not None
    await_condition(lambda: "ready" in log_file.read_text())
