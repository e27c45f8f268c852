"""Which lines of a page are shown, and in which order: search, filter and sorting, as the address says. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sluice.pages.page_words import ShownTone
from sluice.pages.stream_lines import StreamLine

_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_TONES = (ShownTone.BAD, ShownTone.ODD, ShownTone.CALM, ShownTone.GOOD)

_KEYS: Mapping[str, Callable[[StreamLine], Any]] = {
    "state": lambda line: (_TONES.index(line.tone), str(line.state)),
    "stream": lambda line: line.stream,
    "lag": lambda line: -1 if line.lag_rows is None else line.lag_rows,
    "behind": lambda line: line.behind or timedelta(-1),
    "rate": lambda line: line.read_per_second,
    "batch": lambda line: line.batch_duration or timedelta(-1),
    "published": lambda line: line.published_at or _LONG_AGO,
    "watermark": lambda line: line.watermark or _LONG_AGO,
    "failed": lambda line: line.failed_runs,
    "owner": lambda line: line.owner,
}

SORT_KEYS = frozenset(_KEYS)
"""What the lines can be sorted by."""

HEALTHS = ("all", "unhealthy", "running", "waiting", "stopped")
"""Which lines can be shown: all, those of unhealthy streams, those that run, those that run again at their time or with
new rows, and those that are not to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSelection:
    """What the address of the page asks for. Unknown words are read as the default.

    words: all must occur in the stream's name, owner, tags, state or explanation.
    """

    words: str = ""
    health: str = "all"
    sort: str = "state"
    descending: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str]) -> LineSelection:
        """Read the query of an address."""
        return cls(
            words=query.get("q", "")[:200],
            health=query["show"] if query.get("show") in HEALTHS else "all",
            sort=query["sort"] if query.get("sort") in SORT_KEYS else "state",
            descending=query.get("desc") == "1",
        )

    def select(self, lines: Iterable[StreamLine]) -> tuple[StreamLine, ...]:
        """The lines to show, in their order; lines that are equal in it are ordered by name."""
        shown = sorted((line for line in lines if self._is_wanted(line)), key=lambda line: line.stream)
        return tuple(sorted(shown, key=_KEYS[self.sort], reverse=self.descending))

    def _is_wanted(self, line: StreamLine) -> bool:
        if not _IS_SHOWN[self.health](line):
            return False
        text = " ".join((line.stream, line.owner, *line.tags, line.state, line.mode, line.explanation)).lower()
        return all(word in text for word in self.words.lower().split())


_IS_SHOWN: Mapping[str, Callable[[StreamLine], bool]] = {
    "all": lambda _: True,
    "unhealthy": lambda line: not line.is_healthy,
    "running": lambda line: line.is_healthy and line.tone is ShownTone.GOOD,
    "waiting": lambda line: line.is_waiting,
    "stopped": lambda line: line.is_healthy and line.tone is ShownTone.CALM and not line.is_waiting,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCounts:
    """How many streams there are of each kind, whatever is selected."""

    bad: int
    odd: int
    running: int
    waiting: int
    stopped: int

    @classmethod
    def of(cls, lines: Iterable[StreamLine]) -> LineCounts:
        """Count the lines by their tone, and the calm ones by whether they wait."""
        known = tuple(lines)
        tones = [line.tone for line in known]
        bad, odd, calm, good = (tones.count(tone) for tone in _TONES)
        waiting = sum(line.is_waiting for line in known)
        return cls(bad=bad, odd=odd, running=good, waiting=waiting, stopped=calm - waiting)

    @property
    def total(self) -> int:
        """All streams."""
        return self.bad + self.odd + self.running + self.waiting + self.stopped
