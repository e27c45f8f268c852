"""The attendant of a real driver: what it records, what it survives, and what never happens without it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool
from tests.fixtures.drivers import await_condition, await_end, end_drivers, processes_of

from sluice.errors import LaunchError
from sluice.failure_reasons import Failure, FailureReason
from sluice.launching.driver_records import exit_note_path
from sluice.launching.launcher_port import LaunchRequest
from sluice.launching.launchers import LocalLauncher
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import DriverExit, RunObservation, RunState
from sluice.ledger.runs import admit_run, find_run
from sluice.ledger.stream_records import read_stream
from sluice.processes.process_identity import ProcessIdentity, ProcessState
from sluice.supervision.supervisor import observe

LARGEST_ATTENDANT_BYTES = 12 * 1024**2
"""Proportional set size. A bare Python process of this version has about 7 MB."""

LONGEST_UNTIL_KNOWN_SECONDS = 5.0
"""Half a second on an idle machine, most of it the import of SQLAlchemy; the rest is room for a busy one."""


@pytest.fixture
def launcher(ledger: Ledger, ledger_url: str) -> Iterator[LocalLauncher]:
    """The local launcher, and no driver left behind."""
    yield LocalLauncher(ledger_url=ledger_url)
    end_drivers(ledger)


@pytest.fixture
def run(ledger: Ledger) -> RunObservation:
    """An admitted run."""
    return admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    """Where the driver writes; its folder does not exist yet."""
    return tmp_path / "logs" / "flights" / "run.log"


def shell(run: RunObservation, log_file: Path, script: str, **environment: str) -> LaunchRequest:
    """A driver that is a small shell script."""
    return LaunchRequest(
        run_id=run.run_id,
        stream=run.stream,
        command=("sh", "-c", script),
        environment=environment,
        log_file=log_file,
    )


@pytest.mark.parametrize(  # every run: the others without a process (`test_exits.py`)
    ("script", "expected"),
    [
        pytest.param("exit 0", (RunState.FINISHED, 0, "finished"), marks=pytest.mark.full),
        pytest.param("exit 3", (RunState.FAILED, 3, "exit code 3"), marks=pytest.mark.full),
        ("kill -9 $$", (RunState.FAILED, -9, "killed by SIGKILL")),
        pytest.param("exit 143", (RunState.FAILED, 143, "killed by SIGTERM"), marks=pytest.mark.full),
        pytest.param(
            "echo 'sluice: failed: DeliveryError: an older one' >&2; echo trace; "
            "echo 'sluice: failed: DeliveryError: table bronze.flights refuses' >&2; exit 1",
            (RunState.FAILED, 1, "DeliveryError: table bronze.flights refuses"),
            marks=pytest.mark.full,
        ),
    ],
)
def test_the_end_is_recorded_with_its_reason(
    launcher: LocalLauncher,
    ledger: Ledger,
    run: RunObservation,
    log_file: Path,
    script: str,
    expected: tuple[RunState, int, str],
) -> None:
    launcher.launch(shell(run, log_file, script))
    ended = await_end(ledger, run.run_id)
    assert (ended.state, ended.exit_code, ended.reason) == expected
    await_condition(lambda: not exit_note_path(log_file).exists())


def test_a_death_is_known_long_before_a_heartbeat_is_missed(
    launcher: LocalLauncher, ledger: Ledger, run: RunObservation, log_file: Path
) -> None:
    process = launcher.launch(shell(run, log_file, "exec sleep 300"))
    killed_at = time.monotonic()
    os.kill(process.pid, signal.SIGKILL)
    await_end(ledger, run.run_id)
    assert time.monotonic() - killed_at < LONGEST_UNTIL_KNOWN_SECONDS


def test_a_process_with_many_open_files_launches_too(
    launcher: LocalLauncher, ledger: Ledger, run: RunObservation, log_file: Path
) -> None:
    """`select` of Python takes no descriptor from 1024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2_048, hard), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        launcher.launch(shell(run, log_file, "exit 0"))
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await_end(ledger, run.run_id).state is RunState.FINISHED


def test_the_attendant_is_small(launcher: LocalLauncher, run: RunObservation, log_file: Path) -> None:
    process = launcher.launch(shell(run, log_file, "exec sleep 300"))
    assert attendant_of(process).memory_full_info().pss < LARGEST_ATTENDANT_BYTES


def test_a_driver_outlives_whoever_launched_it(ledger: Ledger, ledger_url: str, tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from sluice.launching.launchers import LocalLauncher\n"
        "from sluice.ledger.connection import open_ledger\n"
        "from sluice.ledger.runs import admit_run\n"
        "from sluice.launching.launcher_port import LaunchRequest\n"
        "with open_ledger(sys.argv[1]) as ledger:\n"
        "    run = admit_run(ledger, stream='flights', mode='continuous', declaration_digest='', launched_by='t')\n"
        "    command, log = ('sleep', '300'), Path(sys.argv[2])\n"
        "    request = LaunchRequest(run_id=run.run_id, stream='flights', command=command, log_file=log)\n"
        "    LocalLauncher(ledger_url=sys.argv[1]).launch(request)\n"
        "print(run.run_id, flush=True)\n"
        "time.sleep(300)\n"
    )
    command = [sys.executable, "-c", program, ledger_url, str(tmp_path / "run.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as task:  # noqa: S603
        assert task.stdout is not None
        run_id = task.stdout.readline().strip()
        os.killpg(task.pid, signal.SIGKILL)  # what Airflow does to a cleared task: the whole process group
    process = find_run(ledger, run_id).process
    assert process is not None
    launcher = LocalLauncher(ledger_url=ledger_url)
    assert launcher.observe(process) is ProcessState.ALIVE
    launcher.stop(process, grace_seconds=10)
    assert await_end(ledger, run_id).state is RunState.FAILED


def test_a_driver_outlives_its_attendant_and_is_seen_to_end(
    launcher: LocalLauncher, ledger: Ledger, run: RunObservation, log_file: Path
) -> None:
    process = launcher.launch(shell(run, log_file, "exec sleep 300"))
    attendant_of(process).kill()
    assert launcher.observe(process) is ProcessState.ALIVE
    assert launcher.stop(process, grace_seconds=10) is ProcessState.GONE
    assert find_run(ledger, run.run_id).is_live, "no attendant was left to record the end; the supervisor records it"
    seen = observe(read_stream(ledger, run.stream), launcher)
    assert (seen.process, seen.left_exit) == (ProcessState.GONE, None)


def test_no_driver_begins_when_its_attendant_dies_before_the_ledger_knows(
    launcher: LocalLauncher, ledger: Ledger, run: RunObservation, log_file: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "began"
    with ledger.transaction() as connection:
        connection.execute(text("LOCK TABLE sluice.runs IN EXCLUSIVE MODE"))  # the attendant's recording waits here
        with pytest.raises(LaunchError, match="did not report"), _killing_the_attendant(log_file):
            launcher.launch(shell(run, log_file, f"touch {trace}"))
    await_condition(lambda: not processes_of(run.run_id))
    assert not trace.exists()


def test_what_a_driver_leaves_of_its_group_is_ended(
    launcher: LocalLauncher, ledger: Ledger, run: RunObservation, log_file: Path
) -> None:
    launcher.launch(shell(run, log_file, "sleep 301 & echo $! ; exit 1"))
    await_end(ledger, run.run_id)
    await_condition(lambda: not processes_of(run.run_id), within_seconds=5)


def test_sigterm_to_the_attendant_reaches_the_driver(
    launcher: LocalLauncher, ledger: Ledger, run: RunObservation, log_file: Path
) -> None:
    script = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    process = launcher.launch(shell(run, log_file, script))
    await_condition(lambda: "ready" in log_file.read_text())
    attendant_of(process).terminate()
    assert await_end(ledger, run.run_id).state is RunState.FINISHED
    assert "asked" in log_file.read_text()


def test_an_application_is_asked_and_not_the_jvm_that_started_it(
    launcher: LocalLauncher, ledger: Ledger, run: RunObservation, log_file: Path, tmp_path: Path
) -> None:
    application = "trap 'echo application asked; exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    script = f"trap 'echo parent asked' TERM; sh -c \"{application}\"; exit $?"
    (tmp_path / "java").symlink_to("/bin/sh")  # as `spark-submit` is: a JVM that waits for the application
    command = (str(tmp_path / "java"), "-c", script)
    request = LaunchRequest(run_id=run.run_id, stream=run.stream, command=command, log_file=log_file)
    process = launcher.launch(request)
    await_condition(lambda: "ready" in log_file.read_text())
    launcher.stop(process, grace_seconds=10)
    assert await_end(ledger, run.run_id).exit_code == 7
    assert log_file.read_text().split("\n")[:2] == ["ready", "application asked"]


@pytest.mark.full  # every run: `test_exits.py`
def test_an_exit_that_the_absent_ledger_cannot_hear_is_noted_beside_the_log(
    launcher: LocalLauncher, ledger: Ledger, ledger_url: str, run: RunObservation, log_file: Path
) -> None:
    process = launcher.launch(shell(run, log_file, "exec sleep 300"))
    attendant = attendant_of(process)
    with _absent(ledger_url):
        os.kill(process.pid, signal.SIGKILL)
        await_condition(exit_note_path(log_file).exists)
        attendant.suspend()  # or the note goes as soon as the ledger hears again
    killed = Failure.of(FailureReason.DRIVER_KILLED)
    expected = DriverExit(state=RunState.FAILED, exit_code=-9, reason="killed by SIGKILL", failure=killed)
    seen = observe(read_stream(ledger, run.stream), launcher)
    assert seen.left_exit == expected
    attendant.resume()
    assert await_end(ledger, run.run_id).reason == expected.reason
    await_condition(lambda: not exit_note_path(log_file).exists())


def test_a_driver_gets_its_secrets_by_environment_and_none_of_airflows(
    launcher: LocalLauncher,
    ledger: Ledger,
    ledger_url: str,
    run: RunObservation,
    log_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "planted-secret-of-airflow")
    process = launcher.launch(shell(run, log_file, "env; exec sleep 300", SLUICE_PLANTED="planted-secret-of-ours"))
    await_condition(lambda: "planted-secret-of-ours" in log_file.read_text())
    log = log_file.read_text()
    assert f"SLUICE_RUN_ID={run.run_id}" in log
    assert f"SLUICE_LEDGER_URL={ledger_url}" in log
    assert "planted-secret-of-airflow" not in log
    for seen in (psutil.Process(process.pid), attendant_of(process)):
        argv = " ".join(seen.cmdline())
        assert "planted-secret" not in argv
        assert ledger_url not in argv


def test_a_missing_program_is_one_sentence(launcher: LocalLauncher, run: RunObservation, log_file: Path) -> None:
    request = LaunchRequest(run_id=run.run_id, stream="flights", command=("/no/spark-submit",), log_file=log_file)
    with pytest.raises(LaunchError, match="/no/spark-submit is not found"):
        launcher.launch(request)


def test_a_log_that_cannot_be_written_is_one_sentence(
    launcher: LocalLauncher, run: RunObservation, tmp_path: Path
) -> None:
    (tmp_path / "a_file").write_text("")
    with pytest.raises(LaunchError, match="File exists"):
        launcher.launch(shell(run, tmp_path / "a_file" / "run.log", "exit 0"))


def attendant_of(process: ProcessIdentity) -> psutil.Process:
    """The small parent of a driver."""
    parent = psutil.Process(process.pid).parent()
    assert parent is not None
    assert "sluice.launching.attend" in parent.cmdline()
    return parent


@contextmanager
def _killing_the_attendant(log_file: Path) -> Iterator[None]:
    """Kill every attendant that names this log, and the child that records for it, as soon as there are both."""
    script = (
        "import sys, time, psutil\n"
        "def named(): return [p for p in psutil.process_iter(['cmdline'])\n"
        "    if 'sluice.launching.attend' in (p.info['cmdline'] or []) and sys.argv[1] in p.info['cmdline']]\n"
        "deadline = time.monotonic() + 20\n"
        "while len(named()) < 2 and time.monotonic() < deadline: time.sleep(0.05)\n"
        "time.sleep(0.5)\n"
        "for p in named(): p.kill()\n"
    )
    command = [sys.executable, "-c", script, f"--log-file={log_file}"]
    with subprocess.Popen(command):  # noqa: S603  # our own script
        yield


@contextmanager
def _absent(ledger_url: str) -> Iterator[None]:
    """A ledger that refuses every connection."""
    url = make_url(ledger_url)
    administrator = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with administrator.connect() as connection:
        connection.execute(text(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS false"))
        connection.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"), {"name": url.database}
        )
        try:
            yield
        finally:
            connection.execute(text(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS true"))


@pytest.mark.full
def test_a_log_that_is_full_is_put_aside_while_its_driver_writes(
    launcher: LocalLauncher, run: RunObservation, log_file: Path
) -> None:
    script = "while :; do echo 0123456789; sleep 0.01; done"
    launcher.launch(shell(run, log_file, script, SLUICE_DRIVER_LOG_BYTES="1000"))
    aside = log_file.with_name("run.log.1")
    await_condition(aside.exists, within_seconds=120)
    assert aside.stat().st_size >= 1000
    size = log_file.stat().st_size
    await_condition(lambda: log_file.stat().st_size != size, within_seconds=60)
