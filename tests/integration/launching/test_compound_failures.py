"""Pairs of faults in real drivers, and the name that wins: of what ended the run first.

| faults                                       | name                | why                                             |
|----------------------------------------------|---------------------|-------------------------------------------------|
| JVM killed, attendant killed before          | driver_killed       | a refused connection to the JVM is no service   |
| Kafka is silent, JVM and attendant killed    | driver_killed       | the query still asked; the kill ended it        |
| disk full, then JVM and attendant killed     | disk_full           | the run had failed; the kill met its cleaning   |
| ledger silent, JVM killed                    | driver_killed       | the attendant knows the exit, and records later |
| catalog and object store do not answer       | catalog_unreachable | the catalog is asked first                      |
| JVM killed by the kernel, memory ran out     | out_of_memory       | the kernel's counter says so                    |
| the same, attendant killed before            | out_of_memory       | as above                                        |

Every run names the end of drivers that are killed beside their attendants without a JVM (`test_attendant.py`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from tests.architecture.source_modules import ROOT
from tests.fixtures.drivers import await_condition, end_drivers
from tests.fixtures.ledger import PostgresServer

from sluice.declarations.run_declaration import EngineDeclaration
from sluice.failure_reasons import Failure, FailureReason
from sluice.launching.launch_settings import launch_conf
from sluice.launching.launcher_port import LaunchRequest
from sluice.launching.launchers import LocalLauncher
from sluice.launching.spark_submit import find_spark_submit
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import admit_run, find_run
from sluice.stack.stack_plan import find_tools

Reason = FailureReason
PATIENCE_SECONDS = 240.0
"""A driver is there in five seconds on a quiet machine; a crowded one takes many times that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompoundDriver:
    """A real driver at the place of its situation."""

    ledger: Ledger
    run_id: str
    log: Path
    jvm: psutil.Process

    def kill_attendant(self) -> None:
        """End the small parent that would see the exit status."""
        attendant = self.jvm.parent()
        assert attendant is not None
        assert "sluice.launching.attend" in attendant.cmdline()
        attendant.kill()
        attendant.wait(20)

    def kill_jvm(self) -> None:
        """SIGKILL for the JVM alone; its Python goes on."""
        os.kill(self.jvm.pid, signal.SIGKILL)

    def failure(self) -> Failure | None:
        """Why the run ended, as the ledger has it."""
        await_condition(lambda: not find_run(self.ledger, self.run_id).is_live, within_seconds=PATIENCE_SECONDS)
        run = find_run(self.ledger, self.run_id)
        assert run.state is RunState.FAILED
        return run.failure


Start = Callable[[str], CompoundDriver]


@pytest.fixture
def start(ledger: Ledger, ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a driver in a situation, and waits until it is at the place."""
    tools = find_tools(ROOT)
    monkeypatch.setenv("JAVA_HOME", str(tools.java_home))
    monkeypatch.setenv("SPARK_HOME", str(tools.spark_home))
    monkeypatch.setenv("PYSPARK_PYTHON", str(tools.python))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    engine = EngineDeclaration.model_validate({"driver_memory": "3g"})
    conf = launch_conf(home=ROOT, jars=tools.jars, engine=engine, is_bounded=True)

    def start_driver(situation: str) -> CompoundDriver:
        run = admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")
        place, log = tmp_path / "place", tmp_path / "run.log"
        arguments = (f"--run-id={run.run_id}", f"--situation={situation}", f"--place={place}")
        settings = tuple(word for key, value in conf.items() for word in ("--conf", f"{key}={value}"))
        program = str(ROOT / "tests" / "faults" / "compound_driver.py")
        command = (find_spark_submit("spark-submit"), "--master", "local[1]", *settings, program, *arguments)
        request = LaunchRequest(run_id=run.run_id, stream=run.stream, command=command, log_file=log)
        process = LocalLauncher(ledger_url=ledger_url).launch(request)
        driver = CompoundDriver(ledger=ledger, run_id=run.run_id, log=log, jvm=psutil.Process(process.pid))
        await_condition(lambda: place.exists() or not driver.jvm.is_running(), within_seconds=PATIENCE_SECONDS)
        assert place.exists(), log.read_text()[-4000:]
        return driver

    yield start_driver
    end_drivers(ledger)


@pytest.mark.parametrize(
    ("situation", "reason"),
    [
        pytest.param("waiting", Reason.DRIVER_KILLED, marks=pytest.mark.full),
        pytest.param("waiting_for_kafka", Reason.DRIVER_KILLED, marks=pytest.mark.drill),
        pytest.param("failed_for_a_full_disk", Reason.DISK_FULL, marks=pytest.mark.full),
    ],
)
def test_a_killed_jvm_whose_attendant_was_killed_before(start: Start, situation: str, reason: FailureReason) -> None:
    driver = start(situation)
    driver.kill_attendant()
    driver.kill_jvm()
    assert driver.failure() == Failure.of(reason), driver.log.read_text()[-3000:]


@pytest.mark.drill
def test_a_killed_jvm_whose_attendant_lives(start: Start) -> None:
    driver = start("waiting")
    driver.kill_jvm()
    assert driver.failure() == Failure.of(Reason.DRIVER_KILLED)


@pytest.mark.drill
def test_a_killed_jvm_while_the_ledger_is_silent(start: Start, postgres_server: PostgresServer) -> None:
    driver = start("waiting")
    postgres_server.stop()
    driver.kill_jvm()
    try:
        await_condition(lambda: not driver.jvm.is_running() or driver.jvm.status() == psutil.STATUS_ZOMBIE)
    finally:
        postgres_server.start()
    assert driver.failure() == Failure.of(Reason.DRIVER_KILLED)


@pytest.mark.drill
def test_a_catalog_and_an_object_store_that_do_not_answer(start: Start) -> None:
    assert start("without_catalog_and_object_store").failure() == Failure.of(Reason.CATALOG_UNREACHABLE)


@pytest.mark.parametrize("is_attended", [True, False])
@pytest.mark.drill
def test_a_jvm_that_the_kernel_kills_because_memory_runs_out(start: Start, *, is_attended: bool) -> None:
    with limited_memory(megabytes=700):
        driver = start("memory_used_up")
        if not is_attended:
            driver.kill_attendant()
        (driver.log.parent / "place.go").touch()
        assert driver.failure() == Failure.of(Reason.OUT_OF_MEMORY), driver.log.read_text()[-3000:]


@contextmanager
def limited_memory(*, megabytes: int) -> Iterator[None]:
    """A control group with so much memory for the processes that this one starts; skips where none can be made."""
    top = Path("/sys/fs/cgroup/memory")
    own = next((line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), None)
    if own is None or not os.access(top, os.W_OK):
        pytest.skip("no control group can be made here")
    group, before = top / f"sluice-{uuid4().hex}", top / own.split(":", 2)[2].lstrip("/")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(megabytes * 1024**2))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        await_condition(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
