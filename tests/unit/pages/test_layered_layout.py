"""Where the nodes of a lineage lie: layers, rows without overlap, and an end for every graph."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from sluice.pages.lineage_edges import Edge, LineageNode, stream_node, table_node
from sluice.pages.lineage_graph import LONGEST_BENT_EDGE, Layout, lay_out, layers_of

A, B, C, D, E = (stream_node(name) for name in "abcde")


def chain(length: int) -> list[LineageNode]:
    """So many tables, one after the other."""
    return [table_node(f"n.t{number:04}") for number in range(length)]


def drawn(edges: list[Edge]) -> Layout:
    """The layout of all nodes of some edges."""
    return lay_out({node for edge in edges for node in edge}, edges)


def crossings(layout: Layout) -> int:
    """How often two pieces of ways between the same two layers cross."""
    pieces = [piece for way in layout.ways.values() for piece in pairwise(way)]
    return sum(
        one[0][0] == other[0][0] and (one[0][1] - other[0][1]) * (one[1][1] - other[1][1]) < 0
        for one, other in combinations(pieces, 2)
    )


def test_every_node_lies_behind_all_that_leads_to_it() -> None:
    edges = [(A, B), (B, C), (A, C), (C, D)]

    assert layers_of([A, B, C, D], edges) == {A: 0, B: 1, C: 2, D: 3}


def test_what_nothing_leads_to_lies_beside_what_reads_it() -> None:
    assert layers_of([A, B, C, D], [(A, B), (B, C), (D, C)])[D] == 1


def test_an_edge_over_a_layer_bends_around_the_node_in_it() -> None:
    layout = drawn([(A, B), (B, C), (A, C)])

    (_, start), (layer, bend), (_, end) = layout.ways[(A, C)]
    assert layer == 1
    assert abs(bend - layout.places[B][1]) >= 1
    assert (start, end) == (layout.places[A][1], layout.places[C][1])


def test_an_edge_over_very_many_layers_has_no_bends() -> None:
    nodes = chain(LONGEST_BENT_EDGE + 2)
    edges = [*pairwise(nodes), (nodes[0], nodes[-2]), (nodes[0], nodes[-1])]
    layout = drawn(edges)

    assert len(layout.ways[edges[-2]]) == LONGEST_BENT_EDGE + 1
    assert len(layout.ways[edges[-1]]) == 2


def test_parts_that_are_not_connected_lie_below_each_other_the_largest_first() -> None:
    layout = lay_out([A, B, C, D, E], [(D, E), (B, C), (C, A)])

    assert layout.places[B] == (0, 0)
    assert layout.places[D] == (0, 1)
    assert (layout.layers, layout.rows) == (3, 2)


def test_two_lanes_that_are_named_crosswise_do_not_cross() -> None:
    source = table_node("bronze.source")
    lanes = [(source, A), (source, B), (A, table_node("s.z")), (B, table_node("s.y"))]

    assert crossings(drawn([*lanes, (table_node("s.z"), C), (table_node("s.y"), D)])) == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_layout_of_any_graph_ends_without_overlap(seed: int) -> None:
    chosen = random.Random(seed)  # noqa: S311  # graphs, no secrets
    nodes = [*chain(60), *(stream_node(f"s{number}") for number in range(60))]
    edges = [(chosen.choice(nodes), chosen.choice(nodes)) for _ in range(150)]  # full of circles, one node long as well

    layout = lay_out(nodes, edges)

    assert set(layout.places) == set(nodes)
    assert set(layout.ways) == set(edges)
    by_layer: dict[int, list[float]] = {}
    for layer, row in layout.places.values():
        by_layer.setdefault(layer, []).append(row)
    for rows in by_layer.values():
        assert all(below - above >= 0.98 for above, below in pairwise(sorted(rows)))
    assert min(row for _, row in layout.places.values()) >= 0
    assert max(row for _, row in layout.places.values()) <= layout.rows - 1 + 0.01


def test_a_circle_is_cut_once() -> None:
    assert layers_of([A, B, C], [(A, B), (B, C), (C, A)]) == {A: 0, B: 1, C: 2}
    assert layers_of([A, B, C], [(A, C), (C, B), (B, A)]) == {A: 0, C: 1, B: 2}


def test_the_same_graph_is_always_drawn_in_the_same_way() -> None:
    edges = [(A, B), (A, C), (B, D), (C, D), (D, E)]

    assert drawn(edges) == drawn(edges[::-1])


def test_a_long_chain_and_a_wide_fan_are_laid_out() -> None:
    nodes = chain(500)
    assert drawn(list(pairwise(nodes))).layers == 500

    assert drawn([(A, node) for node in nodes]).rows == 500
