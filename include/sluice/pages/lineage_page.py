"""The page of the whole lineage: what a person chose of it, and how much of it is drawn. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from sluice.declarations.loaded_declarations import Declarations, all_tables
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.pages.lineage_edges import (
    Edge,
    LineageNode,
    NodeKind,
    edges_of,
    stream_node,
    table_node,
    unread_quarantines,
)
from sluice.pages.lineage_graph import LineageGraph, Relatives, draw, relatives_of

MOST_NAMED = 60
"""Of what is upstream and downstream of the chosen node so many are named in words; the rest is counted."""

_MOST_TAGS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageSelection:
    """What the address of the page asks for.

    words: all must occur in a node's name, kind, connection, owner or tags.
    tag: a tag of the stream or table; empty: any.
    chosen: the name of a stream, table or source whose neighbourhood is highlighted; empty: none.
    is_alone: whether only that neighbourhood is drawn.
    """

    words: str = ""
    tag: str = ""
    chosen: str = ""
    is_alone: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str]) -> LineageSelection:
        """Read the query of an address."""
        return cls(
            words=query.get("q", "")[:200].strip(),
            tag=query.get("tag", "")[:200],
            chosen=query.get("of", "")[:300].strip(),
            is_alone=query.get("only") == "1",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLineage:
    """Everything that a person may see of the lineage.

    owners, tags: of the streams, and of the tables whose pages they may see.
    """

    nodes: frozenset[LineageNode]
    edges: frozenset[Edge]
    owners: Mapping[LineageNode, str]
    tags: Mapping[LineageNode, tuple[str, ...]]

    @property
    def all_tags(self) -> tuple[str, ...]:
        """The tags to choose from."""
        return tuple(sorted({tag for tags in self.tags.values() for tag in tags})[:_MOST_TAGS])

    @property
    def names(self) -> tuple[str, ...]:
        """The names to choose from."""
        return tuple(sorted({node.name for node in self.nodes}))


@dataclass(frozen=True, slots=True, kw_only=True)
class LineagePage:
    """What the page shows.

    matches: how many nodes fit the words and the tag; their neighbours are drawn with them.
    related: of what is chosen; unset when nothing is, or no node has the name.
    """

    graph: LineageGraph
    matches: int
    total: int
    related: Relatives | None


def known_lineage(
    declarations: Declarations, *, readable_streams: Collection[str], readable_tables: Collection[str]
) -> KnownLineage:
    """Take the lineage from the declarations.

    Parameters
    ----------
    readable_streams: the streams that a person may see; of the others nothing is known here.
    readable_tables: the tables whose pages they may see; they are drawn also when no visible stream touches them.
    """
    streams = {name: one for name, one in declarations.streams.items() if name in readable_streams}
    edges = edges_of(streams.values())
    tables = {name: one for name, one in all_tables(declarations).items() if name in readable_tables}
    described: dict[LineageNode, StreamDeclaration | TableDeclaration] = {
        **{stream_node(name): one.declaration for name, one in streams.items()},
        **{table_node(name): one for name, one in tables.items()},
    }
    return KnownLineage(
        nodes=frozenset((*described, *(node for edge in edges for node in edge))),
        edges=edges,
        owners={node: one.owner for node, one in described.items()},
        tags={node: one.tags for node, one in described.items()},
    )


def lineage_page(known: KnownLineage, selection: LineageSelection, *, urgent: Collection[str] = ()) -> LineagePage:
    """Choose what is drawn.

    Parameters
    ----------
    urgent: streams that are drawn first where not all can be.
    """
    chosen = sorted(node for node in known.nodes if node.name == selection.chosen)
    related = relatives_of(chosen, known.edges) if chosen else None
    near = None if related is None else (*related.upstream, *related.downstream)
    matching = {node for node in known.nodes if _fits(node, known, selection)}
    found = matching if selection.words or selection.tag else ()
    folded = unread_quarantines(known.edges) - {*found, *chosen}
    shown = {*matching, *_neighbours(matching, known.edges), *chosen} - folded
    if near is not None and selection.is_alone:
        shown &= {*chosen, *near}
    first = (*chosen, *(near or ()))
    ordered = dict.fromkeys((*(node for node in first if node in shown), *_by_stream(shown, known.edges, urgent)))
    return LineagePage(
        graph=draw(tuple(ordered), known.edges, chosen=chosen, near=near),
        matches=len(matching),
        total=len(known.nodes),
        related=related,
    )


def _fits(node: LineageNode, known: KnownLineage, selection: LineageSelection) -> bool:
    tags = known.tags.get(node, ())
    if selection.tag and selection.tag not in tags:
        return False
    text = " ".join((node.name, node.what, node.place, known.owners.get(node, ""), *tags)).lower()
    return all(word in text for word in selection.words.lower().split())


def _neighbours(nodes: Collection[LineageNode], edges: Iterable[Edge]) -> set[LineageNode]:
    pairs = [edge for edge in edges if edge[0] in nodes or edge[1] in nodes]
    return {node for pair in pairs for node in pair}


def _by_stream(nodes: Collection[LineageNode], edges: Iterable[Edge], urgent: Collection[str]) -> Iterator[LineageNode]:
    """Each stream with its inputs and outputs behind it, so that a drawing that is cut off shows whole streams."""
    beside: dict[LineageNode, list[LineageNode]] = {}
    for start, end in sorted(edges):
        beside.setdefault(start, []).append(end)
        beside.setdefault(end, []).append(start)
    streams = (node for node in nodes if node.kind is NodeKind.STREAM)
    for stream in sorted(streams, key=lambda node: (node.name not in urgent, node)):
        yield from (node for node in (stream, *beside.get(stream, ())) if node in nodes)
    yield from sorted(nodes)
