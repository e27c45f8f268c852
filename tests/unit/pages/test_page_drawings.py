"""Charts and lineage as paths."""

from __future__ import annotations

from sluice.pages.lineage_graph import BOX_WIDTH, COLUMN_WIDTH, LineageNode, NodeKind, graph_around
from sluice.pages.svg_charts import line_path, stacked_paths, top_of

TABLE, STREAM = NodeKind.TABLE, NodeKind.STREAM


def node(kind: NodeKind, name: str) -> LineageNode:
    """A node of a graph."""
    return LineageNode(kind, name)


def test_a_line_runs_from_edge_to_edge_and_leaves_gaps() -> None:
    stroke, area = line_path([0, 10, None, 5], width=30, height=12, top=10)

    assert stroke == "M0 12L10 2M30 7h7.5"
    assert area == "M0 12L10 2V12H0ZM30 7h7.5V12H30Z"


def test_nothing_known_draws_nothing() -> None:
    assert line_path([None, None], width=30, height=12, top=1) == ("", "")
    assert stacked_paths([], width=30, height=12, top=1) == ()
    assert top_of([None]) == 1.0


def test_stacked_areas_lie_on_each_other() -> None:
    lower, upper = stacked_paths([[5, 5], [5, None]], width=10, height=12, top=10)

    assert lower == "M0 7L10 7L10 12L0 12Z"
    assert upper == "M0 2L10 7L10 7L0 7Z"


def test_a_graph_shows_what_leads_to_a_stream_and_what_follows() -> None:
    edges = frozenset(
        {
            (node(TABLE, "bronze.clicks"), node(STREAM, "clicks")),
            (node(STREAM, "clicks"), node(TABLE, "silver.clicks")),
            (node(TABLE, "silver.clicks"), node(STREAM, "daily")),
            (node(TABLE, "other.table"), node(STREAM, "unrelated")),
        }
    )
    graph = graph_around("clicks", edges)

    assert [(box.node.name, box.x // COLUMN_WIDTH) for box in graph.boxes] == [
        ("bronze.clicks", 0),
        ("clicks", 1),
        ("silver.clicks", 2),
        ("daily", 3),
    ]
    assert [box.node.name for box in graph.boxes if box.is_self] == ["clicks"]
    assert len(graph.arrows) == 3
    assert graph.width == 3 * COLUMN_WIDTH + BOX_WIDTH


def test_a_circle_is_drawn_once() -> None:
    table, stream = node(TABLE, "silver.state"), node(STREAM, "loop")

    graph = graph_around("loop", frozenset({(table, stream), (stream, table)}))

    assert len(graph.boxes) == 2
    assert len(graph.arrows) == 2


def test_a_wide_fan_is_cut_and_counted() -> None:
    stream = node(STREAM, "fan")
    edges = frozenset((stream, node(TABLE, f"gold.t{number:02}")) for number in range(40))

    graph = graph_around("fan", edges)

    assert len(graph.boxes) == 13
    assert graph.left_out == 28
