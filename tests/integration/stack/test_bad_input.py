"""What a person meets when the machine is not as it should be: one sentence, exit code, nothing started."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.fixtures.stack import CommandResult, Stack, stack_in
from tests.integration.stack.traces import processes_of

from sluice.ledger.connection import open_ledger
from sluice.processes.deadline import wait_until
from sluice.stack.stack_records import read_ports


def assert_refused(result: CommandResult, stack: Stack, *words: str, after: int = 0) -> None:
    """The command failed with one sentence and a next step, and nothing runs. after: lines of progress before it."""
    assert result.exit_code == 1
    assert "Traceback" not in result.errors
    assert len(result.errors.strip().splitlines()) <= 4 + after, result.errors
    assert [word for word in words if word not in result.errors] == []
    assert processes_of(stack) == []


def test_a_port_that_was_asked_for_and_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with stack_in(tmp_path / "data", SLUICE_S3_PORT=str(port)) as stack:
            result = stack.run("up", "--services", "seaweedfs")

            assert_refused(result, stack, f"SLUICE_S3_PORT asks for port {port}, but", f"(pid {os.getpid()})")
            assert read_ports(stack.data / "ports.json") == {}


@pytest.mark.full  # every run: `test_stack_records.py`
def test_a_requested_port_that_is_not_a_number(tmp_path: Path) -> None:
    with stack_in(tmp_path / "data", SLUICE_S3_PORT="http") as stack:
        result = stack.run("up", "--services", "seaweedfs")

    assert result.exit_code == 2
    assert "SLUICE_S3_PORT is 'http'" in result.errors


@pytest.mark.full
def test_a_recorded_port_that_was_taken_while_the_stack_was_down(new_stack: Stack) -> None:
    new_stack.up(("seaweedfs",))
    new_stack.run("down")
    before = read_ports(new_stack.data / "ports.json")

    with socket.create_server(("127.0.0.1", before["iceberg"])):
        assert new_stack.run("down").exit_code == 0  # whose port it is by now does not matter
        result = new_stack.run("up", "--services", "seaweedfs")

    after = read_ports(new_stack.data / "ports.json")
    assert result.exit_code == 0
    assert f"iceberg moves to {after['iceberg']}" in result.errors
    assert {name: port for name, port in after.items() if name != "iceberg"} == {
        name: port for name, port in before.items() if name != "iceberg"
    }


@pytest.mark.full  # every run: a port that is taken before the command
def test_a_port_that_is_taken_right_before_its_service_starts(new_stack: Stack) -> None:
    recorded = new_stack.data / "ports.json"
    with new_stack.popen("up", "--services", "postgres") as up, socket.socket() as stranger:
        wait_until(recorded.exists, bool, seconds=60)
        first = read_ports(recorded)["postgres"]
        wait_until(lambda: _listens(stranger, first), bool, seconds=60, pause=lambda _: None)
        _, errors = up.communicate(timeout=120)
        after = read_ports(recorded)["postgres"]
    assert up.returncode == 0, errors
    assert f"port {first} is taken by" in errors
    assert f"postgres moves to {after}" in errors


def _listens(stranger: socket.socket, port: int) -> bool:
    """Try to take a port, as a program of somebody else does that has waited for it."""
    with suppress(OSError):
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", port))
        stranger.listen()
        return True
    return False


@pytest.mark.full  # every run: `test_tools.py`
def test_no_java(tmp_path: Path) -> None:
    with stack_in(tmp_path / "data", PATH="/nowhere", JAVA_HOME="", SLUICE_HOME=str(tmp_path)) as stack:
        result = stack.run("up")

        assert_refused(result, stack, "needs Java 17 to 23 and found none", "Install Java 17")
        assert not stack.data.exists()


@pytest.mark.full  # every run: `test_tools.py`
def test_a_java_that_is_too_old(tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '  java.home = {tmp_path}/jdk'\necho '  java.version = 11.0.2'\n")
    java.chmod(0o755)
    with stack_in(
        tmp_path / "data", JAVA_HOME=str(tmp_path / "jdk"), PATH="/nowhere", SLUICE_HOME=str(tmp_path)
    ) as stack:
        result = stack.run("up")

        assert_refused(result, stack, f"found only Java 11.0.2 in {tmp_path}/jdk")
        assert not stack.data.exists()


@pytest.mark.full  # every run: `test_tools.py`
def test_no_jars(tmp_path: Path) -> None:
    with stack_in(tmp_path / "data", SLUICE_JARS=str(tmp_path)) as stack:
        result = stack.run("up")

        assert_refused(result, stack, f"{tmp_path / 'spark'} holds no jar.", "make setup")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MiB; only root can mount it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:  # noqa: S603
        pytest.skip("a small disk can be mounted by root only, and in some containers not even by root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)  # noqa: S603, S607


@pytest.mark.full  # every run: `test_folder.py`
def test_a_full_disk(small_disk: Path) -> None:
    with stack_in(small_disk / "data") as stack:
        result = stack.run("up")

        assert_refused(result, stack, "is full: 64 MiB are free, the stack needs at least 1024 MiB.", "SLUICE_DATA")
        assert not stack.data.exists()


@pytest.mark.full  # every run: one of another user (`test_folder.py`)
def test_a_data_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with stack_in(tmp_path / "data") as stack:
        result = stack.run("up")

    assert result.exit_code == 1
    assert f"cannot be {tmp_path / 'data'}: {tmp_path / 'data'} is a file" in result.errors


@pytest.fixture(scope="module")
def ended_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with the data of a PostgreSQL, down; every test leaves its files as they were."""
    with stack_in(tmp_path_factory.mktemp("ended") / "data") as stack:
        stack.up(("postgres",))
        stack.run("down")
        yield stack


@contextmanager
def overwritten(file: Path, text: str) -> Iterator[None]:
    """A file with another text for as long as the block lasts; its owner stays."""
    before = file.read_text()
    file.write_text(text)
    try:
        yield
    finally:
        file.write_text(before)


def test_a_service_that_ends_while_it_starts(ended_stack: Stack) -> None:
    """The other service, which has started, is ended too."""
    with overwritten(ended_stack.data / "postgres" / "postgresql.conf", "no_such_setting = 1\n"):
        result = ended_stack.run("up", "--services", "postgres,seaweedfs")

    assert_refused(result, ended_stack, "PostgreSQL ended while it was starting", "postgres.log")


@pytest.mark.full  # every run: `test_folder.py`
def test_lost_credentials(ended_stack: Stack, tmp_path: Path) -> None:
    credentials = ended_stack.data / "credentials.json"
    kept = credentials.rename(tmp_path / "credentials.json")

    result = ended_stack.run("up", "--services", "postgres")

    kept.rename(credentials)
    assert_refused(result, ended_stack, "credentials.json is missing, but", "holds data that only its credentials open")


def test_data_of_another_version(ended_stack: Stack) -> None:
    with overwritten(ended_stack.data / "postgres" / "PG_VERSION", "17\n"):
        result = ended_stack.run("up", "--services", "postgres")

    assert_refused(result, ended_stack, "was written by PostgreSQL 17; this is PostgreSQL 18.")


def test_an_unknown_service(new_stack: Stack) -> None:
    result = new_stack.run("up", "--services", "postgres,redis")

    assert result.exit_code == 2
    assert "There is no service redis; there are postgres, " in result.errors
    assert not new_stack.data.exists()


@pytest.mark.full  # every run refuses it without a stack (`test_migrations.py`)
@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0026", ("before 0.2.0", "DROP SCHEMA sluice CASCADE")),
        ("of_next_year", ("a newer Sluice than this one",)),
    ],
)
def test_a_ledger_of_another_version_of_sluice(new_stack: Stack, version: str, words: tuple[str, ...]) -> None:
    """One that names no oldest reader; a newer one may name this version, which then reads it."""
    new_stack.up(("postgres",))
    with open_ledger(new_stack.ledger_owner_url()) as ledger, ledger.transaction() as connection:
        connection.execute(text("COMMENT ON TABLE sluice.alembic_version IS NULL"))
        connection.execute(text("UPDATE sluice.alembic_version SET version_num = :version"), {"version": version})
    new_stack.run("down")

    result = new_stack.run("up", "--services", "postgres")

    assert_refused(result, new_stack, f"The ledger has version {version}", *words, after=4)
