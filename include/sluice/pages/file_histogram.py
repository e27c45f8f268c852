"""The files of a table by size, as bars. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.pages.page_words import size_text
from sluice.tables.table_observation import FILE_SIZE_EDGES

BAR_HEIGHT = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBar:
    """The files between two sizes. height: of the bar, of at most `BAR_HEIGHT`; a file is always seen."""

    words: str
    files: int
    height: float


def bars_of(counts: Sequence[int]) -> tuple[SizeBar, ...]:
    """The bars of a table's files, the smallest first; none when their number does not fit the edges."""
    if len(counts) != len(FILE_SIZE_EDGES) + 1:
        return ()
    edges = [size_text(edge).replace(".0 ", " ") for edge in FILE_SIZE_EDGES]
    words = [f"< {edge}" for edge in edges] + [f"≥ {edges[-1]}"]
    most = max(counts) or 1
    return tuple(
        SizeBar(words=word, files=files, height=max(BAR_HEIGHT * files / most, 2.0) if files else 0.0)
        for word, files in zip(words, counts, strict=True)
    )


def bars_path(bars: Sequence[SizeBar]) -> str:
    """All bars as one path, 84 wide and 22 high: for a list of hundreds of tables."""
    heights = [f"{bar.height * 22 / BAR_HEIGHT:.1f}".removesuffix(".0") for bar in bars]
    drawn = (f"M{12 * place + 1} 22v-{height}h10v{height}z" for place, height in enumerate(heights) if height != "0")
    return "".join(drawn)
