"""The lineage as a drawing: around one stream, or over all streams and tables that a person may see. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.pages.layered_layout import Layout, Point, lay_out
from sluice.pages.lineage_edges import Edge, LineageNode, quarantine_of, stream_node, unread_quarantines

COLUMN_WIDTH, ROW_HEIGHT, BOX_WIDTH, BOX_HEIGHT = 208, 42, 168, 32
_TOP = 4
"""Pixels above the uppermost box, for its outline."""

MOST_BOXES = 500
"""Two hundred streams with a table each and their sources; a drawing of more is not read but searched."""

MOST_ARROWS = 1000
"""Each costs about 60 bytes of the page, whose limit is 300 KB."""

MOST_BOXES_AROUND = 150
"""On the page of a stream, whose other parts need room as well; the rest is counted, the nearest are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageBox:
    """A node with its place. x, y: of its upper left corner. is_near: whether it belongs to what is chosen.

    quarantine: the quarantine of a stream that is folded into its box; empty without one.
    """

    node: LineageNode
    x: int
    y: int
    is_chosen: bool
    is_near: bool
    quarantine: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageArrow:
    """The path of an edge. is_near: whether it belongs to what is chosen."""

    path: str
    is_near: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageGraph:
    """Boxes and arrows, the size of the drawing, and how many boxes and arrows between drawn boxes were left out.

    is_parted: whether some of it is highlighted and the rest stands back.
    """

    boxes: tuple[LineageBox, ...]
    arrows: tuple[LineageArrow, ...]
    width: int
    height: int
    left_out: int
    arrows_left_out: int
    is_parted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Relatives:
    """What leads to some nodes and what follows from them, the nearest first."""

    upstream: tuple[LineageNode, ...]
    downstream: tuple[LineageNode, ...]


def relatives_of(chosen: Collection[LineageNode], edges: Collection[Edge]) -> Relatives:
    """Walk the edges from some nodes in both directions; a circle is walked once."""
    return Relatives(
        upstream=_reached(chosen, ((end, start) for start, end in edges)), downstream=_reached(chosen, edges)
    )


def graph_around(stream: str, edges: Collection[Edge]) -> LineageGraph:
    """Draw everything that leads to a stream and everything that follows from it."""
    here = stream_node(stream)
    related = relatives_of([here], edges)
    folded = unread_quarantines(edges)
    nearest = [
        node for node in dict.fromkeys((here, *_in_turn(related.upstream, related.downstream))) if node not in folded
    ]
    return draw(nearest, edges, chosen=[here], near=None, most=MOST_BOXES_AROUND)


def draw(
    nodes: Collection[LineageNode],
    edges: Collection[Edge],
    *,
    chosen: Collection[LineageNode] = (),
    near: Collection[LineageNode] | None = None,
    most: int = MOST_BOXES,
) -> LineageGraph:
    """Draw some nodes and the edges between them.

    Parameters
    ----------
    nodes: the first `most` of them are drawn. A quarantine that is not among them, and that no stream reads, is a mark
        on the box of its stream.
    chosen: have a strong outline.
    near: what is highlighted with them; unset: nothing stands back.
    """
    shown = list(nodes)[:most]
    layout = lay_out(shown, edges)
    folded = unread_quarantines(edges) - set(shown)
    highlighted = set(shown) if near is None else {*near, *chosen}
    boxes = (
        _box(
            node,
            point,
            is_chosen=node in chosen,
            is_near=node in highlighted,
            quarantine=next((one.name for one in folded & {quarantine_of(node)} if one), ""),
        )
        for node, point in sorted(layout.places.items(), key=lambda item: (item[1], item[0]))
    )
    return LineageGraph(
        boxes=tuple(boxes),
        arrows=tuple(_arrows(layout, highlighted)),
        width=max(layout.layers - 1, 0) * COLUMN_WIDTH + BOX_WIDTH,
        height=round(layout.rows * ROW_HEIGHT) + _TOP,
        left_out=len(nodes) - len(shown),
        arrows_left_out=max(len(layout.ways) - MOST_ARROWS, 0),
        is_parted=near is not None,
    )


def _reached(chosen: Collection[LineageNode], edges: Iterable[Edge]) -> tuple[LineageNode, ...]:
    after: dict[LineageNode, list[LineageNode]] = {}
    for start, end in sorted(edges):
        after.setdefault(start, []).append(end)
    found = dict.fromkeys(chosen)
    border = list(chosen)
    for node in border:  # it grows while it is walked through
        fresh = [one for one in after.get(node, ()) if one not in found]
        found |= dict.fromkeys(fresh)
        border.extend(fresh)
    return tuple(border[len(chosen) :])


def _in_turn(one: Iterable[LineageNode], other: Iterable[LineageNode]) -> Iterator[LineageNode]:
    """The first of each, then the second of each, until both are at their end."""
    first, second = list(one), list(other)
    for index in range(max(len(first), len(second))):
        yield from (*first[index : index + 1], *second[index : index + 1])


def _box(node: LineageNode, point: Point, **marks: Any) -> LineageBox:
    layer, row = point
    return LineageBox(node=node, x=layer * COLUMN_WIDTH, y=_TOP + round(row * ROW_HEIGHT), **marks)


def _arrows(layout: Layout, highlighted: Collection[LineageNode]) -> Iterator[LineageArrow]:
    """The arrows, those of what is highlighted first: the others are the first to be left out."""
    near: Mapping[Edge, bool] = {
        (start, end): start in highlighted and end in highlighted for start, end in layout.ways
    }
    for edge in sorted(layout.ways, key=lambda edge: (not near[edge], edge))[:MOST_ARROWS]:
        yield LineageArrow(path=_path(layout.ways[edge]), is_near=near[edge])


def _path(way: tuple[Point, ...]) -> str:
    """A curve from the right side of the first box, between the boxes that it passes, to the left side of the last."""
    first, *bends, last = (
        (layer * COLUMN_WIDTH, _TOP + round(row * ROW_HEIGHT) + BOX_HEIGHT // 2) for layer, row in way
    )
    x, y = first[0] + BOX_WIDTH, first[1]
    drawn = [f"M{x} {y}"]
    for x2, y2 in bends:
        drawn.append(f"{_curve(x, y, x2, y2)}h{BOX_WIDTH}")
        x, y = x2 + BOX_WIDTH, y2
    return "".join((*drawn, _curve(x, y, last[0] - 3, last[1])))


def _curve(x: int, y: int, x2: int, y2: int) -> str:
    middle = (x + x2) // 2
    return f"C{middle} {y} {middle} {y2} {x2} {y2}"
