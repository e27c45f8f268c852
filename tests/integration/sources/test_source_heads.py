"""What lies unread in a real Kafka and in real Iceberg tables, told without any driver."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from tests.fixtures.kinesis import Kinesis
from tests.fixtures.stack import Stack
from tests.fixtures.streams import continuous_stream

from sluice.checkpoints.s3_checkpoint_files import s3_client
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.batches import BatchObservation, PublicationKey
from sluice.ledger.progress_samples import LagObservation
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice.sources.kafka_clients import ClientSettings, client_settings
from sluice.sources.kinesis_shards import TRIM_HORIZON, KinesisShards
from sluice.sources.source_heads import SourceHeads
from sluice.tables import catalog as catalog_module
from sluice.tables.catalog import open_catalog


@pytest.fixture
def settings(services_stack: Stack) -> Settings:
    """The settings of a stack that runs."""
    return services_stack.settings()


@pytest.fixture
def topic(settings: Settings) -> str:
    """A topic of three partitions that holds 30 records."""
    name = f"flights_{uuid4().hex[:8]}"
    admin = AdminClient(_kafka(settings))
    admin.create_topics([NewTopic(name, num_partitions=3, replication_factor=1)])[name].result()
    produce(settings, name, records=30)
    return name


@pytest.fixture
def table(settings: Settings) -> Iterator[Table]:
    """An empty table."""
    catalog: Catalog = open_catalog(settings)
    catalog.create_namespace_if_not_exists("bronze")
    created = catalog.create_table(f"bronze.heads_{uuid4().hex[:8]}", schema=pa.schema([("number", pa.int64())]))
    yield created
    catalog.drop_table(created.name())


def produce(settings: Settings, topic: str, *, records: int) -> None:
    """Send records, spread over the partitions in turn."""
    producer = Producer(_kafka(settings))
    for number in range(records):
        producer.produce(topic, value=b"{}", partition=number % 3)
    assert producer.flush(30) == 0


def _kafka(settings: Settings) -> ClientSettings:
    connection = settings.connections["flights_kafka"]
    assert isinstance(connection, KafkaConnection)
    return client_settings(connection)


def append(table: Table, *, rows: int) -> int:
    """Append rows in one file; returns the snapshot."""
    table.append(pa.table({"number": list(range(rows))}))
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def reader(**source: Mapping[str, Any]) -> LoadedStream:
    """A stream with one input."""
    return continuous_stream(inputs={"records": {"stream": source}})


def read_up_to(offset: Any) -> BatchObservation:
    """The newest batch of a reader that stands there."""
    return BatchObservation(
        key=PublicationKey(stream="flights", generation=1, batch=0),
        run_id="run-1",
        started_at=datetime.now(tz=UTC),
        duration_ms=1,
        input_rows=0,
        published_rows={},
        end_offsets={"records": offset},
    )


def test_records_that_lie_unread_in_a_topic(settings: Settings, topic: str) -> None:
    heads = SourceHeads(settings)
    stream = reader(kafka={"connection": "flights_kafka", "topics": [topic]}).declaration
    assert heads.observe_lag(stream, None) == LagObservation(rows=30)
    batch = read_up_to({topic: {"0": 10, "1": 4, "2": 10}})
    assert heads.observe_lag(stream, batch) == LagObservation(rows=6)
    produce(settings, topic, records=300)
    assert heads.observe_lag(stream, batch) == LagObservation(rows=306)


def test_a_pattern_meets_every_topic_that_fits(settings: Settings, topic: str) -> None:
    stream = reader(kafka={"connection": "flights_kafka", "topic_pattern": f"{topic[:-1]}."}).declaration
    assert SourceHeads(settings).observe_lag(stream, None) == LagObservation(rows=30)


def test_a_missing_topic_is_reported(settings: Settings) -> None:
    stream = reader(kafka={"connection": "flights_kafka", "topics": ["nobody_made_it"]}).declaration
    lag = SourceHeads(settings).observe_lag(stream, None)
    assert lag == LagObservation(
        rows=None, problem="Kafka has no topic nobody_made_it, or the user of the connection may not see it"
    )
    assert lag.is_refused


def test_rows_that_lie_unread_in_a_table(settings: Settings, table: Table) -> None:
    heads = SourceHeads(settings)
    stream = reader(iceberg={"table": ".".join(table.name())}).declaration
    assert heads.observe_lag(stream, None) == LagObservation(rows=0)
    first = append(table, rows=10)
    append(table, rows=5)
    assert heads.observe_lag(stream, None) == LagObservation(rows=15)
    at_first = {"version": 1, "snapshot_id": first, "position": 1, "scan_all_files": False}
    assert heads.observe_lag(stream, read_up_to(at_first)) == LagObservation(rows=5)
    assert heads.observe_lag(stream, read_up_to(at_first | {"position": 0})) == LagObservation(rows=15)
    gone = heads.observe_lag(stream, read_up_to(at_first | {"snapshot_id": 7}))
    assert gone == LagObservation(rows=None, problem="its snapshot 7 is no longer in the table's history")


def test_services_that_are_away_make_the_lag_unknown_and_not_the_look_fail(
    settings: Settings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.sources.kafka_topics.ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(catalog_module, "_RETRIES", catalog_module._RETRIES.new(backoff_factor=0))
    away = settings.model_copy(
        update={
            "connections": {"flights_kafka": KafkaConnection(kind="kafka", bootstrap_servers="127.0.0.1:1")},
            "catalog": settings.catalog.model_copy(update={"uri": "http://127.0.0.1:1"}),
        }
    )
    heads = SourceHeads(away)
    kafka = reader(kafka={"connection": "flights_kafka", "topics": [topic]})
    assert heads.observe_lag(kafka.declaration, None).problem.startswith("Kafka at 127.0.0.1:1 does not answer: ")
    iceberg = reader(iceberg={"table": "bronze.flights"}).declaration
    assert (
        heads.observe_lag(iceberg, None).problem == "Cannot open the catalog at http://127.0.0.1:1: Connection refused"
    )


def test_files_that_were_not_read(settings: Settings, tmp_path: Path) -> None:
    here = FilesConnection(kind="files", root=(tmp_path / "in").as_uri())
    settings = settings.model_copy(
        update={"connections": {"here": here}, "checkpoints": (tmp_path / "checkpoints").as_uri()}
    )
    heads = SourceHeads(settings)
    files = reader(files={"connection": "here", "path": "a", "format": "text"}).declaration
    assert heads.observe_lag(files, None) == LagObservation(rows=None, files=0)
    for name in (
        "a/1.txt",
        "a/2 %.txt",
        "a/day=1/3.txt",
        "a/_hidden",
        "a/.hidden",
        "a/deep/4.txt",
        "a/_h/6",
        "ab/5.txt",
    ):
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
        os.utime(file, (1_700_000_000, 1_700_000_000))
    assert heads.observe_lag(files, None) == LagObservation(rows=None, files=4)

    log = tmp_path / "checkpoints" / "flights" / "1" / "sources" / "0"
    log.mkdir(parents=True)
    entry = json.dumps({"path": f"{here.root}/a/1.txt", "timestamp": 1_700_000_000_000, "batchId": 0})
    other = json.dumps({"path": f"{here.root}/a/2%20%25.txt", "timestamp": 1_700_000_000_000, "batchId": 1})
    (log / "0").write_text(f"v1\n{entry}")
    (log / "1.compact").write_text(f"v1\n{entry}\n{other}")
    lag = heads.observe_lag(files, read_up_to({"logOffset": 1}))
    assert (lag, lag.text) == (LagObservation(rows=None, files=2), "2 files")
    os.utime(tmp_path / "in" / "a" / "1.txt", (1_700_000_060, 1_700_000_060))
    assert "1 file was written again after being read" in heads.observe_lag(files, read_up_to(None)).problem


def test_files_of_a_whole_bucket(settings: Settings) -> None:
    path = f"heads_{uuid4().hex[:8]}"
    files = reader(files={"connection": "landing", "path": f"{path}/*", "format": "text"}).declaration
    assert SourceHeads(settings).observe_lag(files, None) == LagObservation(rows=None, files=0)
    s3_client(settings.object_store).put_object(Bucket="landing", Key=f"{path}/a/1.txt", Body=b"x")
    assert SourceHeads(settings).observe_lag(files, None) == LagObservation(rows=None, files=1)


def test_a_rate_always_has_rows_to_read(settings: Settings) -> None:
    lag = SourceHeads(settings).observe_lag(reader(rate={"rows_per_second": 7}).declaration, None)
    assert (lag.rows, lag.undone, lag.problem) == (None, 7, "")


def test_a_delta_table_that_is_not_there_is_refused(settings: Settings, tmp_path: Path) -> None:
    lake = FilesConnection(kind="files", root=tmp_path.as_uri())
    settings = settings.model_copy(update={"connections": {"lake": lake}})
    lag = SourceHeads(settings).observe_lag(reader(delta={"connection": "lake", "path": "orders"}).declaration, None)
    assert (lag.problem, lag.is_refused) == ("there is no Delta table orders", True)


def test_kinesis_is_asked_whether_anything_is_unread(settings: Settings, kinesis: Kinesis) -> None:
    name = kinesis.create_stream(shards=2)
    heads = SourceHeads(settings.model_copy(update={"connections": {"k": kinesis.connection}}))
    declared = reader(kinesis={"connection": "k", "stream": name}).declaration
    assert heads.observe_lag(declared, None).undone == 0
    kinesis.put(name, *"abcdefgh")
    assert heads.observe_lag(declared, None).undone == 2
    shards = KinesisShards(kinesis.client, name)
    read = shards.advanced(shards.beginning(TRIM_HORIZON), most_records=None)
    assert heads.observe_lag(declared, read_up_to({"kinesis": name, "shards": read})).undone == 0
    kinesis.put(name, "later")
    assert heads.observe_lag(declared, read_up_to({"kinesis": name, "shards": read})).undone == 1
    missing = heads.observe_lag(reader(kinesis={"connection": "k", "stream": "no_such"}).declaration, None)
    assert (missing.is_refused, "no_such be read: ResourceNotFoundException" in missing.problem) == (True, True)


def test_the_head_of_a_socket_is_not_known(settings: Settings) -> None:
    lag = SourceHeads(settings).observe_lag(reader(socket={"host": "h", "port": 1}).declaration, None)
    assert lag == LagObservation(rows=None, problem="the head of a socket source is unknown")
    assert lag.text == "?"


def test_nothing_is_counted_at_a_source_that_is_another_one(settings: Settings, topic: str, table: Table) -> None:
    heads, name = SourceHeads(settings), ".".join(table.name())
    kafka = reader(kafka={"connection": "flights_kafka", "topics": [topic]}).declaration
    iceberg = reader(iceberg={"table": name}).declaration

    read = heads.observe_lag(kafka, None, known={f"topic {topic} of flights_kafka": "another"})
    listed = heads.observe_lag(iceberg, None, known={f"input table {name}": "another"})

    assert read.rows is None
    assert f"topic {topic} of flights_kafka was deleted and created again" in read.problem
    assert read.is_refused
    assert f"input table {name} was deleted and created again" in listed.problem
