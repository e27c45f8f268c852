"""Ending processes: ask the first of each tree, then all of it, then kill what is left, until nothing is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sluice.errors import StackError
from sluice.stack.service_processes import ProcessIdentity, SeenProcess, observe_process

_POLL_SECONDS = 0.05

TREE_SECONDS = 4.0
"""How long the rest of a tree may take to end once its first process has been given up."""

_LONGEST_SECONDS = 60.0
"""Nobody refuses SIGKILL; only a process that hangs in the kernel is still there after this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """How a tree of processes is asked to end.

    Parameters
    ----------
    signal: what its first process is sent.
    patience_seconds: how long the first process may take; then it is killed and the others are sent SIGTERM.
    """

    signal: signal.Signals = signal.SIGTERM
    patience_seconds: float


def decide_signal(rule: StopRule, *, is_root: bool, waited_seconds: float) -> signal.Signals | None:
    """What a process has to be sent by now, or None when it is left to the first process of its tree.

    Parameters
    ----------
    rule: how its tree is asked to end.
    is_root: whether it is the first process of a tree: none of those that are to end is its parent.
    waited_seconds: since it was seen first.
    """
    if is_root:
        return signal.SIGKILL if waited_seconds > rule.patience_seconds else rule.signal
    if waited_seconds > rule.patience_seconds + TREE_SECONDS:
        return signal.SIGKILL
    return signal.SIGTERM if waited_seconds > rule.patience_seconds else None


def end_processes(
    find: Callable[[], Collection[SeenProcess]], *, rules: Mapping[int, StopRule], otherwise: StopRule
) -> int:
    """End everything that `find` finds, and what those processes start meanwhile.

    Parameters
    ----------
    find: looks for the processes to end; asked again and again.
    rules: by process id, how its tree is asked to end.
    otherwise: the rule of every other process.

    Returns
    -------
    How many processes were ended.

    Raises
    ------
    StackError: when processes are left that cannot be ended.
    """
    begun = time.monotonic()
    first_seen: dict[ProcessIdentity, float] = {}
    sent: dict[ProcessIdentity, signal.Signals] = {}
    while found := find():
        now = time.monotonic()
        if now - begun > _LONGEST_SECONDS:
            left = ", ".join(f"{process.name} (pid {process.pid})" for process in found)
            raise StackError(
                f"These processes do not end even when killed: {left}.", next_step="Look at them with `ps`."
            )
        pids = {process.pid for process in found}
        for process in found:
            number = decide_signal(
                rules.get(process.pid, otherwise),
                is_root=process.parent_pid not in pids,
                waited_seconds=now - first_seen.setdefault(process.identity, now),
            )
            if number is not None and sent.get(process.identity) is not number:
                sent[process.identity] = number
                _send(process, number)
        time.sleep(_POLL_SECONDS)
    return len(first_seen)


def _send(process: SeenProcess, number: signal.Signals) -> None:
    now = observe_process(process.pid)
    if now is None or now.identity != process.identity:
        return
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:  # it ended in the last microseconds
        return
    except PermissionError as error:
        raise StackError(
            f"{process.name} (pid {process.pid}) belongs to the stack, but to another user who alone can end it.",
            next_step="Run the command as that user.",
        ) from error
