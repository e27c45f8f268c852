"""Figures, times and marks as a person reads them on a page, in words and as small charts in SVG. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sluice.messages import in_words
from sluice.tables.table_observation import FILE_SIZE_EDGES

NOTHING = "\N{EN DASH}"
"""Stands where there is no figure."""

_RUN_ID = re.compile(r"\b([0-9a-f]{8})(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b")

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

WIDTH, HEIGHT = 300.0, 84.0
"""Of the drawing of a chart, in its own units: it is stretched to the width of its card."""

COLOURS = ("a", "b", "c", "d", "e")
"""The classes of the colours of a chart, in the order of its lines."""

BAR_HEIGHT = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """One line of a chart: the path of its stroke, the path of the area below it, and the class of its colour."""

    stroke: str
    area: str
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart.

    figure: its newest value, in words. summary: what it shows, for those who do not see it.
    top: the value at the upper edge, in words. stacks: areas on top of each other, each with its colour.
    limit_y: where the declared limit lies; unset without one.
    legend: the words of each colour.
    """

    title: str
    figure: str
    summary: str
    top: str
    lines: tuple[ChartLine, ...] = ()
    stacks: tuple[tuple[str, str], ...] = ()
    limit_y: float | None = None
    legend: tuple[tuple[str, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(line.stroke for line in self.lines) and not any(path for path, _ in self.stacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBar:
    """The files between two sizes. height: of the bar, of at most `BAR_HEIGHT`; a file is always seen."""

    words: str
    files: int
    height: float


class ShownTone(StrEnum):
    """How a state is marked: by a symbol, a word and a colour, of which each alone is enough."""

    GOOD = "good"
    CALM = "calm"
    ODD = "odd"
    BAD = "bad"


def count_text(count: float | None) -> str:
    """A count: `81,204`; from a million on `2.1 M`."""
    if count is None:
        return NOTHING
    if abs(count) >= 1_000_000_000:
        return f"{count / 1_000_000_000:.1f} G"
    if abs(count) >= 1_000_000:
        return f"{count / 1_000_000:.1f} M"
    return f"{count:,.0f}"


def size_text(size_bytes: float | None) -> str:
    """A size: `812 B`, `12.3 MiB`."""
    if size_bytes is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} TiB"


def rate_text(per_second: float) -> str:
    """A rate in rows a second: `0`, `0.4`, `412`, `18.2k`."""
    if per_second == 0:
        return "0"
    if per_second < 10:
        return f"{per_second:.1f}"
    if per_second < 10_000:
        return f"{per_second:,.0f}"
    return f"{per_second / 1000:,.1f}k"


def short_name(name: str, most: int) -> str:
    """A name of at most so many characters. The middle is left out: names that begin alike differ at their end."""
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end]}…{name[-end:]}"


def without_long_ids(text: str) -> str:
    """The text with the ids of runs cut to the eight characters by which every list names them."""
    return _RUN_ID.sub(r"\1", text)


def duration_text(duration: timedelta | None) -> str:
    """A duration in its two largest units, as everywhere; a dash where there is none."""
    return NOTHING if duration is None else in_words(duration)


def age_words(age: timedelta | None) -> str:
    """How long ago: `just now`, `38 min ago`, `5 h ago`."""
    if age is None:
        return NOTHING
    seconds = age.total_seconds()
    if seconds < 2:
        return "just now"
    size, unit = next((size, unit) for size, unit in _UNITS if seconds >= size)
    return f"{seconds // size:.0f} {unit} ago"


def moment_text(moment: datetime | None) -> str:
    """The exact time: `2026-11-22 14:01:58 UTC`."""
    return NOTHING if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


class DoneWord(StrEnum):
    """What was done, in the address to which a browser is sent after it."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"
    RESET_BREAKER = "reset-breaker"
    REPAIR = "repair"
    RESET = "reset"
    REWIND = "rewind"
    BACKFILL = "backfill"
    MAINTAIN = "maintain"
    REJECT_BATCH = "reject-batch"
    RELEASE_BATCH = "release-batch"
    SEPARATE_BATCH = "separate-batch"
    UNPAUSE = "unpause"


_IN_LEDGER = "{} is in the ledger; what follows appears below by itself."
_IN_CONTROL = "Airflow has queued the {} in the DAG stream_control; its result appears below."

DONE_SENTENCES: Mapping[DoneWord, str] = {
    DoneWord.START: _IN_LEDGER.format("Start"),
    DoneWord.STOP: _IN_LEDGER.format("Stop"),
    DoneWord.RESTART: _IN_LEDGER.format("Restart"),
    DoneWord.RESET_BREAKER: _IN_LEDGER.format("Reset-breaker"),
    DoneWord.REPAIR: "What disagreed of its position is written back; the stream stays as it is until it is started.",
    DoneWord.RESET: "A new generation is open; the stream stays stopped until it is started.",
    DoneWord.REWIND: "The stream and its tables stand at the batch; it stays stopped until it is started.",
    DoneWord.BACKFILL: "Airflow has queued the runs of the backfill.",
    DoneWord.MAINTAIN: "Airflow has queued the maintenance run; its result appears below.",
    DoneWord.UNPAUSE: "The DAG is unpaused: its next run follows its schedule.",
    DoneWord.REJECT_BATCH: _IN_CONTROL.format("rejection"),
    DoneWord.RELEASE_BATCH: _IN_CONTROL.format("release"),
    DoneWord.SEPARATE_BATCH: _IN_CONTROL.format("release without the failing rows"),
}
"""What is said of each."""


def coloured_lines(series: Sequence[Sequence[float | None]], top: float) -> tuple[ChartLine, ...]:
    """The lines of a chart, each in its colour."""
    drawn = (line_path(values, width=WIDTH, height=HEIGHT, top=top) for values in series)
    return tuple(
        ChartLine(stroke=stroke, area=area, colour=colour)
        for (stroke, area), colour in zip(drawn, COLOURS, strict=False)
    )


def line_path(values: Sequence[float | None], *, width: float, height: float, top: float) -> tuple[str, str]:
    """The paths of a line and of the area below it; an unknown value leaves a gap.

    Parameters
    ----------
    values: at even distances, oldest first.
    top: the value at the upper edge; the lower edge is zero.
    """
    strokes, areas = [], []
    for segment in _segments(values):
        points = [(_x(index, len(values), width), _y(value, height, top)) for index, value in segment]
        drawn = "L".join(f"{_short(x)} {_short(y)}" for x, y in points)
        if len(points) == 1:  # one known value: a stroke as wide as its place
            drawn += f"h{_short(max(width / max(len(values), 1), 1.0))}"
        strokes.append(f"M{drawn}")
        areas.append(f"M{drawn}V{_short(height)}H{_short(points[0][0])}Z")
    return "".join(strokes), "".join(areas)


def stacked_paths(
    parts: Sequence[Sequence[float | None]], *, width: float, height: float, top: float
) -> tuple[str, ...]:
    """The areas of several series on top of each other, the first at the bottom; unknown counts as nothing."""
    length = len(parts[0]) if parts else 0
    below = [0.0] * length
    paths = []
    for part in parts:
        above = [base + (value or 0.0) for base, value in zip(below, part, strict=True)]
        forth = "L".join(
            f"{_short(_x(i, length, width))} {_short(_y(value, height, top))}" for i, value in enumerate(above)
        )
        back = "L".join(
            f"{_short(_x(i, length, width))} {_short(_y(below[i], height, top))}" for i in reversed(range(length))
        )
        paths.append(f"M{forth}L{back}Z" if length else "")
        below = above
    return tuple(paths)


def top_of(*series: Iterable[float | None]) -> float:
    """The largest value of some series, at least a little above zero, so that it can be divided by."""
    return max((value for values in series for value in values if value is not None), default=0.0) or 1.0


def most_of(values: Iterable[float | None]) -> float | None:
    """The largest known value; unset when none is known."""
    return max((value for value in values if value is not None), default=None)


def newest_of(values: Sequence[float | None]) -> float | None:
    """The newest known value; unset when none is known."""
    return next((value for value in reversed(values) if value is not None), None)


def _segments(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    segments: list[list[tuple[int, float]]] = [[]]
    for index, value in enumerate(values):
        if value is not None:
            segments[-1].append((index, value))
        elif segments[-1]:
            segments.append([])
    return [segment for segment in segments if segment]


def _x(index: int, length: int, width: float) -> float:
    return width * index / max(length - 1, 1)


def _y(value: float, height: float, top: float) -> float:
    return height - (height - 2) * min(max(value, 0.0) / top, 1.0)


def _short(number: float) -> str:
    return f"{number:.1f}".rstrip("0").rstrip(".")


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
