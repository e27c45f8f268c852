"""Decides from a recorded identity, and from what is seen under its process id here, whether a process lives. Pure.

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

from sluice.processes.process_identity import HOSTS_OWN_NAMESPACE, ProcessIdentity, ProcessPlace, ProcessState

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
