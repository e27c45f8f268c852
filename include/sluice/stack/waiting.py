"""Waiting for something to become true, never longer than a bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.1


def wait_until(look: Callable[[], T], is_done: Callable[[T], bool], *, seconds: float) -> T:
    """Look again and again until what is seen is right, or the time is over.

    Parameters
    ----------
    look: looks once; should not take longer than a few seconds.
    is_done: judges what was seen.
    seconds: the bound.

    Returns
    -------
    What was seen last, right or not.
    """
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if is_done(seen) or time.monotonic() > deadline:
            return seen
        time.sleep(_POLL_SECONDS)
