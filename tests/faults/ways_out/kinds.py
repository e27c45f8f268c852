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
from sluice.publication.staged_batch import staging_name
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import client_settings
from sluice.supervision.stream_reset import reset_stream

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
COLUMNS = {"id": "long", "kind": "string", "at": "timestamptz"}
ROWS_OF_A_FILE = 4


class Kind(StrEnum):
    """A append from Kafka. I append from a table. W windowed count, RocksDB. H de-duplication, HDFS-backed.
    G aggregation with MERGE, RocksDB. T two outputs.

    J outer join of two streams. S session windows, RocksDB that writes whole files. P a processor with timers.
    D de-duplication on RocksDB by a continuous stream. M two outputs with a state each, HDFS-backed. K aggregation with
    MERGE from Kafka."""

    A = "A"
    I = "I"  # noqa: E741  # the name of the review's cells
    W = "W"
    H = "H"
    G = "G"
    T = "T"
    J = "J"
    S = "S"
    P = "P"
    D = "D"
    M = "M"
    K = "K"

    @property
    def is_on_kafka(self) -> bool:
        """Whether its input is a topic."""
        return self in (Kind.A, Kind.K)


def rows_of(number: int) -> list[dict[str, Any]]:
    """The rows of one file: ten minutes later than the one before it, each with a twin of an earlier one."""
    at = NOON + timedelta(minutes=10 * number)
    new = [
        {"id": ROWS_OF_A_FILE * number + place, "kind": f"k{place % 3}", "at": at} for place in range(ROWS_OF_A_FILE)
    ]
    again = [{"id": ROWS_OF_A_FILE * (number - 1), "kind": "k0", "at": at}] if number else []
    return new + again


def others_of(number: int) -> list[dict[str, Any]]:
    """The rows of a file of the second input: of every other new row, five minutes later. One of them is what the twin
    in the next file of the first input is joined with."""
    return [{**row, "at": row["at"] + timedelta(minutes=5)} for row in rows_of(number)[:ROWS_OF_A_FILE:2]]


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
_JOINED = """
    from pyspark.sql import functions as F

    def transform(records, others):
        left, right = records.alias("l"), others.alias("r")
        near = F.expr("l.id = r.id AND r.at BETWEEN l.at - INTERVAL 10 MINUTES AND l.at + INTERVAL 15 MINUTES")
        return left.join(right, near, "left").select("l.id", "r.kind", "l.at")
"""
_SESSIONS = """
    from pyspark.sql import functions as F

    def transform(records):
        gap = F.when(F.col("kind") == "k0", "12 minutes").otherwise("4 minutes")
        keys = (F.session_window("at", gap).alias("s"), "kind", F.floor(F.col("id") / 8))
        return records.groupBy(*keys).agg(F.count("*").alias("id")).select("id", "kind", F.col("s.start").alias("at"))
"""
_PROCESSED = """
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Totals(StatefulProcessor):
        # The total so far with each batch of a kind, and negative twelve minutes after its newest row.

        def init(self, handle):
            self.handle = handle
            self.total = handle.getValueState("total", "total BIGINT, at TIMESTAMP")

        def handleInputRows(self, key, rows, timerValues):
            found = list(rows)
            before = self.total.get()[0] if self.total.exists() else 0
            total, at = before + sum(row.id for row in found), max(row.at for row in found)
            self.total.update((total, at))
            self.handle.registerTimer(int(at.timestamp() * 1000) + 720_000)
            yield Row(id=total, kind=key[0], at=at)

        def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            total, at = self.total.get()
            yield Row(id=-total, kind=key[0], at=at)

        def close(self):
            pass

    def transform(records):
        return records.groupBy("kind").transformWithState(
            Totals(), "id BIGINT, kind STRING, at TIMESTAMP", "Append", "EventTime"
        )
"""
_BOTH_WITH_STATE = """
    from pyspark.sql import functions as F

    def transform(records):
        counted = records.groupBy(F.window("at", "10 minutes").alias("w"), "kind").agg(F.count("*").alias("id"))
        return {
            "first": counted.select("id", "kind", F.col("w.start").alias("at")),
            "second": records.dropDuplicatesWithinWatermark(["id"]),
        }
"""
_SUMS_OF_KAFKA = """
    from pyspark.sql import functions as F

    def transform(records):
        value = F.from_json(F.col("value").cast("string"), "id BIGINT, kind STRING, at TIMESTAMP").alias("row")
        return records.select(value).groupBy("row.kind").agg(F.sum("row.id").alias("id"), F.max("row.at").alias("at"))
"""


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
        outputs = ("first", "second") if self.kind in (Kind.T, Kind.M) else ("main",)
        return tuple(self.workshop.table_name(f"{output}{self.suffix}") for output in outputs)

    @property
    def stagings(self) -> tuple[str, ...]:
        """The names of its staging tables."""
        outputs = (target.partition(".")[2].removesuffix(self.suffix) for target in self.targets)
        return tuple(staging_name(self.stream, output) for output in outputs)

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
        inputs = {"records": self._topic()} if self.kind.is_on_kafka else dict(self._tables())
        state = {**_STATES.get(self.kind, {}), **self.state}
        how: dict[str, Any] = {**_CODE[self.kind], **({"state": state} if state else {})}
        self.workshop.declare_stream(self.stream, inputs=inputs, outputs=outputs, **how)

    def _tables(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Its inputs with their declarations, beside empty tables."""
        for name, table in _INPUTS.get(self.kind, {"records": "source"}).items():
            source = self.workshop.declare_table(f"{table}{self.suffix}", COLUMNS)
            records = {"stream": {"iceberg": {"table": source, "max_files_per_batch": 1}}}
            late = {"watermark": {"column": "at", "delay": "5 minutes"}} if self.kind in _WITH_WATERMARK else {}
            yield name, records | late

    def _topic(self) -> Mapping[str, Any]:
        """Its input's declaration, beside an empty topic."""
        admin = AdminClient(self._client())
        admin.create_topics([NewTopic(self.topic, num_partitions=1, replication_factor=1)])[self.topic].result()
        source = {"connection": "flights_kafka", "topics": [self.topic], "max_offsets_per_batch": ROWS_OF_A_FILE + 1}
        return {"stream": {"kafka": source}}

    @property
    def topic(self) -> str:
        """The topic of a stream from Kafka."""
        return f"t{self.workshop.namespace}{self.suffix}"

    def _client(self) -> Any:
        return client_settings(self.workshop.settings.connection("flights_kafka", KafkaConnection))

    def feed(self, files: Sequence[int]) -> None:
        """Write input files, or as many records."""
        if not self.kind.is_on_kafka:
            for number in files:
                self.workshop.append(f"source{self.suffix}", rows_of(number))
                if self.kind is Kind.J:
                    self.workshop.append(f"others{self.suffix}", others_of(number))
            return
        producer = Producer(self._client())
        for row in (row for number in files for row in rows_of(number)):
            producer.produce(self.topic, value=json.dumps(row, default=str).encode(), partition=0)
        assert producer.flush(30) == 0

    def run(self, **how: Any) -> None:
        """Run it over what is there, and record its batches as its driver does."""
        if self.kind is Kind.D:  # it goes on until it is stopped
            newest = self.workshop.table(f"source{self.suffix}").metadata.current_snapshot_id
            how = {"stop_when": lambda batch: str(newest) in json.dumps(dict(batch.end_offsets)), **how}
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
    Kind.A: {"sql": _FROM_KAFKA},
    Kind.I: {"sql": "SELECT * FROM records"},
    Kind.W: {"python": _WINDOWS},
    Kind.H: {"python": _DISTINCT},
    Kind.G: {"python": _SUMS},
    Kind.T: {"python": _BOTH},
    Kind.J: {"python": _JOINED},
    Kind.S: {"python": _SESSIONS},
    Kind.P: {"python": _PROCESSED},
    Kind.D: {"python": _DISTINCT, "mode": "continuous", "trigger": {"processing_time": "100 milliseconds"}},
    Kind.M: {"python": _BOTH_WITH_STATE},
    Kind.K: {"python": _SUMS_OF_KAFKA},
}
_MERGED = {"mode": "merge", "keys": ["kind"]}
_MODES: Mapping[Kind, Mapping[str, Any]] = {Kind.G: _MERGED, Kind.K: _MERGED}
_STATES: Mapping[Kind, Mapping[str, Any]] = {
    Kind.H: {"provider": "hdfs"},
    Kind.S: {"changelog": False},
    Kind.M: {"provider": "hdfs"},
}
_INPUTS: Mapping[Kind, Mapping[str, str]] = {Kind.J: {"records": "source", "others": "others"}}
"""Each input with its table, where it is not one."""

_WITH_WATERMARK = frozenset({Kind.W, Kind.H, Kind.J, Kind.S, Kind.P, Kind.D, Kind.M})
