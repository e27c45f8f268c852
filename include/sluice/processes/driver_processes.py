"""One process and no other: how it is recognised, and how it is ended."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

import psutil

from sluice.processes.process_identity import ProcessIdentity, ProcessState

RUN_ID_VARIABLE = "SLUICE_RUN_ID"
"""The environment variable that marks a driver and all that it starts."""

START_TIME_TOLERANCE_SECONDS = 2.0
"""The kernel tells start times relative to the boot, and the boot's time moves a little when the clock is corrected."""


def identity_of(pid: int) -> ProcessIdentity:
    """The identity of a living process of this host.

    Raises
    ------
    psutil.NoSuchProcess: when there is none.
    """
    return ProcessIdentity(host=socket.gethostname(), pid=pid, started_at_seconds=psutil.Process(pid).create_time())


def observe_process(identity: ProcessIdentity) -> ProcessState:
    """See whether that very process lives.

    UNKNOWN for a process of another host; and for one that has the id and a driver's mark but another start time:
    either the id was reused by another driver, or the clock was set.
    """
    if identity.host != socket.gethostname():
        return ProcessState.UNKNOWN
    try:
        process = psutil.Process(identity.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return ProcessState.GONE
        if abs(process.create_time() - identity.started_at_seconds) <= START_TIME_TOLERANCE_SECONDS:
            return ProcessState.ALIVE
        return ProcessState.UNKNOWN if RUN_ID_VARIABLE in process.environ() else ProcessState.GONE
    except psutil.NoSuchProcess:
        return ProcessState.GONE
    except psutil.AccessDenied:
        return ProcessState.UNKNOWN


def ask_to_end(pid: int) -> None:
    """Ask a driver to end, with SIGTERM to its application: the process that can stop at the end of a batch.

    `spark-submit` is a JVM that starts the Python application as a child in its own process group. Asked itself, the
    JVM would tear Spark down under the application; asked first, the application ends in order, the JVM after it.

    Parameters
    ----------
    pid: the driver's top process, the leader of its process group.
    """
    with suppress(psutil.NoSuchProcess, ProcessLookupError):  # it ended meanwhile, which is what was asked
        driver = psutil.Process(pid)
        for process in _application(driver) or [driver]:
            process.send_signal(signal.SIGTERM)


def _application(driver: psutil.Process) -> list[psutil.Process]:
    """The Python application of a `spark-submit`; none of any other driver. Spark's workers lead their own groups."""
    if driver.name() != "java":
        return []
    return [child for child in driver.children() if os.getpgid(child.pid) == driver.pid]


def kill_group(pid: int) -> None:
    """Kill the process group of a driver, leader and all; nothing is done when no process of it is left."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
