"""The life of a real stack: started, looked at, broken, repaired, ended. PostgreSQL and SeaweedFS stand for all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain

import psutil
import psycopg
import pytest
from sqlalchemy import text
from tests.fixtures.drill import sampled
from tests.fixtures.drivers import await_condition
from tests.fixtures.stack import Stack, stack_in
from tests.integration.stack.traces import (
    asked_of_processes,
    assert_nothing_is_left,
    command_line,
    listening_addresses,
    processes_of,
)

from sluice.ledger.connection import open_ledger
from sluice.ledger.runs import newest_runs
from sluice.stack.environment import STACK_MARK
from sluice.stack.stack_records import read_ports

PAIR = ("postgres", "seaweedfs")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """PostgreSQL and SeaweedFS, running; every test leaves them running."""
    with stack_in(tmp_path_factory.mktemp("running") / "data") as stack:
        stack.up(PAIR)
        yield stack


def test_what_it_writes_is_private(running: Stack) -> None:
    secret = ["environment", "credentials.json", "ports.json"]

    assert [stat.S_IMODE((running.data / name).stat().st_mode) for name in secret] == [0o600] * 3
    assert stat.S_IMODE(running.data.stat().st_mode) == 0o700


def test_everything_listens_on_loopback_only(running: Stack) -> None:
    listening = [*chain.from_iterable(asked_of_processes(running, listening_addresses))]

    assert len(listening) >= 10
    assert set(listening) == {"127.0.0.1"}


def test_the_role_of_the_drivers_owns_nothing_of_the_ledger(running: Stack) -> None:
    with open_ledger(running.environment()["SLUICE_LEDGER_URL"]) as ledger, ledger.transaction() as connection:
        owned = "select count(*) from pg_class join pg_roles on relowner = pg_roles.oid where rolname = current_user"
        assert connection.execute(text(owned)).scalar_one() == 0
        is_owner = "select pg_get_userbyid(datdba) = current_user from pg_database where datname = current_database()"
        assert connection.execute(text(is_owner)).scalar_one() is False
        assert newest_runs(ledger) == ()


def test_no_secret_is_in_a_command_line_or_a_log(running: Stack) -> None:
    secrets = [value for name, value in _credentials(running).items() if not name.endswith("_id")]
    commands = asked_of_processes(running, command_line)
    logs = [path.read_text(errors="replace") for path in (running.data / "logs").rglob("*.log")]

    assert [secret for secret in secrets if any(secret in text for text in (*commands, *logs))] == []


def _credentials(stack: Stack) -> dict[str, str]:
    return dict(json.loads((stack.data / "credentials.json").read_text()))


def test_status_shows_what_runs_where(running: Stack) -> None:
    seen = running.status()
    ports = read_ports(running.data / "ports.json")

    assert set(seen) == set(PAIR)
    assert all(service["healthy"] for service in seen.values())
    assert {name: service["port"] for name, service in seen.items()} == {
        "postgres": ports["postgres"],
        "seaweedfs": ports["s3"],
    }
    assert all(psutil.pid_exists(service["pid"]) for service in seen.values())


@pytest.mark.full  # every run: `test_second_terminal.py`
def test_a_second_up_changes_nothing(running: Stack) -> None:
    before = {name: service["pid"] for name, service in running.status().items()}

    report = running.up(PAIR).json

    assert {service["name"]: service["outcome"] for service in report["services"]} == dict.fromkeys(
        PAIR, "already running"
    )
    assert {name: service["pid"] for name, service in running.status().items()} == before


@pytest.mark.full  # every run: `test_folder.py`
def test_the_log_of_a_service(running: Stack) -> None:
    text = running.run("logs", "postgres", "-n", "1000")
    values = running.run("logs", "postgres", "--json").json
    unknown = running.run("logs", "redis")

    assert "database system is ready to accept connections" in text.output
    assert values["file"] == str(running.data / "logs" / "postgres.log")
    assert (unknown.exit_code, "There is no log of 'redis'" in unknown.errors) == (2, True)


@pytest.mark.full  # every run: `test_second_terminal.py`
def test_a_dry_run_prints_the_plan_and_does_nothing(running: Stack, new_stack: Stack) -> None:
    before = {process.pid for process in processes_of(running)}

    planned = new_stack.run("up", "--services", "postgres", "--dry-run", "--json").json
    ended = running.run("down", "--dry-run", "--json").json

    assert {step["name"]: step["action"] for step in planned["steps"] if step["name"] == "postgres"} == {
        "postgres": "start"
    }
    assert not new_stack.data.exists()
    assert {process["pid"] for process in ended["processes"]} >= {s["pid"] for s in running.status().values()}
    assert {process.pid for process in processes_of(running)} & before == before


@pytest.mark.full  # every run: the next `up` ends what a killed one left
@pytest.mark.parametrize("victim", PAIR)
def test_up_repairs_a_half_dead_stack(running: Stack, victim: str) -> None:
    before = {name: service["pid"] for name, service in running.status().items()}
    os.kill(before[victim], signal.SIGKILL)
    psutil.wait_procs([p for p in processes_of(running) if p.pid == before[victim]], timeout=5)

    broken = running.run("status", "--json")
    report = running.up(PAIR).json

    assert broken.exit_code == 1
    assert [s["name"] for s in broken.json["services"] if not s["healthy"]] == [victim]
    outcomes = {service["name"]: service["outcome"] for service in report["services"]}
    assert outcomes == {name: "started" if name == victim else "already running" for name in PAIR}
    assert running.run("status").exit_code == 0


@pytest.mark.full
def test_up_replaces_a_service_that_hangs(running: Stack) -> None:
    before = running.status()["seaweedfs"]["pid"]
    os.kill(before, signal.SIGSTOP)

    seen = running.status()["seaweedfs"]
    running.up(PAIR)

    assert (seen["running"], seen["healthy"]) == (True, False)
    assert running.status()["seaweedfs"]["healthy"]
    assert before not in {process.pid for process in processes_of(running)}


@pytest.mark.full
def test_a_service_whose_first_answer_is_late_is_healthy(running: Stack) -> None:
    pid = running.status()["seaweedfs"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    awake = threading.Timer(4.0, os.kill, (pid, signal.SIGCONT))  # one look at it gives up after three seconds
    awake.start()

    seen = running.status()["seaweedfs"]
    awake.join()

    assert (seen["running"], seen["healthy"], seen["detail"]) == (True, True, "")


@pytest.mark.full
def test_a_changed_setting_restarts_only_the_service_it_concerns(running: Stack) -> None:
    before = {name: service["pid"] for name, service in running.status().items()}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    moved = Stack(data=running.data, variables={"SLUICE_POSTGRES_PORT": str(port)})
    moved.up(PAIR)
    after = running.status()

    assert after["postgres"]["port"] == port
    assert after["postgres"]["pid"] != before["postgres"]
    assert after["seaweedfs"]["pid"] == before["seaweedfs"]


@pytest.mark.full  # every run: a port that is asked for and taken (`test_bad_input.py`)
def test_a_recorded_port_that_was_taken_meanwhile_is_named(running: Stack) -> None:
    seen = running.status()["postgres"]
    postmaster = psutil.Process(seen["pid"])
    postmaster.kill()
    psutil.wait_procs([postmaster], timeout=5)

    with socket.create_server(("127.0.0.1", seen["port"])):
        result = running.run("up", "--services", "postgres")

    assert result.exit_code == 1
    assert f"Port {seen['port']}, recorded for postgres, was taken by" in result.errors
    assert "sluice stack down" in result.errors
    running.up(PAIR)


def test_down_ends_everything_and_the_data_stays(new_stack: Stack) -> None:
    new_stack.up(PAIR)
    url = new_stack.ledger_owner_url().replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS answer")

    ended = new_stack.run("down")
    again = new_stack.run("down")

    assert (ended.exit_code, again.exit_code) == (0, 0)
    assert "was down already" in again.output
    assert_nothing_is_left(new_stack)
    assert new_stack.run("status").exit_code == 1
    new_stack.up(("postgres",))
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (1,)


@pytest.mark.full  # every run: the next `up` ends what a killed one left
def test_down_ends_what_lost_its_parent(new_stack: Stack) -> None:
    """A driver that was started detached, and the children of a server that was killed."""
    new_stack.up(PAIR)
    environment = {**os.environ, STACK_MARK: str(new_stack.data)}
    command = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    subprocess.run([sys.executable, "-c", command], env=environment, start_new_session=True, check=True)  # noqa: S603
    for service in new_stack.status().values():
        os.kill(service["pid"], signal.SIGKILL)
    assert any("time.sleep(600)" in command for command in asked_of_processes(new_stack, command_line))

    assert new_stack.run("down").exit_code == 0

    assert_nothing_is_left(new_stack)


@pytest.mark.full
def test_down_finds_the_processes_of_a_deleted_folder(new_stack: Stack) -> None:
    new_stack.up(("seaweedfs",))
    shutil.rmtree(new_stack.data)

    assert new_stack.run("down").exit_code == 0

    assert processes_of(new_stack) == []


@pytest.mark.parametrize("seconds", sampled([0.2, 0.7, 1.2, 2.0, 3.5], (), full=[0.7]))  # every run kills one
def test_an_interrupted_up_leaves_nothing(new_stack: Stack, seconds: float) -> None:
    """The moments lie from the choice of ports to the start of Kafka; `seconds` counts from the first file."""
    with new_stack.popen("up") as process:
        await_condition(lambda: (new_stack.data / "lock").exists())
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    assert process.returncode == 130
    assert_nothing_is_left(new_stack)
    assert list((new_stack.data / "run").iterdir()) == []


def test_a_killed_up_is_cleaned_up_by_the_next(new_stack: Stack) -> None:
    with new_stack.popen("up", "--services", "seaweedfs,kafka") as process:
        await_condition(lambda: bool(processes_of(new_stack)))
        process.kill()
        process.communicate(timeout=10)
    orphans = processes_of(new_stack)
    for record in (new_stack.data / "run").iterdir():
        record.unlink()

    new_stack.up(("seaweedfs",))

    assert orphans != []
    assert not set(orphans) & set(processes_of(new_stack))  # init may be late to collect their exits
    new_stack.run("down")
    assert_nothing_is_left(new_stack)


@pytest.mark.full  # every run: a second terminal (`test_second_terminal.py`)
def test_two_commands_do_not_change_the_stack_at_once(new_stack: Stack) -> None:
    with new_stack.popen("up", "--services", "seaweedfs,kafka") as process:
        await_condition(lambda: (new_stack.data / "starting").exists())
        second = new_stack.run("up", "--services", "seaweedfs")
        third = new_stack.run("down")
        process.communicate(timeout=120)

    assert process.returncode == 0
    for refused in (second, third):
        assert refused.exit_code == 1
        assert f"Another `sluice stack` command (pid {process.pid})" in refused.errors
