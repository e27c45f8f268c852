"""The named steps of a backfill, at which tests kill the process or let another writer change the table."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class BackfillStep(StrEnum):
    """A step that is done, in the order of a run. Whatever ends the process there, the table holds the interval either
    as before or as after, and another run completes it.

    PLANNED: the head of the target and the positions of the sources are known. COMPUTED: the rows of the interval are.
    STAGED: they are in the staging table, with the rows of other intervals that lie in the same files. AUDITED: the
    numbers of rows add up. QUARANTINED: newly rejected rows are in the quarantine. CHECKED: no other writer has
    changed the interval; the commit is built and not sent. PUBLISHED: the new rows are visible. RECORDED: the ledger
    has the end.
    """

    PLANNED = "planned"
    COMPUTED = "computed"
    STAGED = "staged"
    AUDITED = "audited"
    QUARANTINED = "quarantined"
    CHECKED = "checked"
    PUBLISHED = "published"
    RECORDED = "recorded"


ReachedStep = Callable[[BackfillStep], None]
"""Called with each step when it is done; its exceptions are not caught."""


def unnoticed_step(step: BackfillStep) -> None:
    """Continue; production uses it at every step."""
