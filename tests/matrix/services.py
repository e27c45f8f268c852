"""What the inputs of the matrix read: the same few words in every kind of source."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession
from tests.fixtures.kinesis import kinesis_in
from tests.fixtures.workshop import Workshop
from tests.matrix.declaring import WORDS, Places

from sluice.ledger.connection import Ledger
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice.sources.kafka_clients import ClientSettings, client_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """A deployment whose sources hold the words. folder: of everything that lies on local disk."""

    spark: SparkSession
    settings: Settings
    ledger: Ledger
    folder: Path
    places: Places

    def workshop(self, name: str) -> Workshop:
        """A folder of declarations, checkpoints and tables for one combination."""
        pipelines = self.folder / "pipelines" / name
        pipelines.mkdir(parents=True)
        own = {"pipelines": pipelines, "checkpoints": (self.folder / "checkpoints" / name).as_uri()}
        namespace = self.places.source_table.partition(".")[0]
        return Workshop(
            spark=self.spark,
            settings=self.settings.model_copy(update=own),
            ledger=self.ledger,
            namespace=namespace,
        )

    def create_topic(self, topic: str) -> None:
        """A topic of one partition: Spark holds a core for each when it hands records on one by one."""
        admin = AdminClient(self._kafka())
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()

    def records(self, topic: str) -> list[dict[str, Any]]:
        """The values of a topic, read without Spark."""
        consumer = Consumer({**self._kafka(), "group.id": uuid4().hex})
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            messages = consumer.consume(end, timeout=30) if end else []
            return [json.loads(message.value() or b"null") for message in messages]
        finally:
            consumer.close()

    def fill(self) -> None:
        """Put the words into every source."""
        self.create_topic(self.places.source)
        producer = Producer(self._kafka())
        for word in WORDS:
            producer.produce(self.places.source, value=word)
        producer.flush(30)
        workshop = self.workshop("source")
        workshop.declare_table("words", {"word": "string"})
        workshop.append("words", [{"word": word} for word in WORDS])
        files = self.folder / "files" / "files"
        files.mkdir(parents=True)
        (files / "words.json").write_text("".join(json.dumps({"word": word}) + "\n" for word in WORDS))
        words = self.spark.createDataFrame([(word,) for word in WORDS], "word string")
        words.coalesce(1).write.format("delta").save(str(self.folder / "files" / "delta"))

    def _kafka(self) -> ClientSettings:
        return client_settings(self.settings.connection(self.places.kafka, KafkaConnection))


@contextmanager
def services_in(folder: Path, *, spark: SparkSession, settings: Settings, ledger: Ledger) -> Iterator[Services]:
    """Sources that hold the words, beside the services of a deployment that runs."""
    folder.mkdir(exist_ok=True)
    with _words_on_a_socket() as port, kinesis_in(folder) as kinesis:
        stream = kinesis.create_stream(shards=1)
        kinesis.put(stream, *WORDS)
        connections = {
            **settings.connections,
            "words": FilesConnection(kind="files", root=(folder / "files").as_uri()),
            "words_kinesis": kinesis.connection,
        }
        services = Services(
            spark=spark,
            settings=settings.model_copy(update={"connections": connections}),
            ledger=ledger,
            folder=folder,
            places=Places(
                source_table=f"m{uuid4().hex[:12]}.words",
                source=f"words_{uuid4().hex[:12]}",
                shards=stream,
                port=port,
            ),
        )
        services.fill()
        yield services


@contextmanager
def _words_on_a_socket() -> Iterator[int]:
    """A port that sends the words to each client and stays open."""
    ended = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall("".join(f"{word}\n" for word in WORDS).encode())
            ended.wait()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            ended.set()
            server.shutdown()
