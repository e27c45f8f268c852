"""Topics that appear while a run reads all whose names match: they have an id from then on, like the others.

Every test run compares the ids of topics at a start (`test_replaced_inputs.py`), and notices one that is recreated
while it runs (`test_inputs_replaced_meanwhile.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.recreated_topics import Topic
from tests.fixtures.workshop import Workshop

from sluice.errors import InputReplacedError
from sluice_spark.run.run_checkpoint import prepare_available_now

OLD, NEW = [f"old{number}" for number in range(5)], [f"new{number}" for number in range(8)]


def two_topics(workshop: Workshop, **source: Any) -> tuple[Topic, Topic]:
    """A topic with a record, whose stream reads all topics with its name in front, and another one that is not there
    yet."""
    first = Topic(workshop)
    second = copy.copy(first)
    second.name = f"{first.name}b"
    read = {"connection": "flights_kafka", "topic_pattern": f"{first.name}.*", **source}
    workshop.declare_stream(
        first.stream,
        sql="SELECT decode(value, 'UTF-8') v, offset off FROM r",
        inputs={"r": {"stream": {"kafka": read}}},
        outputs={"main": {"iceberg": {"table": first.target}}},
    )
    first.send(["first"])
    return first, second


def run_while(topic: Topic, appear: Callable[[], None]) -> None:
    """Run the stream; topics appear after its start has looked at them, and before its query has."""
    is_there = False

    def appear_and_prepare(*args: Any) -> None:
        nonlocal is_there
        if not is_there:
            is_there = True
            appear()
        prepare_available_now(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice_spark.run.supervised_run.prepare_available_now", appear_and_prepare)
        topic.run()


@pytest.mark.full  # every run: a topic that is read from the start (`test_replaced_inputs.py`)
def test_a_topic_that_appeared_during_a_run_and_was_recreated_is_refused(workshop: Workshop) -> None:
    first, second = two_topics(workshop)

    def appear() -> None:
        second.create()
        second.send(OLD)

    run_while(first, appear)
    second.recreate()
    second.send(NEW)

    with pytest.raises(InputReplacedError, match=f"topic {second.name} of .* was deleted and created"):
        first.run()
    assert first.values() == ["first", *OLD]


@pytest.mark.full  # as above
def test_a_topic_that_was_away_at_a_start_is_read_once_when_it_is_back(workshop: Workshop) -> None:
    first, second = two_topics(workshop, on_data_loss="count")
    second.create()
    second.send(OLD)
    first.run()
    second.admin.delete_topics([second.name])[second.name].result()
    first.send(["more"])

    def appear() -> None:
        second.create()
        second.send(NEW)

    run_while(first, appear)
    first.run()

    assert first.values() == sorted(["first", "more", *NEW, *OLD])
