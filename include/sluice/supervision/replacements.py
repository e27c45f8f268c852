"""When hosts with different files replace each other's runs of a stream, and have to stop doing so. Pure.

A host whose file differs from that of the live run replaces the run. Which file the next run has is up to the host that
starts it:

| newest runs, oldest first; * replaced | what follows where the file is A                   | where it is B           |
|---------------------------------------|----------------------------------------------------|-------------------------|
| A* B                                  | replaces: somebody went back to A                  | fits                    |
| A* A                                  | fits: an edit that was taken back, or a late start | replaces: it is edited  |
| A* B* A* B                            | files differ                                       | once A has recorded it  |
| A* B* B                               | files differ: B wins every start                   | once A has recorded it  |
| A* A* A                               | files differ: replaced twice for nothing           | files differ            |

A run is replaced for nothing when the next one has the same declaration. Once says nothing: a person takes an edit
back, and a file reaches one host later than another. Three changes of a declaration within `REPLACED_WITHIN` are
followed, as an edit, its correction and a return to the first; another one is not when it returns to a declaration that
was replaced. A new declaration is followed.

The host whose file the live run has cannot always see by the runs that another one wants to replace it; it sees it by
the trouble that the other one has recorded. So every host judges the stream alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from sluice.ledger.run_values import RunObservation

BECAUSE_CHANGED = "its declaration has changed"
"""Why a run was asked to end, as the ledger stores it."""

REPLACED_WITHIN = timedelta(hours=1)

MOST_RETURNS = 3
"""Changes of the declaration, after which another one that returns to a replaced declaration is not followed."""

MOST_FOR_NOTHING = 1
"""Runs that were replaced by one of the same declaration: one is an edit that was taken back, or a late file."""


def is_back_and_forth(
    runs: Sequence[RunObservation],
    *,
    digest: str,
    reset_at: datetime | None,
    now: datetime,
    is_known: bool = False,
) -> bool:
    """Whether hosts with different files have replaced each other's runs, so that another replacement would not help.

    Parameters
    ----------
    runs: of the stream, newest first; the newest one is live.
    digest: of the declaration as it is read now.
    reset_at: when a person last asked something of the stream; what was replaced before does not count.
    is_known: whether a host has recorded that already.
    """
    since = max(at for at in (now - REPLACED_WITHIN, reset_at) if at is not None)
    replaced = [run for run in runs if _is_replaced(run, since)]
    followed = [(run, after) for after, run in pairwise(runs) if _is_replaced(run, since)]
    for_nothing = sum(run.declaration_digest == after.declaration_digest for run, after in followed)
    if for_nothing > MOST_FOR_NOTHING:
        return True
    if len(replaced) + for_nothing < MOST_RETURNS:
        return False
    fits = runs[0].declaration_digest == digest
    return is_known if fits else any(run.declaration_digest == digest for run in replaced)


def _is_replaced(run: RunObservation, since: datetime) -> bool:
    return run.end_asked_because == BECAUSE_CHANGED and run.end_asked_at is not None and run.end_asked_at > since
