"""A driver that is kept after an increment runs the next one: in the same process, isolated, and never for too long."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from sluice.launching.kept_driver import (
    IncrementRequest,
    KeptDriver,
    NoKeptDriverError,
    deployment_digest,
    kept_driver_of,
    send_line,
)
from sluice_spark.run.kept_increments import KeptIncrements
from tests.fixtures.spark_jobs import wait_until
from tests.fixtures.stack import Stack
from tests.fixtures.streams_of_tables import COLUMNS, reading, writing
from tests.fixtures.workshop import Workshop

from sluice.declarations.engine_declaration import EngineDeclaration
from sluice.errors import LaunchError
from sluice.launching.spark_submit import SparkConnection
from sluice.processes.driver_processes import kill_group
from sluice_spark.run.stop_request import StopRequest
from sluice_spark.session.run_sessions import KeptApplication

ENGINE = EngineDeclaration(kept_minutes=10)


@dataclass(kw_only=True)
class Asking:
    """Asks a stream's kept driver for increments. groups: the process groups that ran them. lines: of their log."""

    workshop: Workshop
    stream: str
    driver: KeptDriver
    groups: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def increment(self) -> int:
        """Ask for one, and wait for its end."""
        digest = deployment_digest(self.workshop.settings)
        self.lines.clear()
        request = IncrementRequest(digest=digest, launched_by="a test")
        return self.driver.run(request, on_line=self.lines.append, on_start=self.groups.append)


@pytest.fixture
def asking(workshop: Workshop, services: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    """A stream that copies, and its kept driver, which does not outlive the test."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)  # of the session of this process
    stream, settings = f"s{workshop.namespace}", workshop.settings
    declare(workshop, stream)
    driver = kept_driver_of(stream, ENGINE, settings, SparkConnection(master="local[2]"))
    own = {"SLUICE_PIPELINES": str(settings.pipelines), "SLUICE_CHECKPOINTS": settings.checkpoints}
    driver = replace(driver, environment={**services.environment(), **driver.environment, **own})
    asking = Asking(workshop=workshop, stream=stream, driver=driver)
    yield asking
    for group in asking.groups:
        kill_group(group)


def declare(workshop: Workshop, stream: str, sql: str = "SELECT id, word FROM records", **parts: Any) -> None:
    source, target = (workshop.declare_table(table, COLUMNS) for table in ("source", "target"))
    workshop.declare_stream(stream, sql=sql, inputs=reading(source), outputs=writing(target), **parts)


def is_gone(group: int) -> bool:
    """Whether the leader of a process group has ended."""
    return not psutil.pid_exists(group) or psutil.Process(group).status() == psutil.STATUS_ZOMBIE


def test_a_kept_driver_runs_one_increment_after_another_until_its_deployment_changes(asking: Asking) -> None:
    workshop, stream = asking.workshop, asking.stream
    for number in range(3):
        workshop.append("source", [{"id": number, "word": "word"}])
        assert asking.increment() == 0
        assert [row["id"] for row in workshop.rows("target")] == list(range(number + 1))
    assert len(set(asking.groups)) == 1
    assert any("batch 2" in line for line in asking.lines)
    assert not any("batch 1" in line for line in asking.lines)

    declare(workshop, stream, sql="SELECT id, upper(word) AS word FROM records")
    workshop.append("source", [{"id": 3, "word": "word"}])
    assert asking.increment() == 0

    assert [row["word"] for row in workshop.rows("target")] == ["word", "word", "word", "WORD"]
    assert asking.groups[-1] != asking.groups[0]
    wait_until(lambda: is_gone(asking.groups[0]), within_seconds=60)


def test_a_kept_driver_that_is_killed_loses_and_doubles_nothing(asking: Asking) -> None:
    workshop = asking.workshop
    workshop.append("source", [{"id": 0, "word": "word"}])
    assert asking.increment() == 0
    workshop.append("source", [{"id": 1, "word": "word"}])

    with pytest.raises(LaunchError, match="ended while it ran the increment"):
        asking.driver.run(
            IncrementRequest(digest=deployment_digest(workshop.settings), launched_by="a test"),
            on_line=asking.lines.append,
            on_start=lambda group: os.killpg(group, signal.SIGKILL),
        )
    assert asking.increment() == 0

    assert [row["id"] for row in workshop.rows("target")] == [0, 1]


def test_a_failed_increment_ends_its_driver_and_says_why(asking: Asking) -> None:
    workshop, stream = asking.workshop, asking.stream
    declare(workshop, stream, sql="SELECT id, CAST(CAST(word AS INT) AS STRING) AS word FROM records")
    workshop.append("source", [{"id": 0, "word": "word"}])

    assert asking.increment() == 1

    assert asking.lines[-2].startswith("sluice: reason: ")
    assert asking.lines[-1].startswith("sluice: failed: DeliveryError: ")
    wait_until(lambda: is_gone(asking.groups[0]), within_seconds=60)
    assert not asking.driver.address.exists()


def test_an_idle_driver_ends_when_asked_and_after_its_time(asking: Asking) -> None:
    asking.workshop.append("source", [{"id": 0, "word": "word"}])
    assert asking.increment() == 0
    os.kill(asking.groups[0], signal.SIGTERM)
    wait_until(lambda: is_gone(asking.groups[0]), within_seconds=60)

    command = [one if not one.startswith("--kept-seconds") else "--kept-seconds=1" for one in asking.driver.command]
    asking.driver = replace(asking.driver, command=command)
    assert asking.increment() == 0
    wait_until(lambda: is_gone(asking.groups[1]), within_seconds=60)


def test_a_driver_that_cannot_start_leaves_the_increment_to_another_way(asking: Asking, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o700)
    asking.driver = replace(asking.driver, command=[str(broken)])

    with pytest.raises(NoKeptDriverError, match="ended with status 3"):
        asking.increment()
    asking.driver.address.parent.chmod(0o755)
    try:
        with pytest.raises(NoKeptDriverError, match="only this user"):
            asking.increment()
    finally:
        asking.driver.address.parent.chmod(0o700)


def test_an_increment_whose_sender_has_given_up_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    runs: list[str] = []

    def run(launched_by: str, stop: StopRequest) -> int:
        del stop
        runs.append(launched_by)
        if launched_by == "first":
            for sender, keeps in (("gone", False), ("last", True)):
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(str(kept.address))
                send_line(connection, IncrementRequest(digest="digest", launched_by=sender))
                if keeps:
                    waiting.append(connection)
                else:
                    connection.close()
        return 0

    kept = KeptIncrements(
        address=folder / "a.socket", digest="digest", kept_seconds=2.0, application=KeptApplication(), run=run
    )
    waiting: list[socket.socket] = []
    with ThreadPoolExecutor(1) as pool, socket.socket(socket.AF_UNIX) as first:
        served = pool.submit(kept.serve)
        wait_until(kept.address.exists, within_seconds=10)
        first.connect(str(kept.address))
        send_line(first, IncrementRequest(digest="digest", launched_by="first"))
        served.result(timeout=60)
    for connection in waiting:
        connection.close()

    assert runs == ["first", "last"]
