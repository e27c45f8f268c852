"""The lineage: what is taken from declarations, what is drawn and highlighted, and what a person may not see."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.sample_declarations import write_continuous_stream, write_refusing_stream, write_table
from tests.unit.pages.test_line_selection import LINES, NOON
from tests.unit.pages.test_page_templates import HOSTILE

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import Declarations
from sluice.ledger.stream_troubles import StreamTrouble
from sluice.pages.lineage_edges import LineageNode, NodeKind, edges_of, stream_node, table_node
from sluice.pages.lineage_graph import (
    MOST_ARROWS,
    MOST_BOXES,
    MOST_BOXES_AROUND,
    LineageGraph,
    graph_around,
    relatives_of,
)
from sluice.pages.lineage_page import KnownLineage, LineageSelection, known_lineage, lineage_page
from sluice.pages.page_templates import render

MOST_BYTES = 300_000


@pytest.fixture
def declared(tmp_path: Path) -> Declarations:
    """Two streams in a row, one beside them, and a table that no stream touches."""
    for table in ("bronze.clicks", "silver.clicks", "gold.daily", "silver.other", "gold.unused"):
        write_table(tmp_path, table, more="tags: [web]\n" if "clicks" in table else "")
    write_continuous_stream(tmp_path, "clicks", reads="bronze.clicks", writes="silver.clicks")
    write_continuous_stream(tmp_path, "daily", reads="silver.clicks", writes="gold.daily")
    write_continuous_stream(tmp_path, "other", reads="bronze.clicks", writes="silver.other")
    declarations = load_declarations(tmp_path)
    assert declarations.problems == ()
    return declarations


def seen_by(declared: Declarations, *streams: str, with_tables: bool = True) -> KnownLineage:
    """The lineage for a person who may read some streams."""
    tables = declared.tables if with_tables else ()
    return known_lineage(declared, readable_streams=streams, readable_tables=tables)


def names(graph: LineageGraph) -> set[str]:
    """What is drawn."""
    return {box.node.name for box in graph.boxes}


def test_the_demo_is_one_lineage_from_its_topic_and_files_to_gold() -> None:
    streams = load_declarations(Path("include/pipelines")).streams.values()
    edges = edges_of(streams)

    related = relatives_of([table_node("gold.delays_by_weather")], edges)

    outside = {(node.what, node.name) for node in related.upstream if node.kind is NodeKind.OUTSIDE}
    assert ("Kafka topic", "flights") in outside
    assert any(what == "files" for what, _ in outside)
    assert {"silver.flights", "bronze.weather"} <= {node.name for node in related.upstream}
    assert related.downstream == ()


def test_a_topic_that_one_stream_writes_and_another_reads_connects_them(declared: Declarations) -> None:
    clicks, daily = declared.streams["clicks"], declared.streams["daily"]
    kafka = {"connection": "main", "topic": "sent"}
    model = type(clicks.declaration)
    document = clicks.declaration.model_dump(by_alias=False, exclude_unset=True, mode="json")
    sender = replace(clicks, declaration=model.model_validate({**document, "outputs": {"main": {"kafka": kafka}}}))
    source = {"kafka": {"connection": "main", "topics": ["sent"]}}
    document = daily.declaration.model_dump(by_alias=False, exclude_unset=True, mode="json")
    receiver = replace(daily, declaration=model.model_validate({**document, "inputs": {"rows": {"stream": source}}}))

    topic = LineageNode(NodeKind.OUTSIDE, "sent", "Kafka topic", "main")
    assert {(stream_node("clicks"), topic), (topic, stream_node("daily"))} <= edges_of([sender, receiver])


def test_the_whole_lineage_is_drawn_with_tables_that_no_stream_touches(declared: Declarations) -> None:
    page = lineage_page(seen_by(declared, *declared.streams), LineageSelection())

    assert names(page.graph) == {*declared.streams, *declared.tables}
    assert len(page.graph.arrows) == 6
    assert not page.graph.is_parted


def test_of_streams_that_a_person_may_not_see_nothing_is_known(declared: Declarations) -> None:
    page = lineage_page(seen_by(declared, "daily", with_tables=False), LineageSelection())

    assert names(page.graph) == {"daily", "silver.clicks", "gold.daily"}
    assert lineage_page(seen_by(declared, "daily", with_tables=False), LineageSelection(tag="web")).matches == 0


def test_all_that_is_upstream_and_downstream_of_what_is_chosen_is_highlighted(declared: Declarations) -> None:
    page = lineage_page(seen_by(declared, *declared.streams), LineageSelection(chosen="silver.clicks"))

    assert page.related is not None
    assert [node.name for node in page.related.upstream] == ["clicks", "bronze.clicks"]
    assert [node.name for node in page.related.downstream] == ["daily", "gold.daily"]
    near = {box.node.name for box in page.graph.boxes if box.is_near}
    assert near == {"bronze.clicks", "clicks", "silver.clicks", "daily", "gold.daily"}
    assert [box.node.name for box in page.graph.boxes if box.is_chosen] == ["silver.clicks"]
    assert sum(arrow.is_near for arrow in page.graph.arrows) == 4
    assert len(names(page.graph)) == 8
    alone = lineage_page(seen_by(declared, *declared.streams), LineageSelection(chosen="silver.clicks", is_alone=True))
    assert names(alone.graph) == near


def test_words_and_a_tag_choose_nodes_which_are_drawn_with_their_neighbours(declared: Declarations) -> None:
    known = seen_by(declared, *declared.streams)
    by_words = lineage_page(known, LineageSelection(words="STREAM-owner other"))
    by_tag = lineage_page(known, LineageSelection(tag="web"))

    assert by_words.matches == 1
    assert names(by_words.graph) == {"other", "bronze.clicks", "silver.other"}
    assert by_tag.matches == 2
    assert names(by_tag.graph) == {"bronze.clicks", "silver.clicks", "clicks", "daily", "other"}
    assert known.all_tags == ("sample", "web")


def test_the_address_says_what_is_chosen() -> None:
    assert LineageSelection.of({"q": " a b ", "tag": "t", "of": "x ", "only": "1"}) == LineageSelection(
        words="a b", tag="t", chosen="x", is_alone=True
    )
    assert LineageSelection.of({"only": "yes"}) == LineageSelection()


def test_around_a_stream_all_that_leads_to_it_and_follows_from_it_is_drawn(declared: Declarations) -> None:
    graph = graph_around("daily", edges_of(declared.streams.values()))

    assert names(graph) == {"bronze.clicks", "clicks", "silver.clicks", "daily", "gold.daily"}
    assert [box.node.name for box in graph.boxes if box.is_chosen] == ["daily"]


def test_around_a_stream_the_nearest_are_drawn_and_the_others_counted() -> None:
    tables = [table_node(f"gold.t{number:03}") for number in range(300)]
    readers = [stream_node(f"far_{number:03}") for number in range(300)]
    edges = {(stream_node("fan"), table) for table in tables} | set(zip(tables, readers, strict=True))

    graph = graph_around("fan", edges)

    assert len(graph.boxes) == MOST_BOXES_AROUND
    assert graph.left_out == 601 - MOST_BOXES_AROUND
    assert {box.node.kind for box in graph.boxes if box.node.name != "fan"} == {NodeKind.TABLE}


def test_of_very_many_arrows_those_of_what_is_chosen_are_drawn() -> None:
    tables = [table_node(f"gold.t{number:02}") for number in range(60)]
    streams = [stream_node(f"s{number:02}") for number in range(60)]
    edges = frozenset((stream, table) for stream in streams for table in tables)
    known = KnownLineage(nodes=frozenset((*tables, *streams)), edges=edges, owners={}, tags={})

    selection = LineageSelection(chosen="gold.t59")
    graph = lineage_page(known, selection).graph

    assert len(graph.arrows) == MOST_ARROWS
    assert sum(arrow.is_near for arrow in graph.arrows) == 60
    assert f"{60 * 60 - MOST_ARROWS:,} arrows are not drawn" in lineage_html(known, selection)


def test_a_circle_is_drawn_once() -> None:
    table, stream = table_node("silver.state"), stream_node("loop")

    graph = graph_around("loop", {(table, stream), (stream, table)})

    assert len(graph.boxes) == 2
    assert len(graph.arrows) == 2


def lineage_html(known: KnownLineage, selection: LineageSelection, **changed: object) -> str:
    """The page as the route renders it."""
    values = {
        "base": "/sluice",
        "known": known,
        "selection": selection,
        "page": lineage_page(known, selection),
        "lines": {node.name: replace(LINES[1], stream=node.name) for node in known.nodes},
        "tables": frozenset(node.name for node in known.nodes),
        "failed": {},
        "problems": (),
        "most_named": 60,
        "link_to_choose": lambda name: f"of={name}",
    }
    return render("lineage", values | changed)


def large(streams: int, *, prefix: str) -> KnownLineage:
    """So many streams, each from one of ten topics and the table before it into a table of its own."""
    edges = set()
    for number in range(streams):
        stream = stream_node(f"{prefix}{number}")
        edges.add((LineageNode(NodeKind.OUTSIDE, f"{prefix}topic_{number % 10}", "Kafka topic", "main"), stream))
        edges.add((stream, table_node(f"silver.{prefix}{number}")))
        if number % 5:
            edges.add((table_node(f"silver.{prefix}{number - 1}"), stream))
    nodes = frozenset(node for edge in edges for node in edge)
    return KnownLineage(nodes=nodes, edges=frozenset(edges), owners={}, tags={})


@pytest.mark.parametrize("chosen", ["", "orders_of_the_customers_7"])
def test_two_hundred_streams_and_tables_fit_into_the_limit_of_a_page(chosen: str) -> None:
    page = lineage_html(large(200, prefix="orders_of_the_customers_"), LineageSelection(chosen=chosen))

    assert page.count('class="node') == 410
    assert len(page.encode()) < MOST_BYTES


def test_of_a_thousand_streams_the_first_are_drawn_and_the_rest_is_counted() -> None:
    known = large(1000, prefix="s")
    page = lineage_page(known, LineageSelection(), urgent=["s777"])

    assert len(page.graph.boxes) == MOST_BOXES
    assert page.graph.left_out == 2010 - MOST_BOXES
    assert "s777" in names(page.graph)
    html = lineage_html(known, LineageSelection())
    assert "1,510 are not drawn" in html
    assert len(html.encode()) < MOST_BYTES


def test_a_state_is_said_by_a_symbol_and_a_word_and_hidden_pages_have_no_link(declared: Declarations) -> None:
    known = seen_by(declared, *declared.streams)
    page = lineage_html(known, LineageSelection(), tables=frozenset({"silver.clicks"}))

    assert "stream · ● " in page
    assert 'href="/sluice/streams/clicks"' in page
    assert 'href="/sluice/tables/silver.clicks"' in page
    assert 'href="/sluice/tables/gold.daily"' not in page
    assert "gold.daily" in page


def test_hostile_words_stay_words() -> None:
    nodes = (stream_node(HOSTILE), LineageNode(NodeKind.OUTSIDE, HOSTILE, HOSTILE, HOSTILE))
    known = KnownLineage(nodes=frozenset(nodes), edges=frozenset({nodes}), owners={}, tags={nodes[0]: (HOSTILE,)})
    for selection in (LineageSelection(words=HOSTILE), LineageSelection(chosen=HOSTILE), LineageSelection(tag=HOSTILE)):
        page = lineage_html(known, selection, problems=(HOSTILE,))

        assert "<img" not in page
        assert " style=" not in page
        assert page.count("<script") == 1


@pytest.fixture
def refusing(tmp_path: Path) -> Declarations:
    """A stream with a quarantine that is the input of no stream."""
    write_table(tmp_path, "bronze.flights")
    write_table(tmp_path, "silver.refusing")
    write_refusing_stream(tmp_path, "refusing", writes="silver.refusing")
    return load_declarations(tmp_path)


def test_a_quarantine_is_a_mark_on_the_box_of_its_stream_until_it_is_looked_for(refusing: Declarations) -> None:
    known = known_lineage(refusing, readable_streams={"refusing"}, readable_tables={"quarantine.refusing"})

    plain = lineage_page(known, LineageSelection()).graph
    found = lineage_page(known, LineageSelection(words="quarantine")).graph
    chosen = lineage_page(known, LineageSelection(chosen="quarantine.refusing")).graph

    assert "quarantine.refusing" not in names(plain)
    assert {box.node.name: box.quarantine for box in plain.boxes if box.quarantine} == {
        "refusing": "quarantine.refusing"
    }
    assert "quarantine.refusing" in names(found) & names(chosen)
    assert not any(box.quarantine for box in (*found.boxes, *chosen.boxes))
    assert "quarantine.refusing" not in names(graph_around("refusing", known.edges))
    page = lineage_html(known, LineageSelection())
    assert 'href="/sluice/tables/quarantine.refusing"' in page
    assert "its rejected rows" in page


def test_boxes_have_the_colour_of_their_state(declared: Declarations) -> None:
    known = seen_by(declared, "clicks", "daily", "other")
    trouble = StreamTrouble(stream="gold.daily", reason="check failed", explanation="", since=NOON, observed_at=NOON)

    page = lineage_html(known, LineageSelection(), failed={"gold.daily": trouble}, lines={"clicks": LINES[0]})

    assert re.search(r'class="node near bad"[^>]*><title>gold.daily, table · ● check failed', page)
    assert re.search(r'class="node near good"[^>]*><title>clicks, stream · ✓ running', page)
