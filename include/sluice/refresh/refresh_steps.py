"""The named steps of a refresh at which tests end the process."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class RefreshStep(StrEnum):
    """A step, in the order in which a refresh, or the way back, reaches it.

    BEGUN: the ledger has the refresh. BUILT: an increment of the shadow has ended; the live stream continues.
    STOPPED: the stream is stopped and fenced off. CAUGHT_UP: the shadow has read what the stream had read.
    SWAPPING, TAKING_BACK: the ledger expects the commit. COMMITTED: readers see the new content. RECORDED: the ledger
        has the new generation. CLEARED: the shadow is gone.
    COPIED: the files of the old content were copied; nothing refers to the copies.
    """

    BEGUN = "begun"
    BUILT = "built"
    STOPPED = "stopped"
    CAUGHT_UP = "caught_up"
    SWAPPING = "swapping"
    COMMITTED = "committed"
    RECORDED = "recorded"
    CLEARED = "cleared"
    COPIED = "copied"
    TAKING_BACK = "taking_back"


ReachedStep = Callable[[RefreshStep], None]
"""Called with each step when it is reached. It may raise or kill the process; its exceptions are not caught."""


def unnoticed_step(step: RefreshStep) -> None:
    """Continue; production uses it at every step."""
