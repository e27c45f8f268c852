"""A sample of a stream's progress: what its batches have read, and what lies unread in its sources."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSample:
    """One sample.

    observed_at: the database's time.
    generation: that of the run that reads.
    batch: the newest recorded batch of that generation; unset before its first.
    read_rows: what the batches of that generation have read together.
    unread_rows: what lies in the sources and no recorded batch has read, asked of the sources themselves; unset when
        it is unknown, and `problem` says why.
    undone: rows and files that were known to be unread; unset: nothing was known.
    is_failure: whether a source that can be observed did not answer, or is not there.
    is_refused: whether a source itself answered that it is not there, or may not be read.
    """

    stream: str
    observed_at: datetime
    generation: int
    batch: int | None
    read_rows: int
    unread_rows: int | None
    problem: str = ""
    undone: int | None = None
    is_failure: bool = False
    is_refused: bool = False

    @property
    def known_undone(self) -> int | None:
        """Rows and files that are known to be unread; unset when nothing is known."""
        return self.unread_rows if self.undone is None else self.undone
