"""Drivers on this host: record which process a driver is, recognise the process later, and end it.

Whether a recorded process lives is decided from its identity and from what is seen under its process id here:

| recorded                        | seen here                                            | the process is |
|---------------------------------|------------------------------------------------------|----------------|
| another host                    |                                                      | UNKNOWN        |
| the same boot and pid namespace | a process with the same start                        | ALIVE          |
| the same boot and pid namespace | none, or another start                               | GONE           |
| the same boot, other namespace  |                                                      | UNKNOWN        |
| another boot, in no container   | this is no container either: the machine was rebooted | GONE           |
| another boot, in a container    |                                                      | UNKNOWN        |
| without boot and namespace      | a process with nearly the same start time            | ALIVE          |
| without boot and namespace      | none, or one that is certainly not a driver          | GONE           |
| without boot and namespace      | one that may be a driver: the clock may have been set | UNKNOWN        |

Containers that use their machine's network share its name and not its process ids, so a process that is missing in one
of them may live in another. A container that moves to another machine may keep its name; its old driver may live on.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil

from sluice.processes.living_processes import find_process, this_place
from sluice.processes.process_identity import (
    HOSTS_OWN_NAMESPACE,
    RUN_ID_VARIABLE,
    ProcessIdentity,
    ProcessPlace,
    ProcessState,
)

START_TIME_TOLERANCE_SECONDS = 2.0
"""How far a start time may differ from the recorded one. The kernel reports it relative to the boot, and the time of
the boot moves a little when the clock is corrected."""


def judge_process(
    recorded: ProcessIdentity, *, here: ProcessPlace, seen: ProcessIdentity | None, may_be_driver: bool
) -> ProcessState:
    """Whether the recorded process lives; the table above is the whole rule.

    Parameters
    ----------
    recorded: the identity in the ledger.
    here: where it was looked for.
    seen: the living process with its process id here; none when there is none.
    may_be_driver: whether that process has a driver's mark, or an environment that cannot be read.
    """
    if recorded.host != here.host:
        return ProcessState.UNKNOWN
    if recorded.boot_id is None or recorded.pid_namespace is None or here.boot_id is None or here.pid_namespace is None:
        return _judge_by_start_time(recorded, seen, may_be_driver=may_be_driver)
    if recorded.boot_id != here.boot_id:
        is_in_no_container = recorded.pid_namespace == here.pid_namespace == HOSTS_OWN_NAMESPACE
        return ProcessState.GONE if is_in_no_container else ProcessState.UNKNOWN
    if recorded.pid_namespace != here.pid_namespace:
        return ProcessState.UNKNOWN
    return ProcessState.ALIVE if seen is not None and _has_its_start(recorded, seen) else ProcessState.GONE


def _has_its_start(recorded: ProcessIdentity, seen: ProcessIdentity) -> bool:
    if recorded.start_ticks is not None and seen.start_ticks is not None:
        return recorded.start_ticks == seen.start_ticks
    return _started_about_when(recorded, seen)


def _judge_by_start_time(
    recorded: ProcessIdentity, seen: ProcessIdentity | None, *, may_be_driver: bool
) -> ProcessState:
    if seen is None:
        return ProcessState.GONE
    if _started_about_when(recorded, seen):
        return ProcessState.ALIVE
    return ProcessState.UNKNOWN if may_be_driver else ProcessState.GONE


def _started_about_when(recorded: ProcessIdentity, seen: ProcessIdentity) -> bool:
    return abs(seen.started_at_seconds - recorded.started_at_seconds) <= START_TIME_TOLERANCE_SECONDS


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
