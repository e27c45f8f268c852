"""How far a stream is behind its source."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LagObservation:
    """The rows that lie in the sources of a stream and that no recorded batch has read.

    rows: unset when unknown; `problem` then says why. The rows of files that were not opened yet are unknown.
    files: the files that lie in its folders and that no planned batch has read; unset without such a source.
    undone: rows, files and shards with records that are known to be unread, also when another source did not answer;
        unset: nothing is.
    is_failure: whether a source that can be observed did not answer, or is not there.
    is_refused: whether a source itself answered that it is not there, or may not be read.
    """

    rows: int | None
    problem: str = ""
    files: int | None = None
    undone: int | None = field(default=None, compare=False)
    is_failure: bool = field(default=False, compare=False)
    is_refused: bool = field(default=False, compare=False)

    @property
    def text(self) -> str:
        """For a person: `1,234`, `3 files`, both, or `?`."""
        parts = [f"{self.rows:,}"] if self.rows is not None else []
        parts += [f"{self.files:,} file{'s' if self.files != 1 else ''}"] if self.files is not None else []
        return " + ".join(parts) if not self.problem and parts else "?"


LAG_UNKNOWN = LagObservation(rows=None, problem="it was not looked at")
"""The lag of a stream whose sources were not observed."""
