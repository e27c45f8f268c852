"""What flows where: every stream with its inputs and outputs, as nodes and edges, from the declarations. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.output_declaration import AnyOutput
from sluice.declarations.source_declarations import AnySource, KafkaSource


class NodeKind(StrEnum):
    """What a node stands for."""

    STREAM = "stream"
    TABLE = "table"
    OUTSIDE = "outside"
    """What is read or written and is no Iceberg table: a topic, files, a table of a database."""


class LineageNode(NamedTuple):
    """A stream, a table, or something outside: a tuple, since a drawing asks for hash and order tens of thousands of
    times.

    what: in the words of a reader: `stream`, `table`, `Kafka topic`.
    place: the connection that it lies in; empty where there is none.
    """

    kind: NodeKind
    name: str
    what: str = ""
    place: str = ""


_QUARANTINES = "quarantine."

Edge = tuple[LineageNode, LineageNode]
"""From what is read to what reads it."""

_WORDS: Mapping[str, str] = {
    "kafka": "Kafka topic",
    "kinesis": "Kinesis stream",
    "files": "files",
    "delta": "Delta table",
    "jdbc": "database table",
    "hudi": "Hudi table",
    "socket": "socket",
    "rate": "rate",
    "console": "console",
    "memory": "memory",
    "python": "Python function",
}


def stream_node(stream: str) -> LineageNode:
    """The node of a stream."""
    return LineageNode(NodeKind.STREAM, stream, "stream")


def table_node(table: str) -> LineageNode:
    """The node of an Iceberg table."""
    return LineageNode(NodeKind.TABLE, table, "table")


def unread_quarantines(edges: Collection[Edge]) -> frozenset[LineageNode]:
    """The quarantines that no stream reads: each hangs beside its stream, and would only widen a drawing."""
    read = {start for start, _ in edges}
    return frozenset(end for _, end in edges if _is_quarantine(end) and end not in read)


def quarantine_of(node: LineageNode) -> LineageNode | None:
    """The node that the quarantine of a stream has, if it has one; none for what is no stream."""
    return table_node(f"{_QUARANTINES}{node.name}") if node.kind is NodeKind.STREAM else None


def _is_quarantine(node: LineageNode) -> bool:
    return node.kind is NodeKind.TABLE and node.name.startswith(_QUARANTINES)


def edges_of(streams: Iterable[LoadedStream]) -> frozenset[Edge]:
    """From every input to its stream, and from every stream to its outputs and its quarantine."""
    edges: set[Edge] = set()
    for stream in streams:
        node = stream_node(stream.name)
        edges |= {(read, node) for read in _inputs(stream)} | {(node, written) for written in _outputs(stream)}
    return frozenset(edges)


def _inputs(stream: LoadedStream) -> Iterator[LineageNode]:
    for name, declared in stream.declaration.inputs.items():
        source = declared.declared_source
        yield from _nodes(source.kind, source.source, f"{stream.name}.{name}")


def _outputs(stream: LoadedStream) -> Iterator[LineageNode]:
    for name, declared in stream.declaration.outputs.items():
        yield from _nodes(declared.kind, declared.output, f"{stream.name}.{name}")
    if stream.declaration.quarantine:
        yield table_node(stream.declaration.quarantine_table)


def _nodes(kind: str, end: AnySource | AnyOutput, own_name: str) -> Iterator[LineageNode]:
    """The nodes of an input or output. own_name: of one that nothing else can name, as the rows of a `rate`."""
    if kind == "iceberg":
        yield table_node(str(getattr(end, "table", own_name)))
        return
    place = str(getattr(end, "connection", ""))
    for name in _names(end) or (own_name,):
        yield LineageNode(NodeKind.OUTSIDE, name, _WORDS.get(kind, kind), place)


def _names(end: AnySource | AnyOutput) -> tuple[str, ...]:
    """How a connection calls it; the same name in a source and in an output is the same thing."""
    if isinstance(end, KafkaSource):
        pattern = (f"/{end.topic_pattern}/",) if end.topic_pattern is not None else ()
        return (*(end.topics or ()), *(end.assignment or ()), *pattern)
    given = (getattr(end, key, None) for key in ("topic", "table", "stream"))
    path = getattr(end, "path", None)
    return (*(str(name) for name in given if name), *(() if path is None else (path or "/",)))
