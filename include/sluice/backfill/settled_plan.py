"""Waits until an interval can be planned: some reasons against it are removed by the next batch of the stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from pyiceberg.table import Table

from sluice.backfill.backfill_plan import BackfillPlan
from sluice.errors import UnpublishableError
from sluice.processes.deadline import Deadline, wait_until

PATIENCE_SECONDS = 60.0
"""How long a run waits for the next batch of the stream. A batch takes seconds; a stream that has not delivered one by
then is stopped, or far behind, and the task is tried again later."""

_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOn:
    """A plan, and the target as it was loaded for it: its newest snapshot is the head of the plan."""

    plan: BackfillPlan
    target: Table


@contextmanager
def settled_plan(
    look: Callable[[], PlannedOn],
    *,
    turn: Callable[[], AbstractContextManager[object]] | None,
    patience_seconds: float = PATIENCE_SECONDS,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[PlannedOn]:
    """A plan that is not refused, in a turn that lasts as long as the block.

    The turn is never held while the next batch of the stream is waited for: the stream needs it to publish.

    Parameters
    ----------
    look: observes and plans once.
    turn: begins the turn of this run among those that merge into the target; unset when it needs none.
    pause: makes the pause between two looks.

    Raises
    ------
    UnpublishableError: when the plan is refused, with every reason.
    """
    deadline = Deadline.after(patience_seconds)
    while True:
        found = wait_until(look, _is_decided, seconds=patience_seconds, poll_seconds=_POLL_SECONDS, pause=pause)
        require_unrefused(found.plan)
        if turn is None:
            yield found
            return
        with turn():
            found = look()
            if _is_decided(found) or deadline.is_over():
                require_unrefused(found.plan)
                yield found
                return


def require_unrefused(plan: BackfillPlan) -> None:
    """Refuse a backfill whose plan has refusals.

    Raises
    ------
    UnpublishableError: with every reason; the next step is that of the first.
    """
    if plan.is_refused:
        seen, sentences = plan.seen, " ".join(refusal.sentence for refusal in plan.refusals)
        raise UnpublishableError(
            f"The interval {seen.interval.spoken} of {seen.output.stream} cannot be backfilled now. {sentences}",
            next_step=plan.refusals[0].next_step,
        )


def _is_decided(found: PlannedOn) -> bool:
    return not found.plan.is_refused_for_now
