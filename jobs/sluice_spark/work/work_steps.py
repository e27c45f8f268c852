"""The named steps of a work item in an application, at which tests end the process."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from sluice.ledger.work_values import WorkItem


class WorkStep(StrEnum):
    """A step, in the order in which an item reaches it; the steps of what it asks for lie between CLAIMED and DONE.

    CHOSEN: the application claims the item; the ledger does not have the claim yet. CLAIMED: the ledger has it, and
    nothing has begun. DONE: what the item changes is visible, or it has failed; the ledger does not have its end.
    RECORDED: it has.
    """

    CHOSEN = "chosen"
    CLAIMED = "claimed"
    DONE = "done"
    RECORDED = "recorded"


ReachedStep = Callable[[StrEnum, WorkItem], object]
"""Called with each step of an item, also with those of a backfill or a refresh. It may raise or kill the process; its
exceptions are not caught."""


def unnoticed_step(step: StrEnum, item: WorkItem) -> None:
    """Continue; production uses it at every step."""
