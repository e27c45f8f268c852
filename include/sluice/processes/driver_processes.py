"""Drivers on this host: record which process a driver is, recognise the process later, and end it."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

import psutil

from sluice.processes.living_processes import find_process
from sluice.processes.process_identity import ProcessIdentity, ProcessState

RUN_ID_VARIABLE = "SLUICE_RUN_ID"
"""The environment variable that marks a driver and every process that the driver starts."""

START_TIME_TOLERANCE_SECONDS = 2.0
"""How far a start time may differ from the recorded one. The kernel reports it relative to the boot, and the time of
the boot moves a little when the clock is corrected."""


def identity_of(pid: int) -> ProcessIdentity:
    """The identity of a living process of this host.

    Raises
    ------
    psutil.NoSuchProcess: when there is none.
    """
    process = find_process(pid)
    if process is None:
        raise psutil.NoSuchProcess(pid)
    return process.identity


def observe_process(identity: ProcessIdentity) -> ProcessState:
    """See whether the process with this identity lives.

    Parameters
    ----------
    identity: the recorded identity.

    Returns
    -------
    UNKNOWN for a process of another host. UNKNOWN also for a process that has the recorded id and a driver's mark, or
    an environment that cannot be read, but another start time: either the id was reused or the clock was set.
    """
    if identity.host != socket.gethostname():
        return ProcessState.UNKNOWN
    seen = find_process(identity.pid)
    if seen is None:
        return ProcessState.GONE
    if abs(seen.identity.started_at_seconds - identity.started_at_seconds) <= START_TIME_TOLERANCE_SECONDS:
        return ProcessState.ALIVE
    may_be_a_driver = seen.environment is None or RUN_ID_VARIABLE in seen.environment
    return ProcessState.UNKNOWN if may_be_a_driver else ProcessState.GONE


def ask_to_end(pid: int) -> None:
    """Ask a driver to end: send SIGTERM to its application, the process that can stop at the end of a batch.

    `spark-submit` is a JVM that starts the Python application as a child in its own process group. If the JVM received
    the signal, it would shut Spark down while the application still uses it. The application receives it instead and
    ends in order, and the JVM ends after it.

    Parameters
    ----------
    pid: the driver's first process, the leader of its process group.
    """
    with suppress(psutil.NoSuchProcess, ProcessLookupError):  # it ended meanwhile, which is what was asked
        driver = psutil.Process(pid)
        for process in _application(driver) or [driver]:
            process.send_signal(signal.SIGTERM)


def _application(driver: psutil.Process) -> list[psutil.Process]:
    """The Python application of a `spark-submit`; empty for any other driver. Spark's workers lead other groups."""
    if driver.name() != "java":
        return []
    return [child for child in driver.children() if os.getpgid(child.pid) == driver.pid]


def kill_group(pid: int) -> None:
    """Kill the process group of a driver, its leader included. Does nothing when the group has no process left."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
