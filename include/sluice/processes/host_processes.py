"""The processes of this host: how they descend from each other, and the drivers among them, which are recorded,
recognised later, and ended. Linux only.

`/proc` is read directly where psutil would read the same file several times: a stack that is stopped looks at every
process of the machine up to twenty times a second.

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
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sluice.processes.process_identity import (
    HOSTS_OWN_NAMESPACE,
    RUN_ID_VARIABLE,
    ProcessIdentity,
    ProcessPlace,
    ProcessState,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LivingProcess:
    """One process as it was seen.

    Parameters
    ----------
    pid: its process id.
    parent_pid: the process id of its parent.
    session_id: the process id of its session's leader.
    start_ticks: clock ticks from the boot to its start. A correction of the clock does not change them.
    name: the program's name.
    working_folder: where it runs; empty when it cannot be read.
    environment: what it was started with; None when it cannot be read, because the process is another user's.
    """

    pid: int
    parent_pid: int
    session_id: int
    start_ticks: int
    name: str
    working_folder: str = ""
    environment: Mapping[str, str] | None = field(default=None, repr=False)

    @property
    def key(self) -> tuple[int, int]:
        """What identifies the process until the next boot of this host: process ids are reused, the pair is not."""
        return (self.pid, self.start_ticks)

    @property
    def identity(self) -> ProcessIdentity:
        """The identity to record. Its start time depends on the time of the boot, which follows the clock."""
        here = this_place()
        return ProcessIdentity(
            host=here.host,
            pid=self.pid,
            started_at_seconds=self.start_ticks / os.sysconf("SC_CLK_TCK") + psutil.boot_time(),
            boot_id=here.boot_id,
            pid_namespace=here.pid_namespace,
            start_ticks=self.start_ticks,
        )

    def variable(self, name: str) -> str:
        """A variable of its environment; empty when it is not set or cannot be read."""
        return (self.environment or {}).get(name, "")


def this_place() -> ProcessPlace:
    """Where this process observes others: the host, its boot, and the namespace in which process ids count here."""
    return ProcessPlace(host=socket.gethostname(), boot_id=_read_boot_id(), pid_namespace=_read_pid_namespace())


def find_process(pid: int) -> LivingProcess | None:
    """Look at one process.

    Parameters
    ----------
    pid: its process id.

    Returns
    -------
    The process; None when there is none, or when it has ended and only waits for its parent to collect its exit.
    """
    folder = Path("/proc", str(pid))
    stat = _read_stat(folder)
    living = folder if stat is not None and stat.is_living else _living_thread(folder)
    if stat is None or living is None:
        return None
    return LivingProcess(
        pid=pid,
        parent_pid=stat.parent_pid,
        session_id=stat.session_id,
        start_ticks=stat.start_ticks,
        name=stat.name,
        working_folder=_read_working_folder(living),
        environment=_read_environment(living),
    )


def observe_processes() -> dict[int, LivingProcess]:
    """Every living process of this host, by process id."""
    return {pid: process for pid in psutil.pids() if (process := find_process(pid)) is not None}


def with_descendants(
    roots: Collection[LivingProcess], everything: Mapping[int, LivingProcess]
) -> dict[int, LivingProcess]:
    """Processes together with their children, the children of these, and so on.

    Parameters
    ----------
    roots: the processes to begin with.
    everything: the processes among which descendants are looked for, by process id.
    """
    found = {process.pid: process for process in roots}
    grew = True
    while grew:
        children = {p.pid: p for p in everything.values() if p.parent_pid in found and p.pid not in found}
        found.update(children)
        grew = bool(children)
    return found


def own_lineage(everything: Mapping[int, LivingProcess]) -> set[int]:
    """The process ids of this process and of its ancestors.

    Parameters
    ----------
    everything: the processes of this host, by process id.
    """
    lineage: set[int] = set()
    pid = os.getpid()
    while pid and pid not in lineage:
        lineage.add(pid)
        pid = everything[pid].parent_pid if pid in everything else 0
    return lineage


def _read_boot_id() -> str | None:
    """The random id of this boot. Source: https://docs.kernel.org/admin-guide/sysctl/kernel.html#random."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:  # a sandbox that hides it
        return None


def _read_pid_namespace() -> int | None:
    """The inode of this process's namespace, from a link such as `pid:[4026531836]`. Source: pid_namespaces(7)."""
    try:
        return int(str(Path("/proc/self/ns/pid").readlink()).partition("[")[2].rstrip("]"))
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    """A process or a thread, from its `/proc/…/stat`. Source: proc_pid_stat(5)."""

    name: str
    is_living: bool
    parent_pid: int
    session_id: int
    start_ticks: int


def _read_stat(folder: Path) -> _Stat | None:
    try:
        head, _, tail = (folder / "stat").read_text(errors="replace").rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = tail.split()  # from the third on: the state
    return _Stat(
        name=head.partition("(")[2],
        is_living=fields[0] not in "ZX",
        parent_pid=int(fields[1]),
        session_id=int(fields[3]),
        start_ticks=int(fields[19]),
    )


def _living_thread(folder: Path) -> Path | None:
    """A thread that has not ended, of a process whose first thread has.

    A process of many threads that is killed may be a zombie in its first thread while others still hold its files and
    ports. Its own environment and folder cannot be read then, but those of the threads can.
    """
    try:
        threads = list((folder / "task").iterdir())
    except OSError:  # the process does not exist any more
        return None
    return next((thread for thread in threads if (stat := _read_stat(thread)) is not None and stat.is_living), None)


def _read_environment(folder: Path) -> dict[str, str] | None:
    try:
        content = (folder / "environ").read_bytes()
    except PermissionError:  # another user's process
        return None
    except OSError:  # it has just ended, or is a thread of the kernel
        return {}
    pairs = (entry.partition("=") for entry in content.decode(errors="replace").split("\0"))
    return {name: value for name, separator, value in pairs if separator}


def _read_working_folder(folder: Path) -> str:
    try:
        return str((folder / "cwd").readlink())
    except OSError:  # another user's process, or one that has just ended
        return ""


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
