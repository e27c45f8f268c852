"""Every source that a declaration may name is read for real, as a stream and as a static input."""

from __future__ import annotations

import socketserver
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession
from tenacity import Retrying, stop_after_delay, wait_fixed
from tests.fixtures.streaming import drained, open_declared, running
from tests.fixtures.workshop import Workshop

from sluice.errors import SettingsError
from sluice.settings import FilesConnection, JdbcConnection, KafkaConnection, Settings
from sluice.sources.kafka_clients import ClientSettings, client_settings


def kafka_of(settings: Settings) -> ClientSettings:
    """How a client reaches the ring's broker."""
    return client_settings(settings.connection("flights_kafka", KafkaConnection))


@pytest.fixture
def topic(settings: Settings) -> str:
    """A topic of two partitions with five records, one of them with a header."""
    name = f"t{uuid4().hex}"
    configuration: dict[str, Any] = {**kafka_of(settings)}
    admin = AdminClient(configuration)
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    producer = Producer(configuration)
    for number in range(5):
        headers: list[tuple[str, str | bytes | None]] = [("trace", b"x")] if number == 0 else []
        producer.produce(name, value=str(number), key="k", partition=number % 2, headers=headers)
    assert producer.flush(30) == 0
    return name


def kafka_options(topic: str) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Ways to declare the topic, and the values that are read then."""
    everything = ["0", "1", "2", "3", "4"]
    return {
        "topics": ({"topics": [topic]}, everything),
        "pattern": ({"topic_pattern": f"{topic[:-1]}."}, everything),
        "assignment": ({"assignment": {topic: [1]}}, ["1", "3"]),
        "offsets": ({"topics": [topic], "starting": {topic: {0: 2, 1: 1}}}, ["3", "4"]),
        "time": ({"topics": [topic], "starting": datetime(2001, 1, 1, tzinfo=UTC)}, everything),
        "limit": ({"topics": [topic], "max_offsets_per_batch": 2}, everything),
    }


@pytest.mark.parametrize("way", ["topics", "pattern", "assignment", "offsets", "time", "limit"])
def test_kafka_is_read_as_declared(
    spark: SparkSession, settings: Settings, topic: str, tmp_path: Path, way: str
) -> None:
    options, expected = kafka_options(topic)[way]
    rows = open_declared(spark, settings, stream={"kafka": {"connection": "flights_kafka", **options}})

    assert sorted(row["value"].decode() for row in drained(spark, rows, tmp_path)) == expected


def test_only_committed_records_are_read_unless_declared_otherwise(
    spark: SparkSession, settings: Settings, topic: str, tmp_path: Path
) -> None:
    name = f"t{uuid4().hex}"
    configuration: dict[str, Any] = {**kafka_of(settings)}
    admin = AdminClient(configuration)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    producer = Producer({**configuration, "transactional.id": name})
    producer.init_transactions(60)
    for value, end in (("kept", producer.commit_transaction), ("withdrawn", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(name, value=value)
        assert producer.flush(60) == 0
        end(60)
    source = {"connection": "flights_kafka", "topics": [name]}

    def values(isolation: str) -> list[str]:
        rows = open_declared(spark, settings, stream={"kafka": {**source, "isolation": isolation}})
        return [row["value"].decode() for row in drained(spark, rows, tmp_path)]

    assert values("read_committed") == ["kept"]
    assert values("read_uncommitted") == ["kept", "withdrawn"]


def test_latest_begins_with_what_comes_next_and_a_batch_waits_for_enough(
    spark: SparkSession, settings: Settings, topic: str, tmp_path: Path
) -> None:
    source = {"connection": "flights_kafka", "topics": [topic], "starting": "latest", "min_offsets_per_batch": 3}
    rows = open_declared(spark, settings, stream={"kafka": source})
    producer = Producer(kafka_of(settings))

    with running(spark, rows.selectExpr("string(value) value"), tmp_path) as query:
        assert query.rows() == []
        for number in (10, 11):
            producer.produce(topic, value=str(number), partition=0)
        assert producer.flush(30) == 0
        assert query.rows() == []
        producer.produce(topic, value="12", partition=0)
        assert producer.flush(30) == 0
        assert sorted(row["value"] for row in query.rows()) == ["10", "11", "12"]


def test_kafka_headers_come_when_asked_for(spark: SparkSession, settings: Settings, topic: str, tmp_path: Path) -> None:
    source = {"connection": "flights_kafka", "topics": [topic], "headers": True}
    rows = open_declared(spark, settings, stream={"kafka": source})

    headers = {row["value"].decode(): row["headers"] for row in drained(spark, rows, tmp_path)}

    assert [(header["key"], bytes(header["value"])) for header in headers["0"]] == [("trace", b"x")]
    assert headers["1"] is None


def test_a_table_is_read_at_a_snapshot_and_at_a_tag(workshop: Workshop) -> None:
    table = workshop.declare_table("rows", {"id": "long"})
    workshop.append("rows", [{"id": 1}])
    opened = workshop.table("rows")
    first = opened.metadata.current_snapshot_id
    assert first is not None
    opened.manage_snapshots().create_tag(first, "first").commit()
    workshop.append("rows", [{"id": 2}])

    def ids(**more: Any) -> list[int]:
        rows = open_declared(workshop.spark, workshop.settings, static={"iceberg": {"table": table, **more}})
        return sorted(row["id"] for row in rows.collect())

    assert ids() == [1, 2]
    assert ids(snapshot_id=first) == [1]
    assert ids(tag="first") == [1]
    assert ids(as_of=datetime.now(UTC)) == [1, 2]


@pytest.mark.full  # every run: `test_matrix.py`
def test_rate_makes_rows(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    rows = open_declared(spark, settings, stream={"rate": {"rows_per_second": 100}})
    query = rows.writeStream.format("memory").queryName("rated").option("checkpointLocation", str(tmp_path)).start()
    try:
        for attempt in Retrying(stop=stop_after_delay(30), wait=wait_fixed(0.2), reraise=True):
            with attempt:
                assert spark.table("rated").count() > 100
    finally:
        query.stop()
    assert [row["value"] for row in spark.table("rated").orderBy("value").head(3)] == [0, 1, 2]


def test_a_connection_that_the_deployment_lacks_is_named(spark: SparkSession, settings: Settings) -> None:
    with pytest.raises(SettingsError, match="connection nowhere is not set; the deployment has "):
        open_declared(spark, settings, stream={"kafka": {"connection": "nowhere", "topics": ["t"]}})
    with pytest.raises(SettingsError, match="connection landing is of kind files"):
        open_declared(spark, settings, stream={"kafka": {"connection": "landing", "topics": ["t"]}})


def test_lines_come_from_a_socket(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), SayTwoLines) as server:
        Thread(target=server.handle_request, daemon=True).start()
        source = {"host": "127.0.0.1", "port": server.server_address[1]}
        rows = open_declared(spark, settings, stream={"socket": source})
        with running(spark, rows.select("value"), tmp_path) as query:
            for attempt in Retrying(stop=stop_after_delay(60), wait=wait_fixed(0.2), reraise=True):
                with attempt:
                    assert query.rows() == [{"value": "first"}, {"value": "second"}]


class SayTwoLines(socketserver.StreamRequestHandler):
    """Sends two lines and ends."""

    def handle(self) -> None:
        """Answer a connection."""
        self.wfile.write(b"first\nsecond\n")


@pytest.fixture
def delta_settings(settings: Settings, tmp_path: Path) -> Settings:
    """The settings with a connection `lake` to a local folder."""
    lake = FilesConnection(kind="files", root=(tmp_path / "lake").as_uri())
    return settings.model_copy(update={"connections": {"lake": lake}})


@pytest.mark.full  # every run: `test_matrix.py`, `test_static_inputs.py`
def test_a_delta_table_is_a_stream_and_a_static_input(
    spark: SparkSession, delta_settings: Settings, tmp_path: Path
) -> None:
    table = (tmp_path / "lake" / "numbers").as_uri()
    spark.range(3).repartition(3).write.format("delta").save(table)
    source = {"connection": "lake", "path": "numbers"}

    def arrived(**more: Any) -> list[int]:
        rows = open_declared(spark, delta_settings, stream={"delta": {**source, **more}})
        return sorted(row["id"] for row in drained(spark, rows, tmp_path, checkpoint=f"c{more}"))

    def looked_up(**more: Any) -> list[int]:
        rows = open_declared(spark, delta_settings, static={"delta": {**source, **more}})
        return sorted(row.id for row in rows.collect())

    assert arrived() == [0, 1, 2]
    between = datetime.now(UTC)
    spark.range(3, 5).write.format("delta").mode("append").save(table)
    assert arrived() == [3, 4]
    assert arrived(max_files_per_batch=1) == [0, 1, 2, 3, 4]
    assert arrived(from_timestamp=between) == [3, 4]
    assert looked_up() == [0, 1, 2, 3, 4]
    assert looked_up(version=0) == [0, 1, 2]
    assert looked_up(as_of=between) == [0, 1, 2]
    spark.range(9).write.format("delta").mode("overwrite").save(table)
    with pytest.raises(Exception, match=r"DELTA_SOURCE_TABLE_IGNORE_CHANGES|DELTA_SOURCE_IGNORE_DELETE"):
        arrived()


def test_a_table_of_a_database_is_looked_up_and_its_password_is_never_shown(
    spark: SparkSession, jdbc_settings: Settings, numbers_table: str, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = open_declared(spark, jdbc_settings, static={"jdbc": {"connection": "database", "table": numbers_table}})

    assert [row.asDict() for row in rows.collect()] == [{"id": 1, "word": "one"}]
    password = jdbc_settings.connection("database", JdbcConnection).password
    assert password is not None
    rows.explain(mode="extended")
    assert "JDBCRelation" in (told := capfd.readouterr().out)
    assert password.get_secret_value() not in told
