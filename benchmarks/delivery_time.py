"""Batches delivered by Sluice beside the same stream written by hand, by turns on one stack and in one Spark.

    .venv/bin/python -m benchmarks.delivery_time [--rows 200000] [--batches 4] [--rounds 3]

The JVM is started as that of a continuous stream. *append*: JSON records from Kafka into a table. By hand: Iceberg's
own streaming sink (`toTable`), with checkpoint files as Spark writes them by itself. Sluice: staged delivery, batch by
batch and grouped. *stateful*: small batches of a windowed count, Sluice's state settings beside Spark's defaults,
both staged by Sluice, so that only the state differs. What the tables hold is compared before any time counts.

A round runs every way once, in changing order, each over all batches with a checkpoint of its own; the first batch of a
run is a warm-up and does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.paired_turns import (
    Limit,
    Trigger,
    Turn,
    files_part,
    print_turns,
    processor_seconds,
    speed,
    take_turns,
    trigger_part,
)
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter
from tests.fixtures.spark_submit import submit_arguments
from tests.fixtures.stack import Stack, stack_in
from tests.fixtures.workshop import Workshop

from sluice.declarations.run_declaration import StateDeclaration
from sluice.ledger.connection import Ledger, open_ledger
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import client_settings, spark_options
from sluice_spark.session.columns import sums_of_rows
from sluice_spark.session.session import open_session

COLUMNS = {"id": "long", "word": "string", "amount": "double", "at": "timestamptz"}
PARSED = "from_json(CAST(value AS STRING), 'id LONG, word STRING, amount DOUBLE, at TIMESTAMP')"
APPEND = f"SELECT v.* FROM (SELECT {PARSED} AS v FROM records)"  # noqa: S608  # both parts are constants
STATEFUL = """
    from pyspark.sql import functions as fn

    def transform(records):
        parsed = fn.expr("from_json(CAST(value AS STRING), 'id LONG, word STRING, at TIMESTAMP')")
        rows = records.select(parsed.alias("v")).select("v.*").withWatermark("at", "1 minute")
        counted = rows.groupBy(fn.window("at", "1 minute"), "word").agg(fn.count(fn.lit(1)).alias("rows"))
        return {"copies": counted.select(fn.col("window.start").alias("at"), "word", "rows")}
"""
SPARK_DEFAULTS = {"provider": "hdfs", "shuffle_partitions": 200}


_KEPT_PROGRESS = "spark.sql.streaming.numRecentProgressUpdates"
_CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"

LIMITS_OF_APPENDS = (
    Limit(way="sluice", what="speed of batches", figure=speed, least=0.95),
    Limit(way="sluice, grouped", what="speed of batches", figure=speed, least=1.0),
)
LIMITS_OF_STATE = (
    Limit(way="sluice's state", what="part of the trigger time", figure=trigger_part, most=0.1),
    Limit(way="sluice's state", what="part of the checkpoint's files", figure=files_part, most=0.05),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where the ways run."""

    spark: SparkSession
    stack: Stack
    ledger: Ledger
    folder: Path
    topic: str
    rows: int
    batches: int

    def workshop(self) -> Workshop:
        """Tables, declarations and checkpoints of one turn's own."""
        namespace = f"n{uuid4().hex[:12]}"
        pipelines = self.folder / namespace / "pipelines"
        pipelines.mkdir(parents=True)
        checkpoints = (self.folder / namespace / "checkpoints").as_uri()
        settings = self.stack.settings().model_copy(update={"pipelines": pipelines, "checkpoints": checkpoints})
        return Workshop(spark=self.spark, settings=settings, ledger=self.ledger, namespace=namespace)

    def by_hand(self, *, history: int = 0) -> Turn:
        """The stream as one writes it with PySpark and Iceberg's sink.

        Parameters
        ----------
        history: how many snapshots the table has before.
        """
        workshop = self.workshop()
        target = self.declare_target(workshop, history=history)
        checkpoint = self.folder / workshop.namespace / "by-hand"
        reader = self.spark.readStream.format("kafka").option("subscribe", self.topic)
        reader = reader.options(**spark_options(kafka_of(self.stack))).option("startingOffsets", "earliest")
        records = reader.option("maxOffsetsPerTrigger", self.rows).load()
        writer = records.selectExpr(f"{PARSED} AS v").select("v.*").writeStream.format("iceberg")
        writer = writer.option("checkpointLocation", checkpoint.as_uri()).trigger(availableNow=True)
        return self.turn_by_hand(writer, workshop, target, content=lambda: self._content(workshop, target))

    def turn_by_hand(
        self,
        writer: DataStreamWriter,
        workshop: Workshop,
        target: str,
        *,
        content: Callable[[], tuple[Any, ...]],
        is_continuous: bool = False,
    ) -> Turn:
        """Run a query into a table with Spark as it comes.

        Parameters
        ----------
        content: what the table holds, looked at after the time.
        is_continuous: whether the query is stopped when all is read; otherwise it ends by itself.
        """
        with self.settings_by_hand():
            began, used = time.monotonic(), processor_seconds()
            query = writer.toTable(f"{workshop.settings.catalog.name}.{target}")
            if is_continuous:
                query.processAllAvailable()
                query.stop()
            query.awaitTermination()
            seconds, used = time.monotonic() - began, processor_seconds() - used
        triggers = [
            Trigger(
                number=progress["batchId"],
                started_at=datetime.fromisoformat(progress["timestamp"]),
                duration_ms=float(progress["durationMs"]["triggerExecution"]),
            )
            for progress in query.recentProgress
        ]
        return replace(self.turn(triggers, seconds=seconds, content=content()), processor_seconds=used)

    @contextmanager
    def settings_by_hand(self) -> Iterator[None]:
        """Spark as it comes, with its own way of writing checkpoint files; its progress is kept until the end."""
        ours = {name: self.spark.conf.get(name) for name in (_KEPT_PROGRESS, _CHECKPOINT_MANAGER)}
        self.spark.conf.set(_KEPT_PROGRESS, str(self.batches + 2))
        self.spark.conf.unset(_CHECKPOINT_MANAGER)
        try:
            yield
        finally:
            for name, value in ours.items():
                self.spark.conf.set(name, str(value))

    def declare_target(self, workshop: Workshop, *, history: int = 0) -> str:
        """The table of one turn; its full name. history: how many snapshots it has already."""
        target = workshop.declare_table("target", COLUMNS)
        table = workshop.table(target)
        for _ in range(history):
            with table.transaction() as transaction, transaction.update_snapshot().fast_append():
                pass
        return target

    def by_sluice(self, *, history: int = 0, is_supervised: bool = False, **output: Any) -> Turn:
        """The stream as one declares it.

        Parameters
        ----------
        history: how many snapshots the table has before.
        is_supervised: whether it beats and records in the ledger meanwhile, as the driver of a run does.
        output: how it is delivered, in the words of a declaration.
        """
        workshop = self.workshop()
        target = self.declare_target(workshop, history=history)
        return self._run(workshop, target, {"sql": APPEND}, output, is_supervised=is_supervised)

    def stateful(self, defaults: bool) -> Turn:
        """A windowed count, with Sluice's state settings or with Spark's own."""
        workshop = self.workshop()
        target = workshop.declare_table("target", {"at": "timestamptz", "word": "string", "rows": "long"})
        parts: dict[str, Any] = {"state": SPARK_DEFAULTS} if defaults else {}
        return self._run(workshop, target, {"python": STATEFUL}, {}, **parts)

    def _run(
        self,
        workshop: Workshop,
        target: str,
        work: dict[str, str],
        output: dict[str, Any],
        *,
        is_supervised: bool = False,
        **parts: Any,
    ) -> Turn:
        source = {"connection": "flights_kafka", "topics": [self.topic], "max_offsets_per_batch": self.rows}
        stream = f"s{workshop.namespace}"
        workshop.declare_stream(
            stream,
            **work,
            inputs={"records": {"stream": {"kafka": {**source, "starting": "earliest"}}}},
            outputs={"copies": {"iceberg": {"table": target, **output}}},
            **parts,
        )
        return self.turn_of(workshop, stream, target, is_supervised=is_supervised)

    def turn_of(
        self, workshop: Workshop, stream: str, target: str, *, is_supervised: bool = False, is_recorded: bool = False
    ) -> Turn:
        """Run a declared stream once over all that is there."""
        began, used = time.monotonic(), processor_seconds()
        if is_supervised:
            batches = workshop.run_supervised(stream)
        else:
            batches = workshop.run(stream, is_recorded=is_recorded).batches
        seconds, used = time.monotonic() - began, processor_seconds() - used
        triggers = [
            Trigger(number=batch.key.batch, started_at=batch.started_at, duration_ms=float(batch.duration_ms))
            for batch in batches
        ]
        files = [file for file in workshop.checkpoint(stream).rglob("*") if file.is_file() and file.suffix != ".crc"]
        turn = self.turn(triggers, seconds=seconds, content=self._content(workshop, target))
        return replace(turn, files=len(files) / max(1, len(batches)), processor_seconds=used)

    def turn(self, triggers: Sequence[Trigger], *, seconds: float, content: tuple[Any, ...]) -> Turn:
        counted = sorted((one for one in triggers if 0 < one.number < self.batches), key=lambda one: one.number)
        return Turn(
            batches_ms=tuple(one.duration_ms for one in counted),
            busy_seconds=(counted[-1].ended_at - counted[0].started_at).total_seconds(),
            seconds=seconds,
            content=content,
        )

    def _content(self, workshop: Workshop, target: str) -> tuple[Any, ...]:
        """The rows and the sums of their hashes, for the comparison."""
        table = self.spark.table(f"{workshop.settings.catalog.name}.{target}")
        return tuple(table.agg(*sums_of_rows(table)).collect()[0])


@contextmanager
def open_bench(*, rows: int, batches: int) -> Iterator[Bench]:
    """A place for turns on a stack and in a Spark of their own, without a topic. rows: of a batch."""
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        stack.up(("postgres", "seaweedfs", "kafka"))
        settings = stack.settings()
        os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(settings, is_bounded=False)
        os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers that decode need our packages
        spark = open_session(settings, name="benchmark", state=StateDeclaration(), names_call_sites=False)
        with open_ledger(settings.ledger_url) as ledger:
            yield Bench(
                spark=spark, stack=stack, ledger=ledger, folder=Path(folder), topic="", rows=rows, batches=batches
            )
        spark.stop()


def kafka_of(stack: Stack) -> KafkaConnection:
    """The connection to the stack's broker."""
    return stack.settings().connection("flights_kafka", KafkaConnection)


def fill_topic(stack: Stack, *, rows: int) -> str:
    """A topic of two partitions with so many JSON records."""
    name = f"b{uuid4().hex}"
    admin = AdminClient(client_settings(kafka_of(stack)))
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    producer = Producer(
        {**client_settings(kafka_of(stack)), "linger.ms": 50, "queue.buffering.max.messages": 2_000_000}
    )
    for number in range(rows):
        record = {
            "id": number,
            "word": f"word {number % 97}",
            "amount": number / 7,
            "at": f"2026-01-01T00:{number % 60:02}:00Z",
        }
        producer.produce(name, value=json.dumps(record), partition=number % 2)
        producer.poll(0)
    left = producer.flush(300)
    if left:
        raise SystemExit(f"{left} records did not reach the broker")
    return name


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; ends with 1 when two ways leave different tables, or a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a batch from Kafka")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    with open_bench(rows=options.rows, batches=options.batches) as bench:
        bench = replace(bench, topic=fill_topic(bench.stack, rows=options.rows * options.batches))
        tiny = replace(bench, topic=fill_topic(bench.stack, rows=1_000 * options.batches), rows=1_000)
        appended = take_turns(
            {
                "by hand": bench.by_hand,
                "sluice": bench.by_sluice,
                "sluice, grouped": lambda: bench.by_sluice(publish_every="30 seconds"),
            },
            rounds=options.rounds,
        )
        counted = take_turns(
            {"Spark's state": lambda: tiny.stateful(True), "sluice's state": lambda: tiny.stateful(False)},
            rounds=max(1, options.rounds - 1),
        )
    are_met = [
        print_turns(f"{options.rows} rows a batch, appended", appended, LIMITS_OF_APPENDS),
        print_turns("1000 rows a batch, counted by window", counted, LIMITS_OF_STATE),
    ]
    return 0 if all(are_met) else 1


if __name__ == "__main__":
    sys.exit(main())
