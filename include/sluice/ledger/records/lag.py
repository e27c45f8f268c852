"""How far a stream is behind its source."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LagObservation:
    """The rows that lie in the sources of a stream and that no recorded batch has read.

    rows: unset when it cannot be told; `problem` then says why. Files that were not opened yet tell no rows.
    files: the files that lie in its folders and that no planned batch has read; unset without such a source.
    """

    rows: int | None
    problem: str = ""
    files: int | None = None

    @property
    def text(self) -> str:
        """For a person: `1,234`, `3 files`, both, or `?`."""
        parts = [f"{self.rows:,}"] if self.rows is not None else []
        parts += [f"{self.files:,} file{'s' if self.files != 1 else ''}"] if self.files is not None else []
        return " + ".join(parts) if not self.problem and parts else "?"


UNTOLD = LagObservation(rows=None, problem="it was not looked at")
"""The lag of a stream whose sources nobody looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStep:
    """One snapshot in the history of a table, as far as a reader of its appended rows is concerned.

    appended_rows, appended_files: what it appended; both zero for a snapshot that only rewrote or removed.
    changed_rows: the rows that it added or removed in another way, which such a reader does not get.
    committed_at_ms: since 1970.
    """

    snapshot_id: int
    appended_rows: int = 0
    appended_files: int = 0
    changed_rows: int = 0
    committed_at_ms: int = 0

    def is_before(self, instant: datetime) -> bool:
        """Whether it was committed earlier."""
        return self.committed_at_ms < instant.timestamp() * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBounds:
    """What a partition of a topic holds: the offset of its first record, and the one that its next will get."""

    first: int
    end: int
