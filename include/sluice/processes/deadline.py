"""Waiting for something to become true, and running several steps at once, up to a deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self, TypeVar

Seen = TypeVar("Seen")

POLL_SECONDS = 0.1

Result = TypeVar("Result")

_POLL_SECONDS = 0.5


class NotDone(Exception):  # noqa: N818  # a result like the others, and no error of a step
    """A step was not begun, or had not ended, when the time was over."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock of this process.

    Parameters
    ----------
    at: the moment, as `time.monotonic` counts.
    """

    at: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        """The deadline so many seconds from now."""
        return cls(time.monotonic() + seconds)

    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.at


def wait_until(
    look: Callable[[], Seen],
    is_done: Callable[[Seen], bool],
    *,
    seconds: float,
    poll_seconds: float = POLL_SECONDS,
    pause: Callable[[float], object] = time.sleep,
) -> Seen:
    """Look repeatedly until what is seen is right or the deadline has passed.

    Parameters
    ----------
    look: looks once; should take a few seconds at most.
    is_done: judges what was seen.
    seconds: how long to look; at least one look is made.
    poll_seconds: the pause between two looks.
    pause: makes the pause; what it raises ends the waiting, so that a caller can cancel it.

    Returns
    -------
    What was seen last, right or not.
    """
    deadline = Deadline.after(seconds)
    while True:
        seen = look()
        if is_done(seen) or deadline.is_over():
            return seen
        pause(poll_seconds)


def run_each(
    steps: Mapping[str, Callable[[], Result]],
    *,
    at_once: int,
    deadline: Deadline,
    step_seconds: float | None = None,
) -> dict[str, Result | Exception]:
    """Run steps in threads, in their order, and wait for them until a deadline.

    The threads are daemons: one whose step hangs neither delays the result nor the end of the process.

    Parameters
    ----------
    at_once: how many run at a time.
    step_seconds: after which a step no longer counts among them, so that steps that hang do not take the time of the
        others; it is waited for all the same. Unset: a step counts until it has ended.

    Returns
    -------
    The result of each step, or the exception that it raised; `NotDone` for one that was not done in time.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    began: dict[str, float] = {}
    ended: queue.SimpleQueue[tuple[str, Result | Exception]] = queue.SimpleQueue()
    for name in steps:
        waiting.put(name)

    def work() -> None:
        while not deadline.is_over():
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            began[name] = time.monotonic()
            try:
                ended.put((name, steps[name]()))
            except Exception as error:  # noqa: BLE001  # the caller gets it as the step's result
                ended.put((name, error))

    def begin(threads: int) -> None:
        for _ in range(threads):
            threading.Thread(target=work, name="step", daemon=True).start()

    begin(min(at_once, len(steps)))
    done: dict[str, Result | Exception] = {}
    slow: set[str] = set()
    while len(done) < len(steps) and not (deadline.is_over() and ended.empty()):
        with suppress(queue.Empty):
            name, result = ended.get(timeout=_POLL_SECONDS)
            done[name] = result
        slower = _slower_than(step_seconds, began, done) - slow
        begin(len(slower) if not waiting.empty() else 0)
        slow |= slower
    late = NotDone("it was not done in the time of a pass")
    return {name: done.get(name, late) for name in steps}


def _slower_than(step_seconds: float | None, began: Mapping[str, float], done: Collection[str]) -> set[str]:
    """The steps that have not ended in so many seconds."""
    if step_seconds is None:
        return set()
    now = time.monotonic()
    return {name for name, at in tuple(began.items()) if name not in done and now - at > step_seconds}
