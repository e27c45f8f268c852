"""Declared values with a quarantine beside Spark's own readers without one, by turns on one stack.

    .venv/bin/python -m benchmarks.decode_time [--full] [--only small wide files] [--mode incremental] [--rounds 3]

Records go into an Iceberg table, from Kafka or from files. By hand: `from_json`, or Spark's reader of csv and JSON,
which round and convert silently, and Iceberg's own streaming sink. Sluice: a declared format with `quarantine: true`,
staged delivery. *small* records have four fields, *wide* ones forty, with lists and structs; Avro and Protobuf hold
the same records as the JSON that is read by hand; those of *undeclared fields* have two fields more. Of the records
of one more way, *1 in 1000 rejected*, a share is malformed; its table holds fewer rows and is not compared. What the
others hold is compared before any time counts.

`--full` drains 1,200,000 small and 200,000 wide records in each turn. In the mode `continuous` both run on a trigger of
processing time until all is read.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.decode_shapes import (
    SMALL,
    WIDE,
    Shape,
    avro_encoder,
    avro_schema,
    json_encoder,
    malformed,
    protobuf_encoder,
    protobuf_schema,
    small_record,
    wide_record,
    with_undeclared,
)
from benchmarks.delivery_time import Bench, kafka_of, open_bench
from benchmarks.paired_turns import Limit, Trigger, Turn, print_turns, processor_seconds, speed, take_turns
from pyspark.sql import DataFrame
from tests.fixtures.workshop import Workshop

from sluice.declarations.column_types import parse_column_type
from sluice.settings import FilesConnection
from sluice.sources.kafka_clients import spark_options
from sluice_spark.session.columns import spark_type, sums_of_rows

BY_HAND = "by hand"
LIMITS_OF_RECORDS = tuple(
    Limit(way=way, what="speed of batches", figure=speed, least=least)
    for way, least in (("json", 1.0), ("avro", 0.8), ("protobuf", 0.8))
)
LIMITS_OF_FILES = (Limit(way="declared", what="speed of batches", figure=speed, least=0.9),)

_CONTINUOUS = {"mode": "continuous", "trigger": {"processing_time": "1 second"}}


@dataclass(slots=True, kw_only=True)
class Decoding:
    """The ways of decoding the records of one shape. expected: what the table holds of the way that came first."""

    bench: Bench
    shape: Shape
    is_continuous: bool
    expected: tuple[Any, ...] = ()

    def by_hand(self, rows: Callable[[str], DataFrame]) -> Turn:
        """Rows as Spark reads them, and Iceberg's own sink. rows: of the columns as a Spark schema."""
        bench = self.bench
        workshop = bench.workshop()
        target = workshop.declare_table("target", dict(self.shape.columns))
        schema = ", ".join(
            f"{name} {spark_type(parse_column_type(kind)).simpleString()}" for name, kind in self.shape.columns.items()
        )
        checkpoint = (bench.folder / workshop.namespace / "by-hand").as_uri()
        writer = rows(schema).writeStream.format("iceberg").option("checkpointLocation", checkpoint)
        writer = writer.trigger(processingTime="1 second") if self.is_continuous else writer.trigger(availableNow=True)

        def content() -> tuple[Any, ...]:
            return self._content(workshop, target)

        return bench.turn_by_hand(writer, workshop, target, content=content, is_continuous=self.is_continuous)

    def from_json(self, topic: str) -> Turn:
        """Values of a topic by `from_json`."""
        reader = self.bench.spark.readStream.format("kafka").option("subscribe", topic)
        reader = reader.options(**spark_options(kafka_of(self.bench.stack))).option("startingOffsets", "earliest")
        records = reader.option("maxOffsetsPerTrigger", self.shape.rows).load()
        return self.by_hand(
            lambda schema: records.selectExpr(f"from_json(CAST(value AS STRING), '{schema}') AS v").select("v.*")
        )

    def from_files(self, folder: Path, form: str) -> Turn:
        """Files by Spark's own reader."""
        reader = (
            self.bench.spark.readStream.format(form).option("maxFilesPerTrigger", 2).option("header", form == "csv")
        )
        return self.by_hand(lambda schema: reader.schema(schema).load(folder.as_uri()))

    def declared(self, source: Mapping[str, Any], *, files: Mapping[str, str] | None = None, **compared: bool) -> Turn:
        """The same as one declares it, with a quarantine. files: beside the declaration."""
        bench = self.bench
        workshop = bench.workshop()
        for name, text in (files or {}).items():
            (workshop.folder / name).write_text(text)
        if "files" in source:
            workshop = _with_files(workshop, bench.folder)
        target = workshop.declare_table("target", dict(self.shape.columns))
        stream = f"s{workshop.namespace}"
        workshop.declare_stream(
            stream,
            sql=f"SELECT {', '.join(self.shape.columns)} FROM records",  # noqa: S608  # names of this module
            inputs={"records": {"stream": dict(source)}},
            outputs={"copies": {"iceberg": {"table": target}}},
            quarantine=True,
            **(_CONTINUOUS if self.is_continuous else {}),
        )
        began, used = time.monotonic(), processor_seconds()
        batches = workshop.run(stream, stop_after_batches=self.shape.batches if self.is_continuous else None).batches
        seconds, used = time.monotonic() - began, processor_seconds() - used
        triggers = [
            Trigger(number=batch.key.batch, started_at=batch.started_at, duration_ms=float(batch.duration_ms))
            for batch in batches
        ]
        content = self._content(workshop, target) if compared.get("is_compared", True) else self.expected
        return replace(bench.turn(triggers, seconds=seconds, content=content), processor_seconds=used)

    def of_topic(self, topic: str, value: Mapping[str, Any], **how: Any) -> Turn:
        """Values of a topic as declared."""
        source = {"connection": "flights_kafka", "topics": [topic], "max_offsets_per_batch": self.shape.rows}
        return self.declared({"kafka": {**source, "value": dict(value)}}, **how)

    def of_files(self, folder: Path, form: str) -> Turn:
        """Files as declared."""
        path = str(folder.relative_to(self.bench.folder))
        source = {"connection": "benchmark", "path": path, "format": form, "columns": self.columns}
        return self.declared({"files": {**source, "on_malformed": "quarantine", "max_files_per_batch": 2}})

    @property
    def columns(self) -> list[dict[str, str]]:
        """The columns as a declaration has them."""
        return [{"name": name, "type": kind} for name, kind in self.shape.columns.items()]

    def _content(self, workshop: Workshop, target: str) -> tuple[Any, ...]:
        """The rows and the sums of their hashes."""
        table = self.bench.spark.table(f"{workshop.settings.catalog.name}.{target}")
        found = tuple(table.agg(*sums_of_rows(table)).collect()[0])
        self.expected = self.expected or found
        return found


def _with_files(workshop: Workshop, folder: Path) -> Workshop:
    connections = {"benchmark": FilesConnection(kind="files", root=folder.as_uri()), **workshop.settings.connections}
    return replace(workshop, settings=workshop.settings.model_copy(update={"connections": connections}))


def ways_of_records(decoding: Decoding) -> dict[str, Callable[[], Turn]]:
    """The ways from Kafka, whose topics are filled now."""
    shape, stack = decoding.shape, decoding.bench.stack
    as_json = shape.topic(stack, json_encoder)
    with_malformed = shape.topic(stack, malformed(json_encoder, every=1000))
    with_others = shape.topic(stack, with_undeclared)
    as_avro = shape.topic(stack, avro_encoder(shape.columns))
    as_protobuf = shape.topic(stack, protobuf_encoder(shape.columns))
    declared = {"format": "json", "columns": decoding.columns}
    avsc, proto = json.dumps(avro_schema(shape.columns)), protobuf_schema(shape.columns)
    return {
        BY_HAND: lambda: decoding.from_json(as_json),
        "json": lambda: decoding.of_topic(as_json, declared),
        "avro": lambda: decoding.of_topic(
            as_avro, {"format": "avro", "schema_file": "shape.avsc"}, files={"shape.avsc": avsc}
        ),
        "protobuf": lambda: decoding.of_topic(
            as_protobuf, {"format": "protobuf", "schema_file": "shape.proto"}, files={"shape.proto": proto}
        ),
        "undeclared fields": lambda: decoding.of_topic(with_others, declared),
        "1 in 1000 rejected": lambda: decoding.of_topic(with_malformed, declared, is_compared=False),
    }


def ways_of_files(decoding: Decoding, form: str, name: str) -> dict[str, Callable[[], Turn]]:
    """The ways from files, which are written now."""
    folder = decoding.shape.files(decoding.bench.folder / "files" / f"{name}-{form}", form)
    return {BY_HAND: lambda: decoding.from_files(folder, form), "declared": lambda: decoding.of_files(folder, form)}


def warm_turns(ways: Mapping[str, Callable[[], Turn]], *, rounds: int) -> dict[str, list[Turn]]:
    """Turns after one of each way that does not count: the first turns of a JVM compile what the others use."""
    for turn in ways.values():
        turn()
    return take_turns(ways, rounds=rounds)


def measured(bench: Bench, options: argparse.Namespace) -> list[bool]:
    """Measure and print all that is asked for; of each table whether the limits are met."""
    batches = options.batches
    small = Shape(columns=SMALL, record=small_record, rows=options.rows, batches=batches)
    wide = Shape(columns=WIDE, record=wide_record, rows=options.wide_rows, batches=batches)
    met: list[bool] = []
    for name, shape in (("small", small), ("wide", wide)):
        ways = Decoding(bench=replace(bench, rows=shape.rows), shape=shape, is_continuous=options.mode == "continuous")
        if name in options.only:
            turns = warm_turns(ways_of_records(ways), rounds=options.rounds)
            met.append(print_turns(f"{name} records, {options.mode}", turns, LIMITS_OF_RECORDS))
        for form in ("csv", "json") if "files" in options.only else ():
            if name == "small" or form == "json":  # a line of csv has no lists
                turns = warm_turns(ways_of_files(replace(ways, expected=()), form, name), rounds=options.rounds)
                met.append(print_turns(f"{name} records in {form} files, {options.mode}", turns, LIMITS_OF_FILES))
    return met


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; ends with 1 when two ways leave different tables, or a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="1,200,000 small and 200,000 wide records in each turn")
    parser.add_argument("--rows", type=int, help="small records of a batch", default=100_000)
    parser.add_argument("--wide-rows", type=int, help="wide records of a batch", default=20_000)
    parser.add_argument("--only", nargs="+", choices=("small", "wide", "files"), default=("small", "wide", "files"))
    parser.add_argument("--mode", choices=("incremental", "continuous"), default="incremental")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    if options.full:
        options.rows, options.wide_rows = 300_000, 50_000
    with open_bench(rows=options.rows, batches=options.batches) as bench:
        met = measured(bench, options)
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
