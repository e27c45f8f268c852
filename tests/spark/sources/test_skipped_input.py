"""Input that a stream skips by its declaration is counted in its batches, exactly."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.fixtures.workshop import Workshop

from sluice.errors import DeclarationError
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import client_settings

COPY = "def transform(rows):\n    return rows.selectExpr('CAST(string(value) AS long) id')\n"


class Topic:
    """A topic of two partitions that loses records."""

    def __init__(self, workshop: Workshop) -> None:
        connection = workshop.settings.connection("flights_kafka", KafkaConnection)
        configuration: dict[str, Any] = {**client_settings(connection), "log_level": 0}
        self.name = f"t{uuid4().hex}"
        self.admin, self.producer = AdminClient(configuration), Producer(configuration)
        self.admin.create_topics([NewTopic(self.name, 2, 1)])[self.name].result()

    def send(self, *numbers: int) -> None:
        """Add records, the even numbers to partition 0."""
        for number in numbers:
            self.producer.produce(self.name, value=str(number), partition=number % 2)
        assert self.producer.flush(60) == 0

    def forget(self, partition: int, before: int) -> None:
        """Remove a partition's records before an offset, as retention does."""
        for done in self.admin.delete_records([TopicPartition(self.name, partition, before)]).values():
            done.result()


def read_topic(workshop: Workshop, topic: Topic, stream: str, on_data_loss: str, **keys: Any) -> None:
    """Declare a stream from the topic into a table of its own. keys: more keys of the input."""
    table = workshop.declare_table(stream, {"id": "long"})
    source = {"connection": "flights_kafka", "topics": [topic.name], "on_data_loss": on_data_loss, **keys}
    workshop.declare_stream(
        stream,
        python=COPY,
        inputs={"rows": {"stream": {"kafka": source}}},
        outputs={"main": {"iceberg": {"table": table}}},
    )


def ids(workshop: Workshop, table: str) -> list[int]:
    """The numbers in a table."""
    return [row["id"] for row in workshop.rows(table)]


@pytest.mark.full
def test_records_that_were_gone_before_they_were_read_are_counted(workshop: Workshop) -> None:
    topic = Topic(workshop)
    counting, failing = f"c{uuid4().hex[:12]}", f"f{uuid4().hex[:12]}"
    read_topic(workshop, topic, counting, "count")
    read_topic(workshop, topic, failing, "fail")
    topic.send(0, 1, 2, 3)
    (first,) = workshop.run(counting).batches
    workshop.run(failing)
    assert first.skipped_input == {}

    topic.send(4, 5, 6, 8, 10)
    topic.forget(0, before=4)  # 4 and 6 are gone; 5 of the other partition stays
    (second,) = workshop.run(counting).batches

    assert ids(workshop, counting) == [0, 1, 2, 3, 5, 8, 10]
    assert second.skipped_input == {"rows": {f"{topic.name}/0": 2}}
    assert second.input_rows == 3
    with pytest.raises(Exception, match="is out of range for partition"):
        workshop.run(failing)


@pytest.mark.full  # every run has the rule (`test_topic_starts.py`)
def test_a_start_from_before_the_first_record_that_kafka_kept_is_refused_or_counted(workshop: Workshop) -> None:
    topic = Topic(workshop)
    topic.send(0, 1, 2, 3, 4)
    topic.forget(0, before=2)  # 0 and 2
    offsets = {topic.name: {0: 1, 1: 0}}
    counting, *failing = (f"s{uuid4().hex[:12]}" for _ in range(3))
    read_topic(workshop, topic, counting, "count", starting=offsets)
    for stream, starting in zip(failing, (offsets, "2026-01-31T00:00:00Z"), strict=True):
        read_topic(workshop, topic, stream, "fail", starting=starting)

        with pytest.raises(DeclarationError, match=f"{topic.name}/0 begins with offset 2"):
            workshop.run(stream)
        assert ids(workshop, stream) == []

    (batch,) = workshop.run(counting).batches
    assert ids(workshop, counting) == [1, 3, 4]
    assert batch.skipped_input == {"rows": {f"{topic.name}/0": 1}}


def change_table(workshop: Workshop) -> None:
    """Delete an appended file of the table whole, write another one anew without a row, and append a third."""
    workshop.table("source").delete("id = 1")
    workshop.table("source").delete("id = 2")
    workshop.append("source", [{"id": 4, "word": "last"}])


def copy_table(workshop: Workshop, source: dict[str, Any]) -> str:
    """Declare a stream that copies a table's ids into one of its own."""
    stream = f"s{uuid4().hex[:12]}"
    table = workshop.declare_table(stream, {"id": "long"})
    workshop.declare_stream(
        stream,
        sql="SELECT id FROM rows",
        inputs={"rows": {"stream": {"iceberg": source}}},
        outputs={"main": {"iceberg": {"table": table}}},
    )
    return stream


def test_snapshots_that_are_left_out_are_counted(workshop: Workshop) -> None:
    name = workshop.declare_table("source", {"id": "long", "word": "string"})
    workshop.append("source", [{"id": 1, "word": "first"}])
    skipping = copy_table(workshop, {"table": name, "on_overwrite": "skip", "on_delete": "skip"})
    workshop.run(skipping)
    workshop.append("source", [{"id": number, "word": "first"} for number in (2, 3)])
    change_table(workshop)
    changes = [
        snapshot
        for snapshot in workshop.table("source").snapshots()
        if snapshot.summary is not None and snapshot.summary.operation.value != "append"
    ]
    counted = {
        f"snapshot {snapshot.snapshot_id}": sum(
            int(snapshot.summary.additional_properties.get(key, 0)) for key in ("added-records", "deleted-records")
        )
        for snapshot in changes
        if snapshot.summary is not None
    }

    batches = workshop.run(skipping).batches

    assert ids(workshop, skipping) == [1, 2, 3, 4]
    assert sorted(counted.values()) == [1, 3]
    found = {place: rows for batch in batches for place, rows in batch.skipped_input.get("rows", {}).items()}
    assert found == counted


@pytest.mark.full  # every run: a stream that skips nothing (`test_stopping.py`)
def test_snapshots_that_are_not_to_be_left_out_stop_the_stream(workshop: Workshop) -> None:
    name = workshop.declare_table("source", {"id": "long", "word": "string"})
    workshop.append("source", [{"id": 1, "word": "first"}])
    choices: list[dict[str, Any]] = [{}, {"on_overwrite": "skip"}, {"on_delete": "skip"}]
    streams = [copy_table(workshop, {"table": name, **choice}) for choice in choices]
    for stream in streams:
        workshop.run(stream)
    workshop.append("source", [{"id": number, "word": "first"} for number in (2, 3)])
    change_table(workshop)

    for stream in streams:
        with pytest.raises(Exception, match=r"Cannot process (delete|overwrite) snapshot"):
            workshop.run(stream)


@pytest.mark.full  # every run has the rule (`unit/sources/test_table_starts.py`)
def test_a_reader_may_begin_at_a_time(workshop: Workshop) -> None:
    name = workshop.declare_table("source", {"id": "long"})
    workshop.append("source", [{"id": 1}])
    between = datetime.now(UTC)
    workshop.append("source", [{"id": 2}])
    workshop.append("source", [{"id": 3}])
    late = copy_table(workshop, {"table": name, "from_timestamp": between.isoformat()})

    workshop.run(late)
    workshop.append("source", [{"id": 4}])
    workshop.run(late)

    assert ids(workshop, late) == [2, 3, 4]
