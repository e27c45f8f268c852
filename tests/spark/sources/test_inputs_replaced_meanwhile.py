"""Inputs that are deleted and created again while a stream reads them."""

from __future__ import annotations

import pytest
from tests.fixtures.recreated_topics import Topic
from tests.fixtures.workshop import Workshop
from tests.spark.sources.test_replaced_inputs import NEW, OLD, copying

from sluice.errors import InputReplacedError
from sluice.ledger.batches import BatchObservation


@pytest.mark.parametrize("on_data_loss", ["fail", pytest.param("count", marks=pytest.mark.full)])
def test_a_running_stream_notices_a_recreated_topic(workshop: Workshop, on_data_loss: str) -> None:
    topic = Topic(workshop, on_data_loss=on_data_loss)
    topic.workshop.declare_stream(
        topic.stream,
        sql="SELECT decode(value, 'UTF-8') v, offset off FROM r",
        mode="continuous",
        trigger={"processing_time": "1 second"},
        inputs={
            "r": {
                "stream": {
                    "kafka": {
                        "connection": "flights_kafka",
                        "topics": [topic.name],
                        "on_data_loss": on_data_loss,
                    }
                }
            }
        },
        outputs={"main": {"iceberg": {"table": topic.target}}},
    )
    topic.send(OLD)
    read: dict[int, int] = {}  # a start reports again what an earlier plan has published

    def stop_when(batch: BatchObservation) -> bool:
        if batch.input_rows and not read:
            topic.recreate()
            topic.send(NEW)
        read[batch.key.batch] = batch.input_rows
        return sum(read.values()) >= len(OLD) + len(NEW)

    if on_data_loss == "count":
        topic.run(stop_when=stop_when)
        assert topic.values() == sorted([*NEW, *OLD])
    else:
        with pytest.raises(InputReplacedError):
            topic.run(stop_when=stop_when)
        assert topic.values() == OLD


@pytest.mark.full  # every run: a topic, and a table between two runs
def test_a_running_stream_names_a_source_that_was_created_again(workshop: Workshop) -> None:
    """Iceberg's reader fails before the look ahead of a batch, with the ids or the folders of the two tables alone."""
    stream, source, target = copying(workshop, mode="continuous", trigger={"processing_time": "1 second"})

    def create_again(batch: BatchObservation) -> bool:
        if batch.input_rows:
            workshop.catalog.drop_table(source)
            workshop.create_tables(only=source)
            workshop.append("source", [{"id": 10}])
        return False

    with pytest.raises(InputReplacedError, match=f"input table {source} was deleted and created again"):
        workshop.run(stream, stop_when=create_again, is_recorded=True)

    assert len(workshop.rows(target)) == 10
