"""A stream of a real Kinesis-compatible server is read to the record: limits, restarts, reshards, replays.

Every test run reads Kinesis in the matrix (`test_matrix.py`), and its shards without Spark
(`test_kinesis_shards.py`).
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from tests.fixtures.kinesis import Kinesis
from tests.fixtures.workshop import Workshop

READ = """
def transform(records):
    return records.selectExpr("string(data) text", "shard", "sequence_number")
"""


@pytest.fixture
def reader(workshop: Workshop, kinesis: Kinesis) -> Workshop:
    """A workshop whose deployment has the Kinesis."""
    connections = {**workshop.settings.connections, "kinesis": kinesis.connection}
    settings = workshop.settings.model_copy(update={"connections": connections})
    return Workshop(spark=workshop.spark, settings=settings, ledger=workshop.ledger, namespace=workshop.namespace)


def declare(reader: Workshop, name: str, **more: Any) -> str:
    """Declare a stream of the records into a table of its own."""
    stream = f"k{uuid4().hex[:12]}"
    table = reader.declare_table(stream, {"text": "string", "shard": "string", "sequence_number": "string"})
    source = {"connection": "kinesis", "stream": name, **more}
    inputs = {"records": {"stream": {"kinesis": source}}}
    how: dict[str, Any] = (
        {"mode": "continuous", "trigger": {"processing_time": "1 second"}} if "max_records_per_batch" in more else {}
    )
    reader.declare_stream(stream, python=READ, inputs=inputs, outputs={"main": {"iceberg": {"table": table}}}, **how)
    return stream


def texts(reader: Workshop, stream: str) -> list[str]:
    """What the stream's table holds."""
    return sorted(row["text"] for row in reader.rows(stream))


@pytest.mark.full  # every run: Kinesis in the matrix
def test_records_arrive_once_across_limits_restarts_a_reshard_and_a_replay(reader: Workshop, kinesis: Kinesis) -> None:
    name = kinesis.create_stream(shards=1)
    limited, latest = declare(reader, name, max_records_per_batch=3), declare(reader, name, starting="latest")
    kinesis.put(name, "0", "1", "2", "3")
    assert [batch.input_rows for batch in reader.run(limited, stop_after_batches=2).batches] == [3, 1]
    assert sum(batch.input_rows for batch in reader.run(latest).batches) == 0

    (parent,) = kinesis.shards(name)
    kinesis.split(name, parent)
    kinesis.put(name, "4", "5", "6")
    reader.forget_last_commit(limited)
    assert [batch.input_rows for batch in reader.run(limited, stop_after_batches=2).batches] == [1, 3]
    reader.run(latest)

    assert texts(reader, limited) == ["0", "1", "2", "3", "4", "5", "6"]
    assert texts(reader, latest) == ["4", "5", "6"]
    assert len({row["shard"] for row in reader.rows(limited)}) == 3


@pytest.mark.full  # every run: a password of a database (`test_sources.py`)
def test_the_secret_is_in_no_plan(reader: Workshop, kinesis: Kinesis, capfd: pytest.CaptureFixture[str]) -> None:
    from sluice_spark.query.stream_plan import plan_stream

    name = kinesis.create_stream(shards=1)
    secret = kinesis.connection.model_copy(update={"secret_access_key": "Pl4nted-s3cret"})
    settings = reader.settings.model_copy(update={"connections": {"kinesis": secret}})
    plan_stream(reader.spark, reader.stream(declare(reader, name)), settings).rows.explain(mode="extended")
    assert "sluice_kinesis" in (told := capfd.readouterr().out)
    assert "Pl4nted" not in told
