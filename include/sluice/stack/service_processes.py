"""The processes of a stack: start one detached, and end some of them with all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import StackError
from sluice.processes.deadline import Deadline
from sluice.processes.living_processes import LivingProcess, find_process

_LONGEST_LOG_BYTES = 16 * 1024**2
"""A log that has grown beyond this is renamed once when its service starts again."""

_POLL_SECONDS = 0.05

_PRIVATE_FILES = 0o077
"""Whatever a service or a driver that it starts creates, only its user can read: logs, shuffles, sockets in /tmp."""

TREE_SECONDS = 4.0
"""How long the rest of a tree may take to end once its first process has been given up."""

_LONGEST_SECONDS = 60.0
"""No process can refuse SIGKILL; only one that hangs in the kernel is still there after this time."""

_children: dict[int, subprocess.Popen[bytes]] = {}
"""The children of this very process: only a parent can collect the exit code of its child."""


def start_process(argv: Sequence[str], *, environment: Mapping[str, str], working_folder: Path, log: Path) -> int:
    """Start a process in a session of its own, so that the terminal's Ctrl-C and hang-up do not reach it.

    Parameters
    ----------
    argv: the command line.
    environment: its whole environment.
    working_folder: where it runs.
    log: the file that its output is appended to.

    Returns
    -------
    Its process id.

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
                umask=_PRIVATE_FILES,
            )
    except OSError as error:
        raise StackError(f"{argv[0]} cannot be executed: {error}.") from error
    _children[child.pid] = child
    return child.pid


def exit_code(pid: int) -> int | None:
    """The exit code of a child of this very process; None while it runs, and for any other process."""
    child = _children.get(pid)
    return child.poll() if child else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """How a tree of processes is ended.

    Parameters
    ----------
    signal: the signal that its first process is sent.
    patience_seconds: how long the first process may take to end. Then it is killed, and the others are sent SIGTERM.
    """

    signal: signal.Signals = signal.SIGTERM
    patience_seconds: float


def decide_signal(rule: StopRule, *, is_root: bool, waited_seconds: float) -> signal.Signals | None:
    """The signal that a process must have been sent by now.

    Parameters
    ----------
    rule: how its tree is ended.
    is_root: whether it is the first process of a tree: none of the processes to end is its parent.
    waited_seconds: since it was seen first.

    Returns
    -------
    None when the process is left to the first process of its tree.
    """
    if is_root:
        return signal.SIGKILL if waited_seconds > rule.patience_seconds else rule.signal
    if waited_seconds > rule.patience_seconds + TREE_SECONDS:
        return signal.SIGKILL
    return signal.SIGTERM if waited_seconds > rule.patience_seconds else None


def end_processes(
    find: Callable[[], Collection[LivingProcess]], *, rules: Mapping[int, StopRule], otherwise: StopRule
) -> int:
    """End the processes that `find` returns, and those that they start meanwhile, until it returns none.

    In each tree the first process is asked first, then all of it, then what is left is killed.

    Parameters
    ----------
    find: looks for the processes to end; called repeatedly.
    rules: by process id, how the tree of that process is ended.
    otherwise: the rule of every other process.

    Returns
    -------
    How many processes were ended.

    Raises
    ------
    StackError: when processes are left that cannot be ended.
    """
    deadline = Deadline.after(_LONGEST_SECONDS)
    first_seen: dict[tuple[int, int], float] = {}
    sent: dict[tuple[int, int], signal.Signals] = {}
    while found := find():
        if deadline.is_over():
            left = ", ".join(f"{process.name} (pid {process.pid})" for process in found)
            raise StackError(
                f"These processes do not end even when killed: {left}.", next_step="Look at them with `ps`."
            )
        now = time.monotonic()
        pids = {process.pid for process in found}
        for process in found:
            number = decide_signal(
                rules.get(process.pid, otherwise),
                is_root=process.parent_pid not in pids,
                waited_seconds=now - first_seen.setdefault(process.key, now),
            )
            if number is not None and sent.get(process.key) is not number:
                sent[process.key] = number
                _send(process, number)
        time.sleep(_POLL_SECONDS)
    return len(first_seen)


def _send(process: LivingProcess, number: signal.Signals) -> None:
    now = find_process(process.pid)
    if now is None or now.key != process.key:
        return
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:  # it ended in the last microseconds
        return
    except PermissionError as error:
        raise StackError(
            f"{process.name} (pid {process.pid}) belongs to the stack, but only the user who owns it can end it.",
            next_step="Run the command as that user.",
        ) from error
