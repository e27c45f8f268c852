"""The lineage around one stream as a drawing: what leads to it, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sluice.declarations.loaded_declarations import LoadedStream

COLUMN_WIDTH, ROW_HEIGHT, BOX_WIDTH, BOX_HEIGHT = 206, 44, 168, 32

MOST_BOXES_IN_A_COLUMN = 12
"""Beyond it a column would be longer than a screen; the rest is counted."""


class NodeKind(StrEnum):
    """What a box stands for."""

    STREAM = "stream"
    TABLE = "table"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class LineageNode:
    """A stream, a table, or something outside that is read or written."""

    kind: NodeKind
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageBox:
    """A node with its place. x, y: of its upper left corner."""

    node: LineageNode
    x: int
    y: int
    is_self: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageGraph:
    """Boxes, the paths of the arrows between them, the size of the drawing, and how many boxes were left out."""

    boxes: tuple[LineageBox, ...]
    arrows: tuple[str, ...]
    width: int
    height: int
    left_out: int


Edge = tuple[LineageNode, LineageNode]


def edges_of(streams: Iterable[LoadedStream]) -> frozenset[Edge]:
    """From every input to its stream, and from every stream to its outputs and its quarantine."""
    edges: set[Edge] = set()
    for stream in streams:
        node = LineageNode(NodeKind.STREAM, stream.name)
        edges |= {(source, node) for source in _inputs(stream)} | {(node, output) for output in _outputs(stream)}
    return frozenset(edges)


def graph_around(stream: str, edges: frozenset[Edge]) -> LineageGraph:
    """Lay out everything that leads to a stream and everything that follows from it, in columns by distance."""
    here = LineageNode(NodeKind.STREAM, stream)
    columns = _distances(here, edges)
    first = min(columns.values())
    by_column: dict[int, list[LineageNode]] = {}
    for node, column in columns.items():
        by_column.setdefault(column - first, []).append(node)
    shown = {
        column: sorted(nodes, key=lambda node: (node != here, node.kind, node.name))[:MOST_BOXES_IN_A_COLUMN]
        for column, nodes in by_column.items()
    }
    tallest = max(len(nodes) for nodes in shown.values())
    boxes = {
        node: LineageBox(
            node=node,
            x=column * COLUMN_WIDTH,
            y=row * ROW_HEIGHT + (tallest - len(nodes)) * ROW_HEIGHT // 2 + 6,
            is_self=node == here,
        )
        for column, nodes in shown.items()
        for row, node in enumerate(sorted(nodes, key=lambda node: (node.kind, node.name)))
    }
    return LineageGraph(
        boxes=tuple(sorted(boxes.values(), key=lambda box: (box.x, box.y))),
        arrows=tuple(sorted(_arrow(boxes[a], boxes[b]) for a, b in edges if a in boxes and b in boxes)),
        width=max(shown) * COLUMN_WIDTH + BOX_WIDTH,
        height=tallest * ROW_HEIGHT + 6,
        left_out=len(columns) - len(boxes),
    )


def _distances(here: LineageNode, edges: frozenset[Edge]) -> Mapping[LineageNode, int]:
    """How many steps each related node lies before (negative) or after the stream; a circle is walked once."""
    found = {here: 0}
    for direction in (-1, 1):
        border = [here]
        while border:
            node = border.pop(0)
            for start, end in sorted(edges, key=lambda edge: (edge[0].name, edge[1].name)):
                near, far = (start, end) if direction > 0 else (end, start)
                if near == node and far not in found:
                    found[far] = found[node] + direction
                    border.append(far)
    return found


def _arrow(start: LineageBox, end: LineageBox) -> str:
    x1, y1 = start.x + BOX_WIDTH, start.y + BOX_HEIGHT // 2
    x2, y2 = end.x, end.y + BOX_HEIGHT // 2
    middle = (x1 + x2) // 2
    return f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2 - 3} {y2}"


def _inputs(stream: LoadedStream) -> Iterable[LineageNode]:
    for name, declared in stream.declaration.inputs.items():
        source = declared.declared_source
        if source.kind == "iceberg":
            yield LineageNode(NodeKind.TABLE, str(getattr(source.source, "table", name)))
        else:
            place = getattr(source.source, "topic", None) or getattr(source.source, "path", None) or name
            yield LineageNode(NodeKind.SOURCE, f"{source.kind}: {place}")


def _outputs(stream: LoadedStream) -> Iterable[LineageNode]:
    for name, output in stream.declaration.outputs.items():
        if output.kind == "iceberg":
            yield LineageNode(NodeKind.TABLE, str(getattr(output.output, "table", name)))
        else:
            yield LineageNode(NodeKind.SOURCE, f"{output.kind}: {getattr(output.output, 'topic', None) or name}")
    if stream.declaration.quarantine:
        yield LineageNode(NodeKind.TABLE, stream.declaration.quarantine_table)
