"""Runs several steps at once in threads, up to a deadline; a step that hangs is left behind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from sluice.processes.deadline import Deadline

Result = TypeVar("Result")

_POLL_SECONDS = 0.5


class NotDone(Exception):  # noqa: N818  # a result like the others, and no error of a step
    """A step was not begun, or had not ended, when the time was over."""


def run_each(
    steps: Mapping[str, Callable[[], Result]], *, at_once: int, deadline: Deadline
) -> dict[str, Result | Exception]:
    """Run steps in threads, in their order, and wait for them until a deadline.

    The threads are daemons: one whose step hangs neither delays the result nor the end of the process.

    Parameters
    ----------
    at_once: how many run at a time.

    Returns
    -------
    The result of each step, or the exception that it raised; `NotDone` for one that was not done in time.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    ended: queue.SimpleQueue[tuple[str, Result | Exception]] = queue.SimpleQueue()
    for name in steps:
        waiting.put(name)

    def work() -> None:
        while not deadline.is_over():
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                ended.put((name, steps[name]()))
            except Exception as error:  # noqa: BLE001  # the caller gets it as the step's result
                ended.put((name, error))

    for number in range(min(at_once, len(steps))):
        threading.Thread(target=work, name=f"step-{number}", daemon=True).start()
    done: dict[str, Result | Exception] = {}
    while len(done) < len(steps) and not (deadline.is_over() and ended.empty()):
        try:
            name, result = ended.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            continue
        done[name] = result
    late = NotDone("it was not done in the time of a pass")
    return {name: done.get(name, late) for name in steps}
