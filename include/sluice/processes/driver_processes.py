"""Drivers on this host: record which process a driver is, recognise the process later, and end it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil

from sluice.processes.living_processes import find_process, this_place
from sluice.processes.process_identity import RUN_ID_VARIABLE, ProcessIdentity, ProcessState
from sluice.processes.process_judgement import judge_process


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
    """See whether the process with this identity lives, as `judge_process` decides it.

    Parameters
    ----------
    identity: the recorded identity.
    """
    seen = find_process(identity.pid)
    may_be_driver = seen is not None and (seen.environment is None or RUN_ID_VARIABLE in seen.environment)
    return judge_process(
        identity,
        here=this_place(),
        seen=seen.identity if seen is not None else None,
        may_be_driver=may_be_driver,
    )


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
