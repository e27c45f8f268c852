"""Processes: start them detached, recognise them again, find all that belong to a stack.

Linux only: `/proc` tells the start time in clock ticks since boot, which no change of the clock moves.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from sluice.errors import StackError
from sluice.stack.environment import STACK_MARK, START_MARK

_LONGEST_LOG_BYTES = 16 * 1024**2
"""A log that has grown beyond this is set aside once when its service starts again."""

_children: dict[int, subprocess.Popen[bytes]] = {}
"""What this very process has started: only a parent can collect the exit of its child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process for ever: a process id is given to another process later, the pair is not."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenProcess:
    """What `/proc` told about a living process. Text that could not be read (another user's process) is empty."""

    pid: int
    parent_pid: int
    session_id: int
    start_ticks: int
    name: str
    working_folder: str
    stack: str
    start: str

    @property
    def identity(self) -> ProcessIdentity:
        """The process for ever."""
        return ProcessIdentity(pid=self.pid, start_ticks=self.start_ticks)


def observe_processes() -> dict[int, SeenProcess]:
    """Every living process of the machine by its id; one that has ended and waits for its parent is not living."""
    for child in list(_children.values()):
        child.poll()  # collects its exit, which it keeps for `exit_code`
    return {process.pid: process for process in _observe_all()}


def _observe_all() -> Iterator[SeenProcess]:
    for pid in psutil.pids():
        seen = observe_process(pid)
        if seen is not None:
            yield seen


def observe_process(pid: int) -> SeenProcess | None:
    """One process, or None when it is not living."""
    folder = Path("/proc") / str(pid)
    stat = _stat(folder)
    if stat is None:
        return None
    # A killed process of many threads may be a zombie in its first thread while others still hold its files and ports.
    thread = folder if stat.is_living else next((t for t in _threads(folder) if (s := _stat(t)) and s.is_living), None)
    if thread is None:
        return None
    environ = _read(thread / "environ")
    return SeenProcess(
        pid=pid,
        parent_pid=int(stat.fields[1]),
        session_id=int(stat.fields[3]),
        start_ticks=int(stat.fields[19]),
        name=stat.name,
        working_folder=_read_link(thread / "cwd"),
        stack=_variable(environ, STACK_MARK),
        start=_variable(environ, START_MARK),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    """What `/proc/…/stat` holds: the name, and the fields from the third on (the state). Source: proc_pid_stat(5)."""

    name: str
    fields: list[str]

    @property
    def is_living(self) -> bool:
        """Whether it has not ended: Z waits for its parent, X is going."""
        return self.fields[0] not in "ZX"


def _stat(folder: Path) -> _Stat | None:
    try:
        head, _, tail = (folder / "stat").read_text(errors="replace").rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return _Stat(name=head.partition("(")[2], fields=tail.split())


def _threads(folder: Path) -> list[Path]:
    try:
        return list((folder / "task").iterdir())
    except OSError:  # it has just ended
        return []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # another user's process, or one that has just ended: it tells nothing
        return b""


def _read_link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:  # as above
        return ""


def _variable(environ: bytes, name: str) -> str:
    prefix = name.encode() + b"="
    for entry in environ.split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode(errors="replace")
    return ""


def start_process(
    argv: Sequence[str], *, environment: Mapping[str, str], working_folder: Path, log: Path
) -> ProcessIdentity:
    """Start a process in a session of its own, so that the terminal's Ctrl-C and hang-up do not reach it.

    Parameters
    ----------
    argv: the command line.
    environment: its whole environment.
    working_folder: where it runs.
    log: the file that its output is appended to.

    Raises
    ------
    StackError: when the program cannot be executed.
    """
    if log.exists() and log.stat().st_size > _LONGEST_LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    try:
        with log.open("ab") as output:
            child = subprocess.Popen(  # noqa: S603  # the command lines are this package's own
                argv,
                env=dict(environment),
                cwd=working_folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise StackError(f"{argv[0]} cannot be executed: {error}.") from error
    _children[child.pid] = child
    seen = observe_process(child.pid)
    return ProcessIdentity(pid=child.pid, start_ticks=seen.start_ticks if seen else 0)


def exit_code(pid: int) -> int | None:
    """The exit code of a process that this very process has started; None while it runs or when it is not ours."""
    child = _children.get(pid)
    return child.poll() if child else None


def with_descendants(roots: Collection[SeenProcess], everything: Mapping[int, SeenProcess]) -> dict[int, SeenProcess]:
    """The processes and everything that they have started and that still hangs on them, by id."""
    found = {process.pid: process for process in roots}
    grew = True
    while grew:
        children = {p.pid: p for p in everything.values() if p.parent_pid in found and p.pid not in found}
        found.update(children)
        grew = bool(children)
    return found


def own_lineage(everything: Mapping[int, SeenProcess]) -> set[int]:
    """This process and its ancestors: whoever asks to end a stack is no part of it, whatever its environment says."""
    lineage: set[int] = set()
    pid = os.getpid()
    while pid and pid not in lineage:
        lineage.add(pid)
        pid = everything[pid].parent_pid if pid in everything else 0
    return lineage
