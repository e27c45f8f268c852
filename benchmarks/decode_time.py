"""Declared JSON values with a quarantine beside `from_json` written by hand without one, by turns on one stack.

    .venv/bin/python -m benchmarks.decode_time [--rows 300000] [--wide-rows 50000] [--batches 4] [--rounds 3]

Records go from Kafka into an Iceberg table. By hand: `from_json`, which rounds and converts silently, and Iceberg's own
streaming sink. Sluice: `value: {format: json}` and `quarantine: true`, staged delivery. *small* records have four
fields, *wide* ones forty, with lists and structs. Of the records of one more way, *1 in 1000 rejected*, a share is
malformed; its table holds fewer rows and is not compared. What the others hold is compared before any time counts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.delivery_time import Bench, kafka_of
from benchmarks.paired_turns import Limit, Trigger, Turn, print_turns, processor_seconds, speed, take_turns
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.faults.dying_driver import submit_arguments
from tests.fixtures.stack import Stack, stack_in
from tests.fixtures.workshop import Workshop

from sluice.declarations.column_types import parse_column_type
from sluice.declarations.engine_declaration import StateDeclaration
from sluice.ledger.connection import open_ledger
from sluice.sources.kafka_clients import client_settings, spark_options
from sluice_spark.session.session import open_session
from sluice_spark.session.spark_types import spark_type

LIMITS = (Limit(way="declared", what="speed of batches", figure=speed, least=1.0),)

Record = Callable[[int], dict[str, Any]]

SMALL = {"id": "long", "word": "string", "amount": "double", "at": "timestamptz"}
WIDE = {
    "id": "long",
    **{f"text_{number}": "string" for number in range(12)},
    **{f"whole_{number}": "long" for number in range(10)},
    **{f"number_{number}": "double" for number in range(6)},
    **{f"is_{number}": "boolean" for number in range(4)},
    **{f"at_{number}": "timestamptz" for number in range(3)},
    "tags": "list<string>",
    "customer": "struct<name: string, street: string, zip: int>",
    "lines": "list<struct<item: long, price: double>>",
    "notes": "string",
}


_EXPECTED: dict[str, tuple[Any, ...]] = {}
"""What the table of a topic holds, by the topic: for the way whose own table is not compared."""


def small_record(number: int) -> dict[str, Any]:
    """A record of four fields."""
    at = f"2026-01-01T00:{number % 60:02}:00Z"
    return {"id": number, "word": f"word {number % 97}", "amount": number / 7, "at": at}


def wide_record(number: int) -> dict[str, Any]:
    """A record of forty fields, some of them with fields of their own."""
    return {
        "id": number,
        **{f"text_{index}": f"text {(number + index) % 89}" for index in range(12)},
        **{f"whole_{index}": number * index for index in range(10)},
        **{f"number_{index}": (number + index) / 7 for index in range(6)},
        **{f"is_{index}": (number + index) % 2 == 0 for index in range(4)},
        **{f"at_{index}": f"2026-01-01T{index:02}:{number % 60:02}:00.{number % 1000:03}Z" for index in range(3)},
        "tags": [f"tag {index}" for index in range(number % 4)],
        "customer": {"name": f"name {number % 977}", "street": "a street", "zip": number % 100000},
        "lines": [{"item": index, "price": index / 3} for index in range(number % 3)],
        "notes": None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One kind of records, in a topic. malformed: a topic in which one of a thousand is no JSON."""

    columns: Mapping[str, str]
    topic: str
    malformed: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """The ways of decoding the records of one shape."""

    bench: Bench
    shape: Shape

    def by_hand(self) -> Turn:
        """`from_json` and Iceberg's own sink."""
        bench, shape = self.bench, self.shape
        workshop = bench.workshop()
        target = workshop.declare_table("target", dict(shape.columns))
        schema = ", ".join(
            f"{name} {spark_type(parse_column_type(kind)).simpleString()}" for name, kind in shape.columns.items()
        )
        reader = bench.spark.readStream.format("kafka").option("subscribe", shape.topic)
        reader = reader.options(**spark_options(kafka_of(bench.stack))).option("startingOffsets", "earliest")
        parsed = reader.option("maxOffsetsPerTrigger", shape.rows).load()
        rows = parsed.selectExpr(f"from_json(CAST(value AS STRING), '{schema}') AS v").select("v.*")
        checkpoint = (bench.folder / workshop.namespace / "by-hand").as_uri()
        writer = rows.writeStream.format("iceberg").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        return bench.turn_by_hand(writer, workshop, target, content=lambda: self._content(workshop, target))

    def declared(self, *, topic: str | None = None) -> Turn:
        """The same as one declares it, with a quarantine."""
        bench, shape = self.bench, self.shape
        workshop = bench.workshop()
        target = workshop.declare_table("target", dict(shape.columns))
        columns = [{"name": name, "type": kind} for name, kind in shape.columns.items()]
        source = {
            "connection": "flights_kafka",
            "topics": [topic or shape.topic],
            "max_offsets_per_batch": shape.rows,
            "value": {"format": "json", "columns": columns},
        }
        stream = f"s{workshop.namespace}"
        workshop.declare_stream(
            stream,
            sql=f"SELECT {', '.join(shape.columns)} FROM records",  # noqa: S608  # names of this module
            inputs={"records": {"stream": {"kafka": source}}},
            outputs={"copies": {"iceberg": {"table": target}}},
            quarantine=True,
        )
        began, used = time.monotonic(), processor_seconds()
        batches = workshop.run(stream).batches
        seconds, used = time.monotonic() - began, processor_seconds() - used
        triggers = [
            Trigger(number=batch.key.batch, started_at=batch.started_at, duration_ms=float(batch.duration_ms))
            for batch in batches
        ]
        content = self._content(workshop, target) if topic is None else self._expected()
        turn = bench.turn(triggers, seconds=seconds, content=content)
        return replace(turn, processor_seconds=used)

    def _content(self, workshop: Workshop, target: str) -> tuple[Any, ...]:
        """The rows and the sum of their hashes."""
        table = self.bench.spark.table(f"{workshop.settings.catalog.name}.{target}")
        found = table.selectExpr("count(*)", "sum(CAST(xxhash64(*) AS DECIMAL(38, 0)))").collect()[0]
        _EXPECTED[self.shape.topic] = tuple(found)
        return tuple(found)

    def _expected(self) -> tuple[Any, ...]:
        return _EXPECTED[self.shape.topic]


def fill(stack: Stack, record: Record, *, rows: int, malformed_every: int = 0) -> str:
    """A topic of two partitions with so many JSON records; its name."""
    name = f"b{uuid4().hex}"
    admin = AdminClient(client_settings(kafka_of(stack)))
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    producer = Producer(
        {**client_settings(kafka_of(stack)), "linger.ms": 50, "queue.buffering.max.messages": 2_000_000}
    )
    for number in range(rows):
        value = json.dumps(record(number))
        if malformed_every and number % malformed_every == 0:
            value = value[:-1]
        producer.produce(name, value=value, partition=number % 2)
        producer.poll(0)
        if number % 10_000 == 0:
            producer.flush(300)
    if left := producer.flush(300):
        raise SystemExit(f"{left} records did not reach the broker")
    return name


def shape_of(stack: Stack, columns: Mapping[str, str], record: Record, *, rows: int, batches: int) -> Shape:
    """A shape with its topics filled."""
    topic = fill(stack, record, rows=rows * batches)
    malformed = fill(stack, record, rows=rows * batches, malformed_every=1000)
    return Shape(columns=columns, topic=topic, malformed=malformed, rows=rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; ends with 1 when two ways leave different tables, or a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000, help="small records of a batch")
    parser.add_argument("--wide-rows", type=int, default=50_000, help="wide records of a batch")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    turns: dict[str, dict[str, list[Turn]]] = {}
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        stack.up(("postgres", "seaweedfs", "kafka"))
        settings = stack.settings()
        os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(settings, is_bounded=False)
        os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers that decode need our packages
        shapes = {
            "small": shape_of(stack, SMALL, small_record, rows=options.rows, batches=options.batches),
            "wide": shape_of(stack, WIDE, wide_record, rows=options.wide_rows, batches=options.batches),
        }
        spark = open_session(settings, name="benchmark", state=StateDeclaration())
        with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
            for name, shape in shapes.items():
                bench = Bench(
                    spark=spark,
                    stack=stack,
                    ledger=ledger,
                    folder=Path(folder),
                    topic=shape.topic,
                    rows=shape.rows,
                    batches=options.batches,
                )
                ways = Decoding(bench=bench, shape=shape)
                turns[name] = take_turns(
                    {
                        "by hand": ways.by_hand,
                        "declared": ways.declared,
                        "1 in 1000 rejected": lambda ways=ways: ways.declared(topic=ways.shape.malformed),  # type: ignore[misc]  # bound now
                    },
                    rounds=options.rounds,
                )
        spark.stop()
    are_met = [print_turns(f"{name} records", found, LIMITS) for name, found in turns.items()]
    return 0 if all(are_met) else 1


if __name__ == "__main__":
    sys.exit(main())
