"""A stack that is started again from other surroundings: it keeps what it runs with, or says what changes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fixtures.stack import Stack, stack_in

from sluice.stack.environment import STACK_MARK

VARIABLES = {"SLUICE_CONNECTIONS__QUAKES__KIND": "files", "SLUICE_CONNECTIONS__QUAKES__ROOT": "s3a://a b's"}


@contextmanager
def driver_of(stack: Stack) -> Iterator[None]:
    """A process of the stack that is none of its services, as a driver is."""
    environment = {**os.environ, STACK_MARK: str(stack.data)}
    with subprocess.Popen(["/bin/sleep", "600"], env=environment, start_new_session=True) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The declarations of a project of one's own."""
    folder = tmp_path / "project" / "pipelines"
    folder.mkdir(parents=True)
    return folder


def test_nothing_is_dropped_by_a_second_terminal_and_a_change_is_refused(tmp_path: Path, project: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with stack_in(tmp_path / "data", SLUICE_PIPELINES=str(project), **VARIABLES) as first:
        plain = Stack(data=first.data)
        elsewhere = Stack(data=first.data, variables={"SLUICE_PIPELINES": str(other)})
        first.up(("seaweedfs",))
        with driver_of(first):
            kept = plain.up(("seaweedfs",))
            before = first.environment()
            refused = elsewhere.run("up", "--services", "seaweedfs")
            planned = elsewhere.run("up", "--services", "seaweedfs", "--declarations-from-here", "--dry-run")
            after = first.environment()
            elsewhere.run("up", "--services", "seaweedfs", "--declarations-from-here")
            replaced = first.environment()

    sentence = f"The declarations in {project} are replaced by those in {other}."
    assert before.items() >= {"SLUICE_PIPELINES": str(project), **VARIABLES}.items()
    assert kept.json["declarations"] == str(project)
    assert kept.json["differences"] == []
    assert (refused.exit_code, sentence in refused.errors) == (1, True)
    assert planned.exit_code == 0
    assert [sentence, *(f"{name} is dropped." for name in sorted(VARIABLES)), f"Declarations: {other}"] == [
        line for line in planned.output.splitlines() if line.startswith(("The declarations", "SLUICE_", "Declarations"))
    ]
    assert after == before
    assert (replaced["SLUICE_PIPELINES"], VARIABLES.keys() & replaced.keys()) == (str(other), set())
