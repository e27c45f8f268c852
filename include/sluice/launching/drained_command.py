"""Run a command, and let the drivers beside it end in order: `python -m sluice.launching.drained_command COMMAND …`

The command of a container whose tasks start drivers. When the container is to stop, or its command ends, every driver
finishes its batch and its end is recorded in the ledger, so the next container starts it at once. Without it the kernel
kills them with the container, and each keeps its lease until that expires, because no one sees the processes of a
container that is gone.

Drivers belong to this command when they have its ledger: `SLUICE_LEDGER_URL` leads to the same database, by
whichever role.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import psutil

from sluice.processes.deadline import wait_until
from sluice.processes.process_identity import RUN_ID_VARIABLE

DRAIN_SECONDS = 90.0
"""How long the drivers may take: a batch, and the stop of a query. docker-compose.yaml waits longer than that."""

_LEDGER = "SLUICE_LEDGER_URL"
_ATTENDANT = "sluice.launching.attend"
_POLL_SECONDS = 0.5


def main(command: Sequence[str]) -> int:
    """Run the command and drain its drivers. Returns the command's exit code."""
    started: list[subprocess.Popen[bytes]] = []
    is_asked = threading.Event()

    def stop(*_: object) -> None:
        is_asked.set()
        for process in started:
            process.terminate()
        _ask_drivers_to_end()

    signal.signal(signal.SIGTERM, stop)  # before the command runs: a request that came first would end this alone
    with subprocess.Popen(command) as running:  # noqa: S603  # the container's own command
        started.append(running)
        if is_asked.is_set():
            running.terminate()
        exit_code = running.wait()
    left = drain()
    if left:
        sys.stderr.write(f"drained_command: {left} drivers have not ended within {DRAIN_SECONDS:.0f} s.\n")
    return exit_code


def drain() -> int:
    """Ask the drivers of this ledger on this host to end, and wait for them. Returns how many are left."""
    _ask_drivers_to_end()  # also those that a last task has started meanwhile
    return wait_until(
        lambda: len(list(_attendants())), lambda left: left == 0, seconds=DRAIN_SECONDS, poll_seconds=_POLL_SECONDS
    )


def _ask_drivers_to_end() -> None:
    """An attendant hands the request to its driver, waits, and records the end."""
    for attendant in _attendants():
        with suppress(psutil.NoSuchProcess):
            attendant.terminate()


def _attendants() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            environment = process.environ()
            is_ours = RUN_ID_VARIABLE in environment and _database_of(environment) == _database_of(os.environ)
            if is_ours and _ATTENDANT in process.cmdline():
                yield process


def _database_of(environment: Mapping[str, str]) -> str:
    """Where the ledger lies, without the role: a driver may have one of its own, and its pass beside it."""
    url = urlsplit(environment.get(_LEDGER, ""))
    return f"{url.netloc.rpartition('@')[2]}{url.path}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
