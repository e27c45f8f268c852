"""Where something was written, as messages show it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sluice.messages.plain_text import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where something was written: a file and, where it is known, the 1-based line."""

    file: Path
    line: int | None = None

    def __str__(self) -> str:
        return one_line(str(self.file)) + (f":{self.line}" if self.line is not None else "")
