"""The named points at which tests kill the process: in the delivery of a batch, a backfill, a refresh, a removal of
leftovers, and a work item.

After a crash between any two of them recovery must complete the work. Production code reports every point that it
reaches to a `Reached`, which does nothing unless a test passes another one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class CrashPoint(StrEnum):
    """A point, in the order in which it is passed.

    In the delivery of a batch. After AUDITED, a batch of an appending output continues on its own thread while Spark
    works on the next batch.
    BATCH_BEGUN: Spark has handed the batch over; nothing of it is written.
    FIRST_OUTPUT_STAGED: one of several outputs is staged, the others are not.
    STAGED: every output of the batch is staged: from then on the batch is never lost.
    HELD: the ledger has the batch as one that waits for a person.
    AUDITED: the rules have passed the batch.
    CHECKED: the mark on the target was read and admits the batch; the commit is built and not sent.
    MERGED: Spark's MERGE has made the rows visible; the mark has not moved yet. Mode merge only.
    FIRST_OUTPUT_PUBLISHED: one of several outputs is visible, the others are not.
    PUBLISHED: every output is visible.
    RECORDED: the ledger knows the batch.
    LET_GO: of a held batch: what a person decided is carried out, and the ledger has it as held no more.
    CLEARED: the staging tables no longer hold it.

    In a backfill: PLANNED, COMPUTED, STAGED, AUDITED, QUARANTINED, CHECKED, PUBLISHED, RECORDED. Whatever ends the
    process there, the table holds the interval either as before or as after, and another run completes it.
    PLANNED: the head of the target and the positions of the sources are known.
    COMPUTED: the rows of the interval are known.
    STAGED: they are in the staging table, with the rows of other intervals that lie in the same files.
    AUDITED: the numbers of rows add up.
    QUARANTINED: newly rejected rows are in the quarantine.

    In a refresh: BEGUN, PLANNED, BUILT, STOPPED, CAUGHT_UP, SWAPPING, FIRST_OUTPUT_PUBLISHED, COMMITTED, RECORDED,
    CLEARED; on the way back: COPIED, STOPPED, TAKING_BACK, FIRST_OUTPUT_PUBLISHED, COMMITTED, RECORDED.
    BEGUN: the ledger has the refresh.
    PLANNED: the next batch of the shadow is planned in its checkpoint.
    BUILT: an increment of the shadow has ended; the live stream continues.
    STOPPED: the stream is stopped and fenced off.
    CAUGHT_UP: the shadow has read what the stream had read.
    SWAPPING, TAKING_BACK: the ledger expects the commit.
    COMMITTED: readers see the new content.
    COPIED: the files of the old content were copied; nothing refers to the copies.

    In a repair: BEGUN, RECORDED, then FILE_CHANGED for each file of the checkpoint. Whatever ends the process there, no
    run starts from what is half written, and another repair completes it.
    BEGUN: the event is in the ledger. RECORDED: the ledger has the generation that it had forgotten.
    FILE_CHANGED: a file was removed or written.

    In the adoption of a table: BEGUN, then COMMITTED for each commit.

    In a rewind: BEGUN, CLEARED for each output once what is staged beyond it is gone, COMMITTED for each commit on a
    target, RECORDED once the ledger has forgotten the batches, FILE_CHANGED for each file of the checkpoint.

    In a replay of batches for their state, for each of them: PLANNED, COMMITTED, FILE_CHANGED.
    COMMITTED: Spark has committed it; its state was not compared. FILE_CHANGED: it is not left to be run again.

    In an erasure: BEGUN, COMPUTED, CHECKED, PUBLISHED, then CHECKED for each other commit, COMMITTED, RECORDED, CLEARED
    for each file. Whatever ends the process there, the same command completes it.
    BEGUN: the event is in the ledger. COMPUTED: the files without the rows are written. PUBLISHED: the newest snapshot
    has them. COMMITTED: the history has its cut. RECORDED: the catalog has forgotten what was before. CLEARED: a file
    is deleted.

    In a removal of leftovers, for each file: BEGUN, COPIED, CLEARED.
    BEGUN: the list of the files is in the trash.
    COPIED: a file is where it lay and in the trash.
    CLEARED: one of the two is deleted.

    Of a work item in an application; the points of what it asks for lie between ITEM_CLAIMED and ITEM_DONE.
    ITEM_CHOSEN: the application claims the item; the ledger does not have the claim yet.
    ITEM_CLAIMED: the ledger has it, and nothing has begun.
    ITEM_DONE: what the item changes is visible, or it has failed; the ledger does not have its end.
    ITEM_RECORDED: it has.
    """

    BATCH_BEGUN = "batch_begun"
    FIRST_OUTPUT_STAGED = "first_output_staged"
    STAGED = "staged"
    HELD = "held"
    AUDITED = "audited"
    CHECKED = "checked"
    MERGED = "merged"
    FIRST_OUTPUT_PUBLISHED = "first_output_published"
    PUBLISHED = "published"
    RECORDED = "recorded"
    LET_GO = "let_go"
    CLEARED = "cleared"
    PLANNED = "planned"
    COMPUTED = "computed"
    QUARANTINED = "quarantined"
    BEGUN = "begun"
    BUILT = "built"
    STOPPED = "stopped"
    CAUGHT_UP = "caught_up"
    SWAPPING = "swapping"
    TAKING_BACK = "taking_back"
    COMMITTED = "committed"
    COPIED = "copied"
    FILE_CHANGED = "file_changed"
    ITEM_CHOSEN = "item_chosen"
    ITEM_CLAIMED = "item_claimed"
    ITEM_DONE = "item_done"
    ITEM_RECORDED = "item_recorded"


Reached = Callable[[CrashPoint], None]
"""Called with each point when it is reached. It may raise or kill the process; its exceptions are not caught."""


def unnoticed(point: CrashPoint, item: object = None) -> None:
    """Continue; production uses it at every point. item: the work item that has reached it, in an application."""
