"""Which lines of a page are shown, and in which order: search, filter and sorting, as the address says. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Generic, Self, TypeVar

from sluice.pages.page_figures import ShownTone
from sluice.pages.stream_lines import StreamLine
from sluice.pages.table_lines import TableLine

_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_TONES = (ShownTone.BAD, ShownTone.ODD, ShownTone.CALM, ShownTone.GOOD)
_TONES_OF_TABLES = (ShownTone.BAD, ShownTone.ODD, ShownTone.GOOD, ShownTone.CALM)

Line = TypeVar("Line")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(ABC, Generic[Line]):
    """What the address of a page asks for. Unknown words are read as the default.

    words: all must occur in what is searched of a line.
    kind: which lines are shown, one of `kinds`.
    sort: what they are sorted by, one of `keys`; `of_words` are those of them that are no figures.
    """

    words: str = ""
    kind: str = "all"
    sort: str = ""
    descending: bool = False
    kinds: ClassVar[Mapping[str, Callable[[Any], bool]]]
    keys: ClassVar[Mapping[str, Callable[[Any], Any]]]
    of_words: ClassVar[frozenset[str]]

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Read the query of an address."""
        default = cls()
        return cls(
            words=query.get("q", "")[:200],
            kind=query["show"] if query.get("show") in cls.kinds else default.kind,
            sort=query["sort"] if query.get("sort") in cls.keys else default.sort,
            descending=query.get("desc") == "1",
        )

    def select(self, lines: Iterable[Line]) -> tuple[Line, ...]:
        """The lines to show, in their order; lines that are equal in it are ordered by name."""
        shown = sorted(filter(self._is_wanted, lines), key=self.name_of)
        return tuple(sorted(shown, key=self.keys[self.sort], reverse=self.descending))

    def direction(self, key: str) -> str:
        """Figures begin with the largest, words with the first; the same column again turns round."""
        if self.sort == key:
            return "0" if self.descending else "1"
        return "0" if key in self.of_words else "1"

    def _is_wanted(self, line: Line) -> bool:
        text = " ".join(self.searched(line)).lower()
        return self.kinds[self.kind](line) and all(word in text for word in self.words.lower().split())

    @staticmethod
    @abstractmethod
    def name_of(line: Line) -> str:
        """The name of the stream or table."""

    @staticmethod
    @abstractmethod
    def searched(line: Line) -> Iterable[str]:
        """The texts of a line in which words are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSelection(Selection[StreamLine]):
    """Which streams are shown: all, the unhealthy ones, those that run, those that run again at their time or with new
    rows, or those that are not to run."""

    sort: str = "state"
    kinds: ClassVar[Mapping[str, Callable[[StreamLine], bool]]] = {
        "all": lambda _: True,
        "unhealthy": lambda line: not line.is_healthy,
        "running": lambda line: line.is_healthy and line.tone is ShownTone.GOOD,
        "waiting": lambda line: line.is_waiting,
        "stopped": lambda line: line.is_healthy and line.tone is ShownTone.CALM and not line.is_waiting,
    }
    keys: ClassVar[Mapping[str, Callable[[StreamLine], Any]]] = {
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
    of_words: ClassVar[frozenset[str]] = frozenset({"state", "stream", "owner"})

    @staticmethod
    def name_of(line: StreamLine) -> str:
        """The name of the stream."""
        return line.stream

    @staticmethod
    def searched(line: StreamLine) -> Iterable[str]:
        """Its name, owner, tags, state, mode and explanation."""
        return line.stream, line.owner, *line.tags, line.state, line.mode, line.explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSelection(Selection[TableLine]):
    """Which tables are shown; quarantines are a kind of their own."""

    kind: str = "tables"
    sort: str = "table"
    kinds: ClassVar[Mapping[str, Callable[[TableLine], bool]]] = {
        "tables": lambda line: not line.is_quarantine,
        "failed": lambda line: not line.is_healthy,
        "quarantines": lambda line: line.is_quarantine,
        "all": lambda _: True,
    }
    keys: ClassVar[Mapping[str, Callable[[TableLine], Any]]] = {
        "quality": lambda line: (_TONES_OF_TABLES.index(line.tone), not line.all_rules),
        "table": lambda line: line.table,
        "fresh": lambda line: line.fresh_at or _LONG_AGO,
        "rows": lambda line: -1 if line.rows is None else line.rows,
        "files": lambda line: -1 if line.files is None else line.files,
        "debt": lambda line: -1 if line.debt is None else line.debt,
        "snapshots": lambda line: -1 if line.snapshots is None else line.snapshots,
        "maintained": lambda line: line.maintained_at or _LONG_AGO,
    }
    of_words: ClassVar[frozenset[str]] = frozenset({"quality", "table"})

    @staticmethod
    def name_of(line: TableLine) -> str:
        """The name of the table."""
        return line.table

    @staticmethod
    def searched(line: TableLine) -> Iterable[str]:
        """Its name, description, owner, tags, writers and result."""
        return line.table, line.description, line.owner, *line.tags, *line.writers, line.quality_words


def counts_of(lines: Iterable[TableLine]) -> Mapping[str, int]:
    """How many tables there are of each kind, whatever is selected."""
    known = tuple(lines)
    return {kind: sum(map(belongs, known)) for kind, belongs in TableSelection.kinds.items()}


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
