"""Places for the nodes of a graph: layers from left to right, and few crossings within them. Pure.

The way of Sugiyama: layers by the longest path, a bend wherever an edge passes a layer, then sweeps in which every node
moves towards the mean of its neighbours. A circle is cut at one node, so the layout of any graph ends.
Source: K. Sugiyama et al., Methods for Visual Understanding of Hierarchical System Structures, 1981
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sluice.pages.lineage_edges import Edge, LineageNode

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
