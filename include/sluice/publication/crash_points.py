"""The named places on the way of a batch where a process may die, and the port by which tests make it die there.

A crash between any two of them must leave a table that recovery makes right; the tests kill a process at each. The
production code reports every place it reaches to a `Reached`, which does nothing unless a test brought another one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class CrashPoint(StrEnum):
    """A place on the way of a batch, in the order in which a batch passes them. From AUDITED on, what is only appended
    goes its way on a thread of its own, while Spark works on the next batch.

    BATCH_BEGUN: Spark has handed the batch over; nothing of it is written.
    FIRST_OUTPUT_STAGED: one of several outputs is staged, the others are not.
    STAGED: every output of the batch is staged: from here on the batch is never lost.
    AUDITED: the rules have let it pass.
    CHECKED: the mark on the target was read and admits the batch; the commit is built and not sent.
    MERGED: Spark's MERGE has made the rows visible; the mark does not say so yet. Mode merge only.
    FIRST_OUTPUT_PUBLISHED: one of several outputs is visible, the others are not.
    PUBLISHED: every output is visible.
    RECORDED: the ledger knows the batch.
    CLEARED: the staging tables no longer hold it.
    """

    BATCH_BEGUN = "batch_begun"
    FIRST_OUTPUT_STAGED = "first_output_staged"
    STAGED = "staged"
    AUDITED = "audited"
    CHECKED = "checked"
    MERGED = "merged"
    FIRST_OUTPUT_PUBLISHED = "first_output_published"
    PUBLISHED = "published"
    RECORDED = "recorded"
    CLEARED = "cleared"


Reached = Callable[[CrashPoint], None]
"""Is told each place as it is reached. It may raise or kill the process; whatever it raises is passed on."""


def unnoticed(point: CrashPoint) -> None:
    """Go on: what production does at every place."""
