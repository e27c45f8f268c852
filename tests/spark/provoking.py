"""Where failures are provoked: real parts, declared small, that a provocation then breaks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame
from tests.fixtures.workshop import Workshop

from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import ClientSettings, client_settings
from sluice_spark.session.session import catalog_conf

COLUMNS = {"id": "long", "word": "string"}
NOBODY = "127.0.0.1:1"
"""Where nothing listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where failures are provoked. stream: a name that nothing else has."""

    workshop: Workshop
    folder: Path
    stream: str

    def copying(self, *, sql: str = "SELECT id, word FROM records", python: str = "", **more: Any) -> None:
        """Declare a stream that copies one table into another, with two rows to copy."""
        source = self.workshop.declare_table("source", COLUMNS)
        target = self.workshop.declare_table("target", COLUMNS)
        outputs = {"copies": {"iceberg": {"table": target, **more}}}
        inputs = {"records": {"stream": {"iceberg": {"table": source}}}}
        words = {"python": python} if python else {"sql": sql}
        self.workshop.declare_stream(self.stream, inputs=inputs, outputs=outputs, **words)
        self.add_rows()

    def add_rows(self) -> None:
        """Two more rows to copy."""
        self.workshop.append("source", [{"id": 1, "word": "one"}, {"id": 2, "word": "two"}])

    def run(self) -> None:
        """Run the stream over what is there."""
        self.workshop.run(self.stream)

    @property
    def kafka(self) -> ClientSettings:
        """How a client reaches the Kafka that runs."""
        connection = self.workshop.settings.connections["flights_kafka"]
        assert isinstance(connection, KafkaConnection)
        return client_settings(connection)

    def reading_topic(self, topic: str, *, connection: str = "flights_kafka") -> None:
        """Declare a stream that copies a topic into a table."""
        target = self.workshop.declare_table("words", {"word": "string"})
        self.workshop.declare_stream(
            self.stream,
            sql="SELECT CAST(value AS STRING) AS word FROM records",
            inputs={"records": {"stream": {"kafka": {"connection": connection, "topics": [topic]}}}},
            outputs={"words": {"iceberg": {"table": target}}},
        )

    def make_topic(self, *, records: int) -> str:
        """A topic of one partition with some records."""
        name = f"t{uuid4().hex}"
        self.fill_topic(name, records=records)
        return name

    def fill_topic(self, name: str, *, records: int) -> None:
        """Create a topic and send records."""
        admin = AdminClient(self.kafka)
        admin.create_topics([NewTopic(name, 1, 1)])[name].result()
        producer = Producer({**self.kafka, "log_level": 2})
        for number in range(records):
            producer.produce(name, value=str(number))
        assert producer.flush(30) == 0

    def one_row(self) -> DataFrame:
        """A row for the table `target`."""
        return self.workshop.spark.createDataFrame([(1, "one")], "id bigint, word string")

    def other_catalog(self, **differs: Any) -> str:
        """A second name of the catalog in Spark, with other settings."""
        settings = self.workshop.settings
        name = f"c{uuid4().hex[:8]}"
        catalog = settings.catalog.model_copy(update={"name": name, **differs.pop("catalog", {})})
        store = settings.object_store.model_copy(update=differs.pop("store", {}))
        for key, value in catalog_conf(catalog, store).items():
            self.workshop.spark.conf.set(key, value)
        return name


class TextError(Exception):
    """What a process said, where no exception came over."""
