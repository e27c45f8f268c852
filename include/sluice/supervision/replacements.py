"""Whether a declaration is changed back and forth. Pure.

Workers of Airflow whose files differ see a changed declaration in each other's runs: one replaces the run, the next one
replaces it back, without end. A person who edits a file does not return to the same one again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sluice.ledger.run_values import RunObservation

BECAUSE_CHANGED = "its declaration has changed"
"""Why a run was asked to end, as the ledger stores it."""

MOST_REPLACEMENTS = 3
"""Of runs within `WITHIN`, when the declaration returns to one that was replaced: an edit, its correction and a return
to the first are work of a person."""

WITHIN = timedelta(hours=1)


def is_back_and_forth(runs: Sequence[RunObservation], *, digest: str, reset_at: datetime | None, now: datetime) -> bool:
    """Whether another replacement would only continue to change a declaration back and forth.

    Parameters
    ----------
    runs: the newest of the stream.
    digest: of the declaration as it is read now.
    reset_at: when a person last asked something of the stream; what was replaced before does not count.
    """
    since = max(at for at in (now - WITHIN, reset_at) if at is not None)
    replaced = [
        run.declaration_digest
        for run in runs
        if run.end_asked_because == BECAUSE_CHANGED and run.end_asked_at is not None and run.end_asked_at > since
    ]
    return len(replaced) >= MOST_REPLACEMENTS and digest in replaced
