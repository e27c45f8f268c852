"""A container's command that ends: its own drivers are asked and waited for, those of another ledger are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sluice.launching import drained_command
from sluice.processes.process_identity import RUN_ID_VARIABLE

OURS, ANOTHER = (
    f"postgresql+psycopg://nobody@127.0.0.1:1/drained_{os.getpid()}_{name}" for name in ("ours", "another")
)
WITH_A_PASS = f"{OURS.replace('nobody', 'drivers:password')}?options=-c%20sluice.driver_pass%3Ddrawn"
"""The ledger of `OURS` as the launcher hands it to a driver with a role of its own."""

PLAYS_ATTENDANT = """
import os, pathlib, signal, sys, threading
asked = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: asked.set())
print("up", flush=True)
asked.wait(60)
threading.Event().wait(0.5)  # its driver finishes a batch
pathlib.Path(sys.argv[2]).write_text("recorded")
os._exit(0)  # Python gives signals their default action back while it ends
"""

COMMAND = ("sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done")


@contextmanager
def running(command: list[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it is up; it is ended afterwards."""
    with subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  # ours
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def attendants(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Processes with an attendant's marks, one of each ledger; each writes a file when it ends in order."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                running(
                    [sys.executable, "-c", PLAYS_ATTENDANT, "sluice.launching.attend", str(tmp_path / name)],
                    SLUICE_LEDGER_URL=ledger,
                    **{RUN_ID_VARIABLE: "run-1"},
                )
            )
            for name, ledger in (("ours", OURS), ("with_a_pass", WITH_A_PASS), ("another", ANOTHER))
        }


def test_drivers_of_its_ledger_end_in_order_before_the_command_is_over(
    attendants: dict[str, subprocess.Popen[str]], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", drained_command.__name__, *COMMAND]
    with running(command, SLUICE_LEDGER_URL=OURS) as container:
        container.send_signal(signal.SIGTERM)
        assert container.wait(30) == 7, "the exit code of its command"
        for name in ("ours", "with_a_pass"):
            assert (tmp_path / name).read_text() == "recorded"
            assert attendants[name].wait(5) == 0
    assert attendants["another"].poll() is None


def test_a_driver_that_does_not_end_is_counted(
    attendants: dict[str, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_LEDGER_URL", OURS)
    monkeypatch.setattr(drained_command, "DRAIN_SECONDS", 0.0)
    assert drained_command.drain() == 2
