"""The lineage as a drawing, around one stream or over all that a person may see: its boxes, arrows and their places.
Pure.

The way of Sugiyama: layers by the longest path, a bend wherever an edge passes a layer, then sweeps in which every node
moves towards the mean of its neighbours. A circle is cut at one node, so the layout of any graph ends.
Source: K. Sugiyama et al., Methods for Visual Understanding of Hierarchical System Structures, 1981
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

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

LONGEST_BENT_EDGE = 8
"""An edge over more layers is drawn straight: its bends would cost more than they clear up."""

_SWEEPS = 6
"""How often every layer is arranged; with twelve, a drawing of 410 nodes had no fewer crossings."""


@dataclass(frozen=True, slots=True)
class _Bend:
    """Where an edge passes a layer. order: its edge's number, so that bends sort."""

    order: int
    layer: int


_Spot = LineageNode | _Bend
Point = tuple[int, float]
"""A layer, and the row in it: 0 is the uppermost, 1 is free of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """places: the layer and row of each node. ways: the points of each edge, from its start to its end.

    layers, rows: the extent.
    """

    places: Mapping[LineageNode, Point]
    ways: Mapping[Edge, tuple[Point, ...]]
    layers: int
    rows: float


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


def lay_out(nodes: Collection[LineageNode], edges: Collection[Edge]) -> Layout:
    """Give every node a layer and a row. Nodes that are not connected lie one below the other.

    Parameters
    ----------
    edges: those that begin or end outside of `nodes` are left out.
    """
    among = set(nodes)
    inner = sorted((start, end) for start, end in edges if start in among and end in among)
    places: dict[LineageNode, Point] = {}
    ways: dict[Edge, tuple[Point, ...]] = {}
    top, layers = 0.0, 0
    for part in _connected_parts(nodes, inner):
        members = set(part)
        drawn = _lay_out_part(part, [edge for edge in inner if edge[0] in members])
        places |= {node: (layer, top + row) for node, (layer, row) in drawn.places.items()}
        ways |= {edge: tuple((layer, top + row) for layer, row in way) for edge, way in drawn.ways.items()}
        top, layers = top + drawn.rows, max(layers, drawn.layers)
    return Layout(places=places, ways=ways, layers=layers, rows=top)


def layers_of(nodes: Collection[LineageNode], edges: Collection[Edge]) -> Mapping[LineageNode, int]:
    """The layer of each node: behind all that leads to it, as far as there is no circle."""
    before = _neighbours(nodes, ((end, start) for start, end in edges))
    after = _neighbours(nodes, edges)
    waits_for = {node: len(before[node]) for node in nodes}
    layers: dict[LineageNode, int] = {}
    while waits_for:
        # In a circle every node waits: the one that waits for the least is placed as if it did not.
        least = min(waits_for.values())
        ready = sorted(node for node, count in waits_for.items() if count == least)
        for node in ready if least == 0 else ready[:1]:
            del waits_for[node]
            layers[node] = max((layers[one] + 1 for one in before[node] if one in layers), default=0)
            for follower in after[node]:
                if follower in waits_for:
                    waits_for[follower] -= 1
    beginnings = (node for node in nodes if not before[node] and after[node])
    return layers | {node: max(0, min(layers[follower] for follower in after[node]) - 1) for node in beginnings}


def _lay_out_part(nodes: Sequence[LineageNode], edges: Sequence[Edge]) -> Layout:
    layers = layers_of(nodes, edges)
    first = min(layers.values())
    ways = {edge: _spots_of(edge, number, layers) for number, edge in enumerate(edges)}
    columns: list[list[_Spot]] = [[] for _ in range(max(layers.values()) - first + 1)]
    for node in sorted(nodes):
        columns[layers[node] - first].append(node)
    for way in ways.values():
        for spot in way[1:-1]:
            if isinstance(spot, _Bend):
                columns[spot.layer - first].append(spot)
    rows = _rows_of(columns, [pair for way in ways.values() for pair in pairwise(way)])
    points = {spot: (layer, rows[spot]) for layer, column in enumerate(columns) for spot in column}
    return Layout(
        places={node: points[node] for node in nodes},
        ways={edge: tuple(points[spot] for spot in way) for edge, way in ways.items()},
        layers=len(columns),
        rows=max(rows.values()) + 1,
    )


def _spots_of(edge: Edge, number: int, layers: Mapping[LineageNode, int]) -> tuple[_Spot, ...]:
    """The ends of an edge with its bends between them. One that leads back, as in a circle, has none."""
    start, end = edge
    between = range(layers[start] + 1, layers[end])
    return (start, *(_Bend(number, layer) for layer in between if len(between) < LONGEST_BENT_EDGE), end)


def _rows_of(columns: Sequence[list[_Spot]], pairs: Sequence[tuple[_Spot, _Spot]]) -> dict[_Spot, float]:
    """Sweep to the right and back; every spot moves towards the mean of its neighbours on the side left behind."""
    rows: dict[_Spot, float] = {spot: float(row) for column in columns for row, spot in enumerate(column)}
    before: dict[_Spot, list[_Spot]] = {spot: [] for spot in rows}
    after: dict[_Spot, list[_Spot]] = {spot: [] for spot in rows}
    for start, end in pairs:
        after[start].append(end)
        before[end].append(start)
    for sweep in range(_SWEEPS):
        near, order = (before, columns) if sweep % 2 == 0 else (after, columns[::-1])
        for column in order:
            aims = [_mean([rows[one] for one in near[spot]], default=rows[spot]) for spot in column]
            arranged = sorted(zip(aims, range(len(column)), strict=True))
            column[:] = [column[index] for _, index in arranged]
            rows |= zip(column, _spread([aim for aim, _ in arranged]), strict=True)
    top = min(rows.values())
    return {spot: round(row - top, 2) for spot, row in rows.items()}


def _spread(aims: Sequence[float]) -> list[float]:
    """Rows at least one apart, in this order, and together as near to their aims as they can be.

    Neighbours that are too close become one block, which lies at the mean of what its members aim at (pool adjacent
    violators).
    """
    blocks: list[tuple[float, int]] = []
    for index, aim in enumerate(aims):
        mean, count = aim - index, 1
        while blocks and blocks[-1][0] >= mean:
            other, others = blocks.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        blocks.append((mean, count))
    starts = [mean for mean, count in blocks for _ in range(count)]
    return [start + index for index, start in enumerate(starts)]


def _mean(values: Sequence[float], *, default: float) -> float:
    return sum(values) / len(values) if values else default


def _connected_parts(nodes: Collection[LineageNode], edges: Sequence[Edge]) -> list[list[LineageNode]]:
    """The nodes by what they are connected with, the largest part first."""
    near = _neighbours(nodes, (*edges, *((end, start) for start, end in edges)))
    parts: list[list[LineageNode]] = []
    seen: set[LineageNode] = set()
    for node in sorted(nodes):
        if node in seen:
            continue
        part = [node]
        seen.add(node)
        for member in part:  # it grows while it is walked through
            found = [one for one in near[member] if one not in seen]
            seen.update(found)
            part.extend(found)
        parts.append(part)
    return sorted(parts, key=lambda part: (-len(part), min(part)))


def _neighbours(nodes: Collection[LineageNode], edges: Iterable[Edge]) -> dict[LineageNode, list[LineageNode]]:
    found: dict[LineageNode, list[LineageNode]] = {node: [] for node in nodes}
    for start, end in edges:
        found[start].append(end)
    return found
