"""What was seen of a stream's progress: one look at its sources, beside what the ledger knew at that moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSample:
    """One look.

    observed_at: the database's time.
    generation: that of the run that reads; unset in looks of long ago.
    batch: the newest recorded batch of that generation; unset before its first.
    read_rows: what the batches of that generation have read together.
    unread_rows: what lies in the sources and no recorded batch has read, asked of the sources themselves; unset when
        it could not be told, and `problem` says why.
    """

    stream: str
    observed_at: datetime
    generation: int | None
    batch: int | None
    read_rows: int
    unread_rows: int | None
    problem: str = ""
