"""Outputs that are no Iceberg table take each batch under its key, alone and beside a table."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import polars as pl
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType
from tests.fixtures.workshop import Workshop

from sluice.declarations.output_declaration import DeltaOutput, FilesOutput, KafkaOutput
from sluice.errors import DeliveryError, LeaseLostError
from sluice.ledger.batches import PublicationKey, recent_batches, record_batch
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice.sources.kafka_clients import ClientSettings, client_settings
from sluice.supervision.held_lease import HeldLease
from sluice_spark.delivery.choose_delivery import BatchHandover
from sluice_spark.delivery.delivery_port import BatchGate, DeliveringRun
from sluice_spark.delivery.sink_delivery import SinkDelivery
from sluice_spark.sinks import kept_rows, memory_sink
from sluice_spark.sinks.delta import DeltaSink
from sluice_spark.sinks.files import FilesSink
from sluice_spark.sinks.kafka import KafkaSink

COLUMNS = {"id": "long", "word": "string"}
SCHEMA = {"id": pl.Int64, "word": pl.String}
TRANSFORMATION = """
    import json
    from pathlib import Path

    from pyspark.sql import functions as fn

    FOLDER = Path(__file__).parent

    def transform(records):
        sent = records.withColumn("topic", fn.concat(fn.lit("{topic}_"), fn.col("id") % 2))
        headers = sent.withColumn("trace", fn.create_map(fn.lit("word"), fn.col("word")))
        return {{
            "lake": records,
            "sent": headers,
            "delta": records,
            "columns": records,
            "lines": records.where("id > 1"),
            "sheet": records,
            "shown": records,
            "kept": records,
            "called": records,
            "nothing": records.where("id < 0"),
        }}

    def note(rows, batch):
        with (FOLDER / "calls.jsonl").open("a") as file:
            file.write(json.dumps([str(batch), rows.count()]) + "\\n")
"""


@pytest.fixture
def with_files(workshop: Workshop, tmp_path: Path) -> Workshop:
    """A workshop whose deployment has a folder `lake`."""
    connections = {
        **workshop.settings.connections,
        "lake": FilesConnection(kind="files", root=(tmp_path / "lake").as_uri()),
    }
    settings = workshop.settings.model_copy(update={"connections": connections})
    return Workshop(spark=workshop.spark, settings=settings, ledger=workshop.ledger, namespace=workshop.namespace)


@pytest.fixture
def topic(settings: Settings) -> Iterator[str]:
    """The beginning of the names of two topics, `…_0` and `…_1`."""
    name = f"t{uuid4().hex}"
    admin = AdminClient(kafka_of(settings))
    for created in admin.create_topics([NewTopic(f"{name}_{number}", 1, 1) for number in (0, 1)]).values():
        created.result()
    yield name
    for deleted in admin.delete_topics([f"{name}_0", f"{name}_1"]).values():
        deleted.result()


def kafka_of(settings: Settings) -> ClientSettings:
    """How a client reaches the ring's broker."""
    return client_settings(settings.connection("flights_kafka", KafkaConnection))


def records_of(settings: Settings, topic: str) -> list[tuple[Any, Any, Mapping[str, Any]]]:
    """Key, value and headers of every record of a topic's one partition, read without Spark."""
    consumer = Consumer({**kafka_of(settings), "group.id": uuid4().hex})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        messages = consumer.consume(end, timeout=30) if end else []
        return [(one.key(), json.loads(one.value() or b"null"), dict(one.headers() or [])) for one in messages]
    finally:
        consumer.close()


def delta_commits(table: Path) -> list[list[dict[str, Any]]]:
    """The actions of every commit of a Delta table, in order, read without Spark."""
    files = sorted((table / "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def outputs_of_every_kind(table: str) -> dict[str, Any]:
    """Outputs as they are declared: a table, a topic by row, three formats of files, and what is for trying out."""
    sent = {
        "connection": "flights_kafka",
        "topic_column": "topic",
        "key_column": "id",
        "headers_column": "trace",
    }
    return {
        "lake": {"iceberg": {"table": table}},
        "sent": {"kafka": sent},
        "delta": {"delta": {"connection": "lake", "path": "delta"}},
        "columns": {"files": {"connection": "lake", "path": "columns"}},
        "lines": {"files": {"connection": "lake", "path": "lines", "format": "json"}},
        "sheet": {"files": {"connection": "lake", "path": "sheet", "format": "csv"}},
        "shown": {"console": {"rows": 1}},
        "kept": {"memory": {}},
        "called": {"python": {"function": "mixed.py:note"}},
        "nothing": {"memory": {}},
    }


def test_one_batch_goes_to_outputs_of_every_kind_and_may_run_again(
    with_files: Workshop, settings: Settings, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workshop = with_files
    stream = f"s{workshop.namespace}"
    source, target = workshop.declare_table("source", COLUMNS), workshop.declare_table("target", COLUMNS)
    outputs = outputs_of_every_kind(target)
    outputs["called"]["python"]["function"] = f"{stream}.py:note"
    workshop.declare_stream(
        stream,
        python=TRANSFORMATION.format(topic=topic),
        inputs={"records": {"stream": {"iceberg": {"table": source}}}},
        outputs=outputs,
    )
    caplog.set_level(logging.INFO)
    first, second = (
        PublicationKey(stream=stream, generation=1, batch=0),
        PublicationKey(stream=stream, generation=1, batch=1),
    )

    workshop.append("source", [{"id": 1, "word": "one"}, {"id": 2, "word": None}])
    (batch,) = workshop.run(stream).batches
    expected = {
        "lake": 2,
        "sent": 2,
        "delta": 2,
        "columns": 2,
        "lines": 1,
        "sheet": 2,
        "shown": 2,
        "kept": 2,
        "called": 2,
        "nothing": 0,
    }
    assert batch.published_rows == expected
    assert list(batch.snapshot_ids) == ["lake"]
    record_batch(workshop.ledger, batch)
    assert recent_batches(workshop.ledger, stream, limit=1)[0].published_rows == expected

    workshop.forget_last_commit(stream)
    workshop.append("source", [{"id": 3, "word": "three"}])
    again = workshop.run(stream)

    rows = [{"id": 1, "word": "one"}, {"id": 2, "word": None}, {"id": 3, "word": "three"}]
    assert [one.key for one in again.batches] == [first, second]
    assert workshop.rows("target") == rows
    # Kafka promises at least once: the batch that ran again was sent again, with the same key, value and headers.
    one = (b"1", {"id": 1, "word": "one"}, {"word": b"one"})
    assert records_of(settings, f"{topic}_1") == [one, one, (b"3", rows[2], {"word": b"three"})]
    assert records_of(settings, f"{topic}_0") == [(b"2", rows[1], {"word": None})] * 2
    # Files, read by others: the batch is there once, and the parts of its folder are columns to a reader.
    lake = tmp_path / "lake"
    read = pl.read_parquet(lake / "columns" / "**" / "*.parquet", hive_partitioning=True).sort("id")
    assert read.select("id", "word").to_dicts() == rows
    assert read.select("stream", "generation", "batch").rows() == [(stream, 1, 0), (stream, 1, 0), (stream, 1, 1)]
    by_others = duckdb.read_parquet(f"{lake}/columns/**/*.parquet", hive_partitioning=True).project("id, word, batch")
    by_spark = workshop.spark.read.parquet(str(lake / "columns")).orderBy("id").select("id", "word", "batch").collect()
    assert (
        by_others.order("id").fetchall()
        == [(1, "one", 0), (2, None, 0), (3, "three", 1)]
        == [tuple(row) for row in by_spark]
    )
    assert pl.read_ndjson(lake / "lines" / "**" / "*.json", schema=SCHEMA).sort("id").to_dicts() == rows[1:]
    assert pl.read_csv(lake / "sheet" / "**" / "*.csv", schema=SCHEMA).sort("id").to_dicts() == rows
    # Delta, from its log alone: a commit for each batch, none for the batch that ran again.
    commits = delta_commits(lake / "delta")
    transactions = [entry["txn"] for commit in commits for entry in commit if "txn" in entry]
    assert [(one["appId"], one["version"]) for one in transactions] == [(f"sluice/{stream}/1/delta", n) for n in (0, 1)]
    added = [entry["add"]["path"] for commit in commits for entry in commit if "add" in entry]
    assert pl.read_parquet([lake / "delta" / path for path in added]).sort("id").to_dicts() == rows
    assert kept_rows(stream, "kept") == {first: rows[:2], second: rows[2:]}
    assert kept_rows(stream, "nothing") == {}
    calls = [json.loads(line) for line in (workshop.folder / "calls.jsonl").read_text().splitlines()]
    assert calls == [[str(first), 2], [str(first), 2], [str(second), 1]]
    shown = [record.getMessage() for record in caplog.records if " shown " in record.getMessage()]
    assert len(shown) == 3
    assert shown[-1] == f'{second} shown {{"id":3,"word":"three"}}'


def test_a_batch_whose_folder_is_not_complete_is_written_again(with_files: Workshop, tmp_path: Path) -> None:
    workshop = with_files
    sink = FilesSink(
        output="lines",
        declared=FilesOutput(connection="lake", path="lines", format="json"),
        connection=workshop.settings.connection("lake", FilesConnection),
    )
    key = PublicationKey(stream="s", generation=1, batch=0)
    folder = tmp_path / "lake" / "lines" / "stream=s" / "generation=1" / "batch=0"

    for content in (1, 2):
        sink.write(workshop.spark.range(content), key=key)
        assert len(pl.read_ndjson(folder / "*.json")) == 1, "a complete folder stays as it is"
    (folder / "_SUCCESS").unlink()
    sink.write(workshop.spark.range(3), key=key)

    assert len(pl.read_ndjson(folder / "*.json")) == 3
    assert (folder / "_SUCCESS").is_file()


WORDS = (
    "  padded\t ",
    'a "quoted" one',
    "back\\slash",
    'both \\" of them',
    "a,b",
    "two\nlines",
    "",
    None,
    "é",
    "#",
    "'",
)
MOMENT = datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)


def test_values_come_back_from_files_as_they_were_written(with_files: Workshop, tmp_path: Path) -> None:
    """Read by others: nothing is trimmed, cut or escaped in a way that only Spark knows."""
    schema = "id LONG, word STRING, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, price DECIMAL(9, 3)"
    local, price = MOMENT.replace(tzinfo=None), Decimal("12.340")
    content = [(number, word, MOMENT, local, MOMENT.date(), price) for number, word in enumerate(WORDS)]
    rows = with_files.spark.createDataFrame(content, schema).coalesce(1)
    key = PublicationKey(stream="s", generation=1, batch=0)
    for kind in ("csv", "json"):
        declared = FilesOutput.model_validate({"connection": "lake", "path": kind, "format": kind})
        connection = with_files.settings.connection("lake", FilesConnection)
        FilesSink(output=kind, declared=declared, connection=connection).write(rows, key=key)

    (sheet,) = (tmp_path / "lake" / "csv").rglob("*.csv")
    (lines,) = (tmp_path / "lake" / "json").rglob("*.json")
    with sheet.open(newline="") as file:
        header, *read = list(csv.reader(file))
    assert header == rows.columns
    texts = ["2026-03-29T01:30:00.123456Z", "2026-03-29T01:30:00.123456", "2026-03-29", "12.340"]
    assert read == [[str(number), word or "", *texts] for number, word in enumerate(WORDS)]
    empty, nothing = (line for line in sheet.read_text().splitlines() if line.startswith(("6,", "7,")))
    assert (empty.split(",")[1], nothing.split(",")[1]) == ('""', "")
    objects = [json.loads(line, parse_float=Decimal) for line in lines.read_text().splitlines()]
    assert objects == [
        dict(zip(header, (number, word, *texts[:3], price), strict=True)) for number, word in enumerate(WORDS)
    ]
    kafka = KafkaConnection(kind="kafka", bootstrap_servers="127.0.0.1:1")
    sink = KafkaSink(output="o", declared=KafkaOutput(connection="k", topic="t"), connection=kafka)
    (record,) = sink.records(rows.limit(1)).collect()
    assert json.loads(record["value"])["at"] == texts[0]


@pytest.mark.full  # every run appends to one above
def test_an_overwritten_delta_table_is_empty_when_the_result_is(with_files: Workshop, tmp_path: Path) -> None:
    sink = DeltaSink(
        output="o",
        declared=DeltaOutput(connection="lake", path="totals", mode="overwrite"),
        connection=with_files.settings.connection("lake", FilesConnection),
    )
    lease = HeldLease(stream="s", token=1)
    lease.renewed(asked_at_seconds=lease.now_seconds())
    run = DeliveringRun(stream="s", generation=1, run_id="r", token=1)
    delivery = SinkDelivery(run=run, tables=None, sinks=[sink], lease=lease)
    folder = str(tmp_path / "lake" / "totals")

    delivery.deliver(with_files.spark.range(3).toDF("id"), 0)
    assert with_files.spark.read.format("delta").load(folder).count() == 3
    assert delivery.deliver(with_files.spark.range(0).toDF("id"), 1).rows == {"o": 0}

    assert with_files.spark.read.format("delta").load(folder).count() == 0


def test_an_output_that_raises_ends_the_run_with_its_place(workshop: Workshop) -> None:
    stream, source = f"s{workshop.namespace}", workshop.declare_table("source", COLUMNS)
    python = """
        def transform(records):
            return records

        def note(rows, batch):
            raise OSError("the disk is full")
    """
    workshop.declare_stream(
        stream,
        python=python,
        inputs={"records": {"stream": {"iceberg": {"table": source}}}},
        outputs={"called": {"python": {"function": f"{stream}.py:note"}}},
    )
    workshop.append("source", [{"id": 1, "word": "one"}])

    with pytest.raises(DeliveryError, match=rf"{stream}:1:0: the function {stream}.py:note raised OSError: the disk"):
        workshop.run(stream)


@pytest.mark.parametrize(
    ("declared", "mismatch"),
    [
        ({"topic_column": "absent"}, "topic_column absent is not one of its columns, which are id, word, nested"),
        ({"topic_column": "id"}, "topic_column id is bigint, and a topic's name is a string"),
        ({"topic": "t", "key_column": "nested"}, "key_column nested is array<string>, which has no text"),
        ({"topic": "t", "headers_column": "word"}, "headers_column word is string, and headers are map<string,string>"),
    ],
)
def test_rows_that_fit_no_record_are_refused(declared: dict[str, Any], mismatch: str) -> None:
    columns = {"id": LongType(), "word": StringType(), "nested": ArrayType(StringType())}
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    connection = KafkaConnection(kind="kafka", bootstrap_servers="127.0.0.1:1")
    output = KafkaOutput.model_validate({"connection": "c", **declared})
    assert [*KafkaSink(output="o", declared=output, connection=connection).mismatches(schema)] == [mismatch]


def test_a_run_that_lost_its_lease_writes_nothing(workshop: Workshop) -> None:
    stream = f"s{workshop.namespace}"
    sink = memory_sink("kept", stream)
    lease = HeldLease(stream=stream, token=1)
    lease.renewed(asked_at_seconds=lease.now_seconds())
    run = DeliveringRun(stream=stream, generation=1, run_id="r1", token=1)
    writer = SinkDelivery(run=run, tables=None, sinks=[sink], lease=lease)
    delivery = BatchHandover(gate=BatchGate(), writer=writer)

    delivery(workshop.spark.range(1), 0)
    lease.lost("another run has the lease")
    with pytest.raises(LeaseLostError):
        delivery(workshop.spark.range(1), 1)

    assert [key.batch for key in kept_rows(stream, "kept")] == [0]
    assert isinstance(delivery.failure, LeaseLostError)


LOOKING = """
    from pathlib import Path

    def transform(records):
        return {{"lake": records, "called": records}}

    def look(rows, batch):
        spark = rows.sparkSession
        spark.sql("REFRESH TABLE {table}")
        visible = spark.table("{table}").count()
        with (Path(__file__).parent / "looks.txt").open("a") as file:
            file.write(f"{{visible}} ")
"""


def test_a_sink_gets_a_batch_when_its_table_has_it_and_never_what_the_table_refused(workshop: Workshop) -> None:
    stream, source = f"s{workshop.namespace}", workshop.declare_table("source", COLUMNS)
    target = workshop.declare_table("target", COLUMNS, required=["id"])
    inputs: dict[str, Any] = {"records": {"stream": {"iceberg": {"table": source, "max_files_per_batch": 1}}}}
    workshop.declare_stream(
        stream,
        python=LOOKING.format(table=f"{workshop.settings.catalog.name}.{target}"),
        inputs=inputs,
        outputs={
            "lake": {"iceberg": {"table": target}},
            "called": {"python": {"function": f"{stream}.py:look"}},
        },
        mode="continuous",
        trigger={"processing_time": "100 milliseconds"},
    )
    for number in range(2):
        workshop.append("source", [{"id": number, "word": "x"}])
    workshop.run(stream, stop_when=lambda batch: batch.key.batch == 1)
    workshop.append("source", [{"id": None, "word": "nobody"}])
    with pytest.raises(DeliveryError, match=f"{stream}:1:2"):
        workshop.run(stream, stop_after_batches=1)

    assert (workshop.folder / "looks.txt").read_text().split() == ["1", "2"]
