"""What has its name and is another thing."""

from __future__ import annotations

from sluice.sources.source_identities import (
    Replaced,
    find_replaced,
    input_table_name,
    output_table_name,
    topic_name,
)


def test_another_id_is_found_by_its_name() -> None:
    name = topic_name("kafka", "t")
    (found,) = find_replaced({name: "a"}, {name: "b"})
    assert found == Replaced(name="topic t of kafka", known="a", seen="b")
    assert found.is_topic("kafka", "t")
    assert not found.is_topic("other", "t")
    assert not found.is_output
    assert str(found) == "topic t of kafka was deleted and created again (its id was a and is b)"


def test_what_is_new_or_not_there_is_not_replaced() -> None:
    assert find_replaced({"topic a of k": "1"}, {"topic b of k": "2"}) == ()


def test_a_table_that_is_read_and_written_has_two_names() -> None:
    known = {input_table_name("a.b"): "1", output_table_name("a.b"): "1"}
    found = find_replaced(known, {output_table_name("a.b"): "2", input_table_name("a.b"): "2"})
    assert [(one.name, one.is_output) for one in found] == [("input table a.b", False), ("output table a.b", True)]
