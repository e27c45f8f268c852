"""Waiting for something to become true, up to a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeVar

Seen = TypeVar("Seen")

POLL_SECONDS = 0.1


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
