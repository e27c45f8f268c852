"""The named points in the delivery of a batch at which tests kill the process.

After a crash between any two of them recovery must complete the delivery. Production code reports every point that it
reaches to a `Reached`, which does nothing unless a test passes another one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class CrashPoint(StrEnum):
    """A point in the delivery of a batch, in the order in which a batch passes them. After AUDITED, a batch of an
    appending output continues on its own thread while Spark works on the next batch.

    BATCH_BEGUN: Spark has handed the batch over; nothing of it is written.
    FIRST_OUTPUT_STAGED: one of several outputs is staged, the others are not.
    STAGED: every output of the batch is staged: from then on the batch is never lost.
    AUDITED: the rules have passed the batch.
    CHECKED: the mark on the target was read and admits the batch; the commit is built and not sent.
    MERGED: Spark's MERGE has made the rows visible; the mark has not moved yet. Mode merge only.
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
"""Called with each point when it is reached. It may raise or kill the process; its exceptions are not caught."""


def unnoticed(point: CrashPoint) -> None:
    """Continue; production uses it at every point."""
