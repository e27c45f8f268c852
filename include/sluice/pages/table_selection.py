"""Which tables of the page of all tables are shown, and in which order, as the address says. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sluice.pages.page_words import ShownTone
from sluice.pages.table_lines import TableLine

_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_TONES = (ShownTone.BAD, ShownTone.ODD, ShownTone.GOOD, ShownTone.CALM)

_KEYS: Mapping[str, Callable[[TableLine], Any]] = {
    "quality": lambda line: (_TONES.index(line.tone), not line.all_rules),
    "table": lambda line: line.table,
    "fresh": lambda line: line.fresh_at or _LONG_AGO,
    "rows": lambda line: -1 if line.rows is None else line.rows,
    "files": lambda line: -1 if line.files is None else line.files,
    "debt": lambda line: -1 if line.debt is None else line.debt,
    "snapshots": lambda line: -1 if line.snapshots is None else line.snapshots,
    "maintained": lambda line: line.maintained_at or _LONG_AGO,
}
_OF_WORDS = frozenset({"quality", "table"})

KINDS: Mapping[str, Callable[[TableLine], bool]] = {
    "tables": lambda line: not line.is_quarantine,
    "failed": lambda line: not line.is_healthy,
    "quarantines": lambda line: line.is_quarantine,
    "all": lambda _: True,
}
"""Which tables can be shown; quarantines are a kind of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSelection:
    """What the address of the page asks for. Unknown words are read as the default.

    words: all must occur in the table's name, description, owner, tags, writers or result.
    """

    words: str = ""
    kind: str = "tables"
    sort: str = "table"
    descending: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str]) -> TableSelection:
        """Read the query of an address."""
        return cls(
            words=query.get("q", "")[:200],
            kind=query["show"] if query.get("show") in KINDS else "tables",
            sort=query["sort"] if query.get("sort") in _KEYS else "table",
            descending=query.get("desc") == "1",
        )

    def select(self, lines: Iterable[TableLine]) -> tuple[TableLine, ...]:
        """The lines to show, in their order; lines that are equal in it are ordered by name."""
        shown = sorted((line for line in lines if self._is_wanted(line)), key=lambda line: line.table)
        return tuple(sorted(shown, key=_KEYS[self.sort], reverse=self.descending))

    def direction(self, key: str) -> str:
        """Figures begin with the largest, words with the first; the same column again turns round."""
        if self.sort == key:
            return "0" if self.descending else "1"
        return "0" if key in _OF_WORDS else "1"

    def _is_wanted(self, line: TableLine) -> bool:
        if not KINDS[self.kind](line):
            return False
        text = " ".join((line.table, line.description, line.owner, *line.tags, *line.writers, line.quality_words))
        return all(word in text.lower() for word in self.words.lower().split())


def counts_of(lines: Iterable[TableLine]) -> Mapping[str, int]:
    """How many tables there are of each kind, whatever is selected."""
    known = tuple(lines)
    return {kind: sum(map(belongs, known)) for kind, belongs in KINDS.items()}
