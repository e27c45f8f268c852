"""Small charts as SVG paths: figures to coordinates, drawn by a template. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """One line of a chart: the path of its stroke, the path of the area below it, and the class of its colour."""

    stroke: str
    area: str
    colour: str


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
