"""Failures of what lies around a driver, provoked: each function lets the error out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

import pyarrow as pa
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as fn
from tests.spark.provoking import COLUMNS, NOBODY, Place

from sluice.settings import KafkaConnection


def kafka_away(place: Place) -> None:
    """The broker of a topic does not answer."""
    settings = place.workshop.settings
    gone = KafkaConnection(kind="kafka", bootstrap_servers=NOBODY)
    settings.connections["gone"] = gone  # the settings are frozen, their mapping is the test's own
    place.reading_topic("flights", connection="gone")
    place.run()


def topic_missing(place: Place) -> None:
    """The topic does not exist."""
    place.reading_topic(f"t{uuid4().hex}")
    place.run()


def topic_recreated(place: Place) -> None:
    """The topic was deleted and made again with fewer records than the stream has read."""
    topic = place.make_topic(records=5)
    place.reading_topic(topic)
    place.run()
    admin = AdminClient(place.kafka)
    admin.delete_topics([topic])[topic].result()
    for _ in range(50):
        if topic not in admin.list_topics(timeout=10).topics:
            break
    place.fill_topic(topic, records=1)
    place.run()


def offsets_out_of_range(place: Place) -> None:
    """The records after the stream's position were deleted before it read them."""
    topic = place.make_topic(records=5)
    place.reading_topic(topic)
    place.run()
    producer = Producer({**place.kafka, "log_level": 2})
    for number in range(5):
        producer.produce(topic, value=str(number))
    assert producer.flush(30) == 0
    admin = AdminClient(place.kafka)
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 8)]).values()
    deleted.result()
    place.run()


def object_store_refuses(place: Place) -> None:
    """Spark writes with a secret that the object store does not know."""
    from pydantic import SecretStr

    table = place.workshop.declare_table("target", COLUMNS)
    catalog = place.other_catalog(store={"secret_access_key": SecretStr("not-the-secret")})
    place.one_row().writeTo(f"{catalog}.{table}").append()


def object_store_away(place: Place) -> None:
    """Sluice's own client asks an object store that does not answer."""
    from sluice.checkpoints.checkpoint_files import open_checkpoint_files

    store = place.workshop.settings.object_store.model_copy(update={"endpoint": f"http://{NOBODY}"})
    open_checkpoint_files("s3a://landing/checkpoints", store).list_files()


def checkpoint_store_away(place: Place) -> None:
    """The checkpoint lies in an object store that does not answer."""
    spark = place.workshop.spark
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    settings = {
        "fs.s3a.bucket.gone.endpoint": f"http://{NOBODY}",
        "fs.s3a.bucket.gone.attempts.maximum": "1",
        "fs.s3a.bucket.gone.retry.limit": "1",
    }
    for key, value in settings.items():
        conf.set(key, value)
    rows = spark.readStream.format("rate").load()
    rows.writeStream.format("noop").option("checkpointLocation", "s3a://gone/checkpoint").trigger(
        availableNow=True
    ).start().awaitTermination()


def catalog_away(place: Place) -> None:
    """Spark asks a catalog that does not answer."""
    catalog = place.other_catalog(catalog={"uri": f"http://{NOBODY}", "oauth2_server_uri": f"http://{NOBODY}/t"})
    place.workshop.spark.table(f"{catalog}.a.b").collect()


def catalog_away_for_the_platform(place: Place) -> None:
    """Sluice's own client asks a catalog that does not answer."""
    from sluice.tables.catalog import open_catalog

    settings = place.workshop.settings
    wrong = settings.catalog.model_copy(update={"uri": f"http://{NOBODY}"})
    open_catalog(settings.model_copy(update={"catalog": wrong}))


def catalog_refuses_the_credential(place: Place) -> None:
    """Spark asks the catalog with a credential that it does not know."""
    from pydantic import SecretStr

    catalog = place.other_catalog(catalog={"credential": SecretStr("nobody:nothing")})
    place.workshop.spark.table(f"{catalog}.a.b").collect()


@contextmanager
def _answering(status: int) -> Iterator[str]:
    """An HTTP server that answers everything with one status, in the form of Iceberg's REST catalog."""

    class Answer(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            body = f'{{"error": {{"message": "told so", "type": "Told", "code": {status}}}}}'.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_HEAD = _answer  # noqa: N815  # the names that the server looks for

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def catalog_busy(place: Place) -> None:
    """The catalog answers 503."""
    with _answering(503) as uri:
        catalog = place.other_catalog(catalog={"uri": uri, "credential": None, "oauth2_server_uri": None})
        place.workshop.spark.table(f"{catalog}.a.b").collect()


def catalog_busy_for_the_platform(place: Place) -> None:
    """The catalog answers 503 to Sluice's own client."""
    from sluice.tables.catalog import open_catalog

    with _answering(503) as uri:
        settings = place.workshop.settings
        wrong = settings.catalog.model_copy(update={"uri": uri, "credential": None, "oauth2_server_uri": None})
        open_catalog(settings.model_copy(update={"catalog": wrong}))


def commit_conflict(place: Place) -> None:
    """Another writer has committed since the table was loaded: the catalog answers 409."""
    place.workshop.declare_table("target", COLUMNS)
    stale = place.workshop.table("target")
    place.workshop.append("target", [{"id": 1, "word": "one"}])
    transaction = stale.transaction()
    transaction.append(pa.Table.from_pylist([{"id": 2, "word": "two"}], schema=stale.schema().as_arrow()))
    stale.catalog.commit_table(stale, transaction._requirements, transaction._updates)


def merge_conflict(place: Place) -> None:
    """Rows that a serializable MERGE reads were added while it ran."""
    spark, table = place.workshop.spark, place.workshop.declare_table("target", COLUMNS)
    name = f"{place.workshop.settings.catalog.name}.{table}"
    place.workshop.append("target", [{"id": 1, "word": "one"}])
    first = place.workshop.table("target").metadata.current_snapshot_id
    place.workshop.append("target", [{"id": 2, "word": "two"}])
    rows = spark.createDataFrame([(3, "three")], "id bigint, word string")
    writer = rows.writeTo(name).option("isolation-level", "serializable")
    writer.option("validate-from-snapshot-id", str(first)).overwrite(fn.col("id") > 0)


def table_missing(place: Place) -> None:
    """The target was dropped."""
    place.copying()
    place.workshop.table("target").catalog.drop_table(place.workshop.table_name("target"))
    place.run()


def table_missing_in_spark(place: Place) -> None:
    """A table that a query names does not exist."""
    place.workshop.spark.table(f"{place.workshop.settings.catalog.name}.nowhere.nothing").collect()


def ledger_away(place: Place) -> None:
    """The ledger does not answer."""
    from sluice.ledger.connection import database_time, open_ledger

    with open_ledger(f"postgresql+psycopg://nobody@{NOBODY}/ledger") as ledger:
        database_time(ledger)
