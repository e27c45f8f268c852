"""The streams that are damaged: one of each kind, with input that each of its twins gets too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import duckdb
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.fixtures.workshop import Workshop

from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.run_values import DesiredState
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import client_settings
from sluice.supervision.stream_reset import reset_stream

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
COLUMNS = {"id": "long", "kind": "string", "at": "timestamptz"}
ROWS_OF_A_FILE = 4


class Kind(StrEnum):
    """A append from Kafka. I append from a table. W windowed count, RocksDB. H de-duplication, HDFS-backed.
    G aggregation with MERGE, RocksDB. T two outputs."""

    A = "A"
    I = "I"  # noqa: E741  # the name of the review's cells
    W = "W"
    H = "H"
    G = "G"
    T = "T"


def rows_of(number: int) -> list[dict[str, Any]]:
    """The rows of one file: ten minutes later than the one before it, each with a twin of an earlier one."""
    at = NOON + timedelta(minutes=10 * number)
    new = [
        {"id": ROWS_OF_A_FILE * number + place, "kind": f"k{place % 3}", "at": at} for place in range(ROWS_OF_A_FILE)
    ]
    again = [{"id": ROWS_OF_A_FILE * (number - 1), "kind": "k0", "at": at}] if number else []
    return new + again


_FROM_KAFKA = """
    SELECT CAST(get_json_object(decode(value, 'UTF-8'), '$.id') AS BIGINT) id,
           get_json_object(decode(value, 'UTF-8'), '$.kind') kind,
           CAST(get_json_object(decode(value, 'UTF-8'), '$.at') AS TIMESTAMP) at
    FROM records
"""
_WINDOWS = """
    from pyspark.sql import functions as F

    def transform(records):
        counted = records.groupBy(F.window("at", "10 minutes").alias("w"), "kind").agg(F.count("*").alias("id"))
        return counted.select("id", "kind", F.col("w.start").alias("at"))
"""
_DISTINCT = """
    def transform(records):
        return records.dropDuplicatesWithinWatermark(["id"])
"""
_SUMS = """
    from pyspark.sql import functions as F

    def transform(records):
        return records.groupBy("kind").agg(F.sum("id").alias("id"), F.max("at").alias("at"))
"""
_BOTH = """
    def transform(records):
        return {"first": records, "second": records.where("id % 2 = 0")}
"""
_WATERMARK = {"watermark": {"column": "at", "delay": "5 minutes"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One stream with its input and its targets. suffix: of its names; a test may have several. state: how it keeps its
    state, beside its kind's way."""

    workshop: Workshop
    kind: Kind
    suffix: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stream(self) -> str:
        """Its name."""
        return f"s{self.workshop.namespace}{self.suffix}"

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of its tables."""
        outputs = ("first", "second") if self.kind is Kind.T else ("main",)
        return tuple(self.workshop.table_name(f"{output}{self.suffix}") for output in outputs)

    @property
    def checkpoint(self) -> Path:
        """The folder of its checkpoint."""
        return self.workshop.checkpoint(self.stream)

    def declare(self) -> None:
        """Declare it, with empty tables."""
        for target in self.targets:
            self.workshop.declare_table(target.partition(".")[2], COLUMNS)
        outputs = {
            target.partition(".")[2].removesuffix(self.suffix): {
                "iceberg": {"table": target, **_MODES.get(self.kind, {})}
            }
            for target in self.targets
        }
        if self.kind is Kind.A:
            self._declare_on_kafka(outputs)
            return
        source = self.workshop.declare_table(f"source{self.suffix}", COLUMNS)
        records = {"stream": {"iceberg": {"table": source, "max_files_per_batch": 1}}}
        state: dict[str, Any] = {**self.state, **({"provider": "hdfs"} if self.kind is Kind.H else {})}
        how: dict[str, Any] = {**_CODE[self.kind], **({"state": state} if state else {})}
        self.workshop.declare_stream(
            self.stream,
            inputs={"records": records | (_WATERMARK if self.kind in (Kind.W, Kind.H) else {})},
            outputs=outputs,
            **how,
        )

    def _declare_on_kafka(self, outputs: Mapping[str, Any]) -> None:
        admin = AdminClient(self._client())
        admin.create_topics([NewTopic(self.topic, num_partitions=1, replication_factor=1)])[self.topic].result()
        source = {"connection": "flights_kafka", "topics": [self.topic], "max_offsets_per_batch": ROWS_OF_A_FILE + 1}
        self.workshop.declare_stream(
            self.stream, sql=_FROM_KAFKA, inputs={"records": {"stream": {"kafka": source}}}, outputs=dict(outputs)
        )

    @property
    def topic(self) -> str:
        """The topic of kind A."""
        return f"t{self.workshop.namespace}{self.suffix}"

    def _client(self) -> Any:
        return client_settings(self.workshop.settings.connection("flights_kafka", KafkaConnection))

    def feed(self, files: Sequence[int]) -> None:
        """Write input files, or as many records."""
        if self.kind is not Kind.A:
            for number in files:
                self.workshop.append(f"source{self.suffix}", rows_of(number))
            return
        producer = Producer(self._client())
        for row in (row for number in files for row in rows_of(number)):
            producer.produce(self.topic, value=json.dumps(row, default=str).encode(), partition=0)
        assert producer.flush(30) == 0

    def run(self, **how: Any) -> None:
        """Run it over what is there, and record its batches as its driver does."""
        self.workshop.run(self.stream, is_recorded=True, **how)

    def reset(self) -> None:
        """Open its next generation."""
        with self.at_rest():
            stream = self.workshop.stream(self.stream)
            reset_stream(self.workshop.ledger, stream, self.workshop.settings, asked_by="a test")

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Stopped while a block runs."""
        set_desired_state(self.workshop.ledger, self.stream, DesiredState.STOPPED)
        yield
        set_desired_state(self.workshop.ledger, self.stream, DesiredState.RUNNING)

    def content(self) -> tuple[tuple[Any, ...], ...]:
        """The rows of all its tables by another engine, in order."""
        found: list[tuple[Any, ...]] = []
        for output, target in enumerate(self.targets):
            rows = self.workshop.table(target).scan().to_arrow()  # noqa: F841  # DuckDB reads it by its name
            query = 'SELECT ?, id, kind, epoch_ms("at") FROM rows ORDER BY ALL'
            found += duckdb.execute(query, [output]).fetchall()
        return tuple(found)


_CODE: Mapping[Kind, Mapping[str, Any]] = {
    Kind.I: {"sql": "SELECT * FROM records"},
    Kind.W: {"python": _WINDOWS},
    Kind.H: {"python": _DISTINCT},
    Kind.G: {"python": _SUMS},
    Kind.T: {"python": _BOTH},
}
_MODES: Mapping[Kind, Mapping[str, Any]] = {Kind.G: {"mode": "merge", "keys": ["kind"]}}
