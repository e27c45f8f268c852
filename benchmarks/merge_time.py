"""Merges of few changes into a large table, beside the same MERGE written by hand, quiet and while it is compacted.

    .venv/bin/python -m benchmarks.merge_time [--rows 5000000] [--changes 10000] [--rounds 4] [--json]

Every batch changes rows of the same two of fifty partitions, as the newest days of a table of facts are changed, and
adds some. By hand: `foreachBatch` with MERGE INTO, with the partition as a key only, and with the touched partitions
named, as one learns to write it. Sluice: mode `merge`, with staging, the fence and the mark. Each has a table of its
own with the same rows; they take turns, each round begins with another one, and the first round is a warm-up. Then the
same while the table is compacted and expired continuously: how many of the sent MERGEs were rejected (the conflict
rate), and how long a batch takes until it is in the table. A rejected MERGE is retried, in the hand-written way too.

Ends with 1 when the tables differ, or changes are not in them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tests.fixtures.spark_submit import submit_arguments
from tests.fixtures.stack import Stack, stack_in
from tests.fixtures.workshop import Workshop

from sluice.declarations.run_declaration import StateDeclaration
from sluice.ledger.connection import Ledger, open_ledger
from sluice.publication.crash_points import CrashPoint
from sluice_spark.session.columns import sums_of_rows
from sluice_spark.session.session import open_session

COLUMNS = {"id": "long", "region": "long", "amount": "double", "changed_by": "long", "note": "string"}
REGIONS = 50
TOUCHED_REGIONS = 2
ONE_IS_NEW_OF = 10

MOST_TRIES = 20
"""So often a MERGE by hand is tried, as Sluice's own is."""

PAUSE_SECONDS = 0.5
"""Between two compactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """One batch: how long its trigger took until it was in the table, and how many MERGEs were sent and refused.

    open_ms: how long the MERGE that was taken could have been refused: from the look at the table to its commit.
    """

    trigger_ms: float
    open_ms: float
    sent: int
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of merging. source, target: its own tables. merge: brings what is new in the source into the target."""

    name: str
    source: str
    target: str
    merge: Callable[[], Merged]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where the ways run. rows: of each table. changes: of each batch."""

    workshop: Workshop
    rows: int
    changes: int

    @property
    def spark(self) -> SparkSession:
        """The one session."""
        return self.workshop.spark

    def qualified(self, table: str) -> str:
        """A table's name in Spark."""
        return f"{self.workshop.settings.catalog.name}.{table}"

    def tables(self, name: str) -> tuple[str, str]:
        """A source without rows, and a target with all of them."""
        source = self.workshop.declare_table(f"{name}_source", COLUMNS)
        target = self.workshop.declare_table(name, COLUMNS, partitioning=[{"column": "region"}])
        region = f"id % {REGIONS} AS region"
        rows = self.spark.range(self.rows).selectExpr(
            "id", region, "id / 7 AS amount", "-1L AS changed_by", "'n' AS note"
        )
        rows.repartition("region").sortWithinPartitions("region").writeTo(self.qualified(target)).append()
        return source, target

    def changed_rows(self, number: int) -> DataFrame:
        """The rows of a batch: nine of ten have keys that the table holds, spread over its partitions."""
        in_region = self.rows // REGIONS
        step = max(1, in_region * TOUCHED_REGIONS // self.changes)
        there = f"(id DIV {TOUCHED_REGIONS} * {step} + {number}) % {in_region}"
        place = f"IF(id % {ONE_IS_NEW_OF} = 0, {in_region} + {number * self.changes} + id, {there})"
        rows = self.spark.range(self.changes).selectExpr(f"{place} AS place", f"id % {TOUCHED_REGIONS} AS region", "id")
        return rows.selectExpr(
            f"place * {REGIONS} + region AS id", "region", "id / 3 AS amount", f"{number}L AS changed_by", "'c' AS note"
        )

    def by_hand(self, name: str, *, names_partitions: bool) -> Way:
        """The merge as one writes it with PySpark."""
        source, target = self.tables(name)
        checkpoint = (self.workshop.folder.parent / f"{name}-by-hand").as_uri()
        sent: list[float] = []

        def merge_batch(batch: DataFrame, _number: int) -> None:
            view = f"{name}_batch"
            batch.createOrReplaceTempView(view)
            condition = "t.region = b.region AND t.id = b.id"
            if names_partitions:
                regions = [str(row[0]) for row in batch.select("region").distinct().collect()]
                condition += f" AND t.region IN ({', '.join(regions)})"
            merge = (
                f"MERGE INTO {self.qualified(target)} t USING {view} b ON {condition} WHEN MATCHED THEN UPDATE SET * "
            )
            _send_until_taken(batch.sparkSession, merge + "WHEN NOT MATCHED THEN INSERT *", sent)

        def merge() -> Merged:
            sent.clear()
            rows = self.spark.readStream.format("iceberg").load(self.qualified(source))
            writer = rows.writeStream.foreachBatch(merge_batch).option("checkpointLocation", checkpoint)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            took = [one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"]]
            return Merged(trigger_ms=float(sum(took)), open_ms=sent[-1], sent=len(sent), refused=len(sent) - 1)

        return Way(name=_SPOKEN[name], source=source, target=target, merge=merge)

    def by_sluice(self, name: str) -> Way:
        """The merge as one declares it."""
        source, target = self.tables(name)
        stream = f"s{self.workshop.namespace}"
        self.workshop.declare_stream(
            stream,
            sql="SELECT * FROM changes",
            inputs={"changes": {"stream": {"iceberg": {"table": source}}}},
            outputs={"rows": {"iceberg": {"table": target, "mode": "merge", "keys": ["region", "id"]}}},
        )

        def merge() -> Merged:
            passed: dict[CrashPoint, list[float]] = {CrashPoint.CHECKED: [], CrashPoint.MERGED: []}

            def note(point: CrashPoint) -> None:
                passed.setdefault(point, []).append(time.monotonic())

            result = self.workshop.run(stream, reached=note)
            checked, merged = passed[CrashPoint.CHECKED], passed[CrashPoint.MERGED]
            return Merged(
                trigger_ms=float(sum(batch.duration_ms for batch in result.batches)),
                open_ms=(merged[-1] - checked[-1]) * 1000,
                sent=len(checked),
                refused=len(checked) - len(merged),
            )

        return Way(name=_SPOKEN[name], source=source, target=target, merge=merge)

    @contextmanager
    def compacting(self, target: str) -> Iterator[None]:
        """Compact and expire a table all the time while the block runs. A writer that commits first wins."""
        over = threading.Event()
        session = self.spark.newSession()
        catalog, table = self.workshop.settings.catalog.name, self.qualified(target)
        calls = (
            f"rewrite_data_files(table => '{table}', options => map('min-input-files', '2', 'rewrite-all', 'true'), "
            f"where => 'region < {TOUCHED_REGIONS}')",
            f"expire_snapshots(table => '{table}', older_than => timestamp '2099-01-01', retain_last => 10)",
        )

        def compact() -> None:
            while not over.wait(PAUSE_SECONDS):
                for call in calls:
                    try:
                        session.sql(f"CALL {catalog}.system.{call}").collect()
                    except (PySparkException, Py4JError):  # lost the race
                        continue

        thread = threading.Thread(target=compact, name="compaction", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def content(self, target: str) -> tuple[Any, ...]:
        """The rows and the sums of their hashes, for the comparison, and how many a batch has changed."""
        table = self.spark.table(self.qualified(target))
        return tuple(table.agg(*sums_of_rows(table), fn.count_if(fn.col("changed_by") >= 0)).collect()[0])


_SPOKEN = {"plain": "by hand", "bounded": "by hand, partitions named", "sluice": "sluice"}


def _send_until_taken(session: SparkSession, merge: str, sent: list[float]) -> None:
    """Send a MERGE until it is taken, and note how long each one took."""
    for turn in range(MOST_TRIES):
        began = time.monotonic()
        try:
            session.sql(merge)
        except (PySparkException, Py4JError):
            if turn == MOST_TRIES - 1:
                raise
        else:
            return
        finally:
            sent.append((time.monotonic() - began) * 1000)


def take_turns(
    bench: Bench, ways: Sequence[Way], *, numbers: range, is_compacted: bool, tick: Callable[[], None]
) -> dict[str, list[Merged]]:
    """Bring every batch into every table, each round beginning with another way."""
    found: dict[str, list[Merged]] = defaultdict(list)
    for number in numbers:
        place = number % len(ways)
        for way in (*ways[place:], *ways[:place]):
            bench.changed_rows(number).coalesce(1).writeTo(bench.qualified(way.source)).append()
            with bench.compacting(way.target) if is_compacted else nullcontext():
                if is_compacted:
                    time.sleep(PAUSE_SECONDS * 4)  # so that a compaction is under way
                found[way.name].append(way.merge())
            phase = "compacted" if is_compacted else "quiet"
            sys.stderr.write(f"{phase}, batch {number}, {way.name}: {found[way.name][-1]}\n")
            tick()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the table")
    parser.add_argument("--changes", type=int, default=10_000, help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=4, help="measured rounds, quiet and compacted")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(arguments)
    most = options.rows // REGIONS * TOUCHED_REGIONS
    if options.changes > most:
        parser.error(
            f"--changes {options.changes}: {TOUCHED_REGIONS} partitions have {most} keys of {options.rows} rows"
        )
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        stack.up(("postgres", "seaweedfs"))
        settings = stack.settings()
        os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(settings)
        spark = open_session(settings, name="benchmark", state=StateDeclaration(), names_call_sites=False)
        with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
            workshop = _workshop(Path(folder), spark, stack, ledger)
            bench = Bench(workshop=workshop, rows=options.rows, changes=options.changes)
            found, contents = _measured(bench, rounds=options.rounds)
        spark.stop()
    are_equal = len(set(contents.values())) == 1 and all(content[-1] > 0 for content in contents.values())
    if options.json:
        document = {
            phase: {name: list(map(asdict, of_way)) for name, of_way in ways.items()} for phase, ways in found.items()
        }
        print(json.dumps(document | {"tables_are_equal": are_equal}, indent=1))  # noqa: T201  # the answer of the program
    else:
        _print(found, title=f"{options.changes} changes merged into {options.rows} rows", are_equal=are_equal)
    return 0 if are_equal else 1


def _measured(bench: Bench, *, rounds: int) -> tuple[dict[str, dict[str, list[Merged]]], dict[str, tuple[Any, ...]]]:
    with Progress(console=Console(stderr=True)) as progress:
        filling = progress.add_task("tables filled", total=3)
        openings: list[Callable[[], Way]] = [
            partial(bench.by_hand, "plain", names_partitions=False),
            partial(bench.by_hand, "bounded", names_partitions=True),
            partial(bench.by_sluice, "sluice"),
        ]
        ways = []
        for opening in openings:
            ways.append(opening())
            progress.advance(filling)
        merging = progress.add_task("batches merged", total=len(ways) * (2 * rounds + 1))
        turns = partial(take_turns, bench, ways, tick=partial(progress.advance, merging))
        turns(numbers=range(1), is_compacted=False)
        found = {"quiet": turns(numbers=range(1, rounds + 1), is_compacted=False)}
        found["compacted"] = turns(numbers=range(rounds + 1, 2 * rounds + 1), is_compacted=True)
    return found, {way.name: bench.content(way.target) for way in ways}


def _workshop(folder: Path, spark: SparkSession, stack: Stack, ledger: Ledger) -> Workshop:
    namespace = f"n{uuid4().hex[:12]}"
    pipelines = folder / namespace / "pipelines"
    pipelines.mkdir(parents=True)
    checkpoints = (folder / namespace / "checkpoints").as_uri()
    settings = stack.settings().model_copy(update={"pipelines": pipelines, "checkpoints": checkpoints})
    return Workshop(spark=spark, settings=settings, ledger=ledger, namespace=namespace)


def _print(found: dict[str, dict[str, list[Merged]]], *, title: str, are_equal: bool) -> None:
    table = Table(title=title if are_equal else f"{title}: THE TABLES DIFFER")
    for heading in (
        "table",
        "way",
        "median batch ms",
        "speed",
        "open to refusal ms",
        "MERGEs sent",
        "refused",
        "conflict rate",
        "most for a batch",
    ):
        table.add_column(heading)
    for phase, ways in found.items():
        base = _median_ms(ways[_SPOKEN["plain"]])
        for name in _SPOKEN.values():
            sent, refused = sum(one.sent for one in ways[name]), sum(one.refused for one in ways[name])
            table.add_row(
                phase,
                name,
                f"{_median_ms(ways[name]):.0f}",
                f"{base / _median_ms(ways[name]):.2f}x",
                f"{statistics.median(one.open_ms for one in ways[name]):.0f}",
                f"{sent}",
                f"{refused}",
                f"{refused / sent:.2f}",
                f"{max(one.sent for one in ways[name])}",
            )
        table.add_section()
    Console(width=140).print(table)


def _median_ms(merged: Sequence[Merged]) -> float:
    return statistics.median(one.trigger_ms for one in merged)


if __name__ == "__main__":
    sys.exit(main())
