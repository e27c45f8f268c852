"""What a table of many small files costs its readers, before and after its maintenance.

    .venv/bin/python -m benchmarks.many_files [--files 10000] [--manifests 1000] [--rows 400] [--rounds 3] [--json]

The table is written as a stream writes it that never rests: each commit adds a few small files in a manifest of their
own, with rows of every value. Then `TableMaintenance` runs until it finds nothing due; it declares `strategy: sort`.
The snapshot before and the newest one are read by turns, in one warm session of Spark, from the same object store:

    planning            Iceberg lists the files of a scan of everything
    aggregate           sums over all rows
    unpruned filter     a condition that the bounds of no file rule out
    selective filter    a range of a hundredth of the ids, by which the table is sorted: the bytes of the files it reads

Rows are compared first. Ends with 1 when they differ, when a second look finds more to do, or a limit is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tests.fixtures.spark_submit import submit_arguments
from tests.fixtures.stack import stack_in

from sluice.cli.cli_context import open_cli_context
from sluice.declarations.run_declaration import StateDeclaration
from sluice.maintenance.run_maintenance import TableMaintenance, open_maintenance
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table
from sluice_spark.maintenance import SparkProcedures, contents_of
from sluice_spark.session.jvm import jvm_of
from sluice_spark.session.session import open_session

TABLE = "bench.many_files"
PLANNING, AGGREGATE, UNPRUNED = "planning", "aggregate", "unpruned filter"
LEAST_TIMES: Mapping[str, float] = {PLANNING: 10, AGGREGATE: 3, UNPRUNED: 5}
"""How many times the seconds of afterwards each takes before, at least."""

MOST_BYTES_PART = 1 / 8
"""What the selective filter reads afterwards, as a part of before, at most."""

_MOST_RUNS = 20
_FORGOTTEN_EVERY = 25
_SPARED = 7_919
"""A prime: numbers in its steps reach every id, so that each file has small and large ones."""

_DECLARATION: Mapping[str, Any] = {
    "table": TABLE,
    "description": "many small files",
    "owner": "benchmark",
    "columns": [{"name": name, "type": kind} for name, kind in (("id", "long"), ("word", "string"), ("part", "long"))],
    "partitioning": [{"column": "part"}],
    "sort_order": [{"column": "id"}],
    "maintenance": {
        "compaction": {"strategy": "sort", "target_file_bytes": "1MiB"},
        "manifest_rewrite": {"min_manifests": 20},
        "expiry": None,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Reads one snapshot of the table. rows: of the table."""

    spark: SparkSession
    qualified: str
    snapshot: int
    rows: int

    def plan(self) -> int:
        """List the files of a scan of everything; how many there are."""
        jvm = jvm_of(self.spark)
        table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self.spark._jsparkSession, self.qualified)
        files = table.newScan().useSnapshot(self.snapshot).planFiles()
        try:
            return int(jvm.org.apache.iceberg.relocated.com.google.common.collect.Iterables.size(files))
        finally:
            files.close()

    def aggregate(self) -> Any:
        """Sums over all rows."""
        return self._of().agg(fn.count(fn.lit(1)), fn.sum("id"), fn.max("word")).first()

    def filter_unpruned(self) -> Any:
        """A condition on a column whose bounds are the same in every file."""
        return self._of().where("word LIKE '%77%'").agg(fn.count(fn.lit(1)), fn.sum("id")).first()

    def selective_bytes(self) -> int:
        """The size of the files that a range of a hundredth of the ids reads."""
        first = self.rows // 2
        found = self._of().where(f"id BETWEEN {first} AND {first + self.rows // 100}")
        names = [row[0] for row in found.select("_file").distinct().collect()]
        sizes = {
            row["file_path"]: row["file_size_in_bytes"]
            for row in self.spark.read.option("versionAsOf", str(self.snapshot))
            .table(f"{self.qualified}.files")
            .collect()
        }
        return sum(sizes[name] for name in names)

    def _of(self) -> DataFrame:
        return self.spark.read.option("versionAsOf", str(self.snapshot)).table(self.qualified)


def fill(settings: Any, *, files: int, manifests: int, rows: int) -> int:
    """Append the small files; the snapshot with them."""
    table, each = open_catalog(settings).load_table(TABLE), files // manifests
    total, schema = files * rows, table.schema().as_arrow()
    for number in track(range(manifests), description="Appending", console=Console(stderr=True)):
        first = number * each * rows
        ids = [place * _SPARED % total for place in range(first, first + each * rows)]
        parts = [place % each for place in range(each * rows)]
        columns: list[pa.Array[Any]] = [pa.array(ids), pa.array([_word(one) for one in ids]), pa.array(parts)]
        table.append(pa.Table.from_arrays(columns, schema=schema))
        if number % _FORGOTTEN_EVERY == 0:  # metadata of all of them would cost each further one more
            table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    return table.refresh().metadata.current_snapshot_id or 0


def _word(number: int) -> str:
    """A text that does not compress to nothing, so that the table has more than one file of the target size."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def maintain(maintenance: TableMaintenance, procedures: SparkProcedures) -> int:
    """Maintain the table until nothing is due; how many runs that took."""
    for run in range(_MOST_RUNS):
        if not maintenance.plan(TABLE).has_work:
            return run
        done = maintenance.maintain(TABLE, procedures)
        for step in done.operations:
            sys.stderr.write(f"run {run + 1}: {step.step} {step.outcome}, {step.explanation}\n")
    raise SystemExit(f"something is still due after {_MOST_RUNS} runs: {maintenance.plan(TABLE).due}")


def by_turns(before: Reading, after: Reading, *, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Of each way of reading the seconds before and after, by turns; the first round is a warm-up."""
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in LEAST_TIMES}
    for number in range(rounds + 1):
        for way, pair in found.items():
            took = (_seconds(_way(before, way)), _seconds(_way(after, way)))
            if number:
                pair.append(took)
    return found


def _way(reading: Reading, way: str) -> Callable[[], object]:
    return {PLANNING: reading.plan, AGGREGATE: reading.aggregate, UNPRUNED: reading.filter_unpruned}[way]


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--manifests", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=400, help="rows of a file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        pipelines = Path(folder) / "pipelines"
        pipelines.mkdir()
        (pipelines / f"{TABLE}.table.yaml").write_text(yaml.safe_dump(dict(_DECLARATION)))
        stack.up(("postgres", "seaweedfs"))
        environment = {**stack.environment(), "SLUICE_PIPELINES": str(pipelines)}
        with patch.dict(os.environ, environment), open_cli_context() as ctx:
            for loaded in ctx.declarations.tables.values():
                create_or_evolve_table(open_catalog(ctx.settings), loaded.declaration)
            old = fill(ctx.settings, files=options.files, manifests=options.manifests, rows=options.rows)
            os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(ctx.settings, memory_gib=4)
            spark = open_session(ctx.settings, name="benchmark", state=StateDeclaration(), names_call_sites=False)
            maintenance = open_maintenance(ctx.settings, ctx.ledger, ctx.declarations, launched_by="bench")
            catalog = ctx.settings.catalog.name
            runs = maintain(maintenance, SparkProcedures(catalog=catalog, table=TABLE, open_session=lambda: spark))
            table = open_catalog(ctx.settings).load_table(TABLE)
            new, qualified = table.metadata.current_snapshot_id or 0, f"{catalog}.{TABLE}"
            contents = contents_of(spark, qualified, (old, new), is_hashed=True)
            rows = options.files * options.rows
            before, after = (Reading(spark=spark, qualified=qualified, snapshot=one, rows=rows) for one in (old, new))
            pairs = by_turns(before, after, rounds=options.rounds)
            read = (before.selective_bytes(), after.selective_bytes())
            files = (before.plan(), after.plan())
            spark.stop()
    times = {way: statistics.median(one / other for one, other in pair) for way, pair in pairs.items()}
    is_met = all(times[way] >= least for way, least in LEAST_TIMES.items()) and read[1] <= MOST_BYTES_PART * read[0]
    are_equal = contents[old] == contents[new]
    if options.json:
        figures = {"times": times, "bytes": read, "files": files, "runs": runs, "are_equal": are_equal}
        sys.stdout.write(f"{json.dumps(figures)}\n")
    else:
        _print(pairs, times, read, files, runs=runs, are_equal=are_equal)
    return 0 if are_equal and is_met else 1


def _print(
    pairs: Mapping[str, Sequence[tuple[float, float]]],
    times: Mapping[str, float],
    read: tuple[int, int],
    files: tuple[int, int],
    *,
    runs: int,
    are_equal: bool,
) -> None:
    title = f"{files[0]} files become {files[1]} in {runs} runs of maintenance, {os.cpu_count()} cores"
    shown = Table("", "before", "after", "times", "at least", title=title)
    for way, pair in pairs.items():
        before, after = (statistics.median(one[place] for one in pair) for place in (0, 1))
        shown.add_row(way, f"{before:.2f} s", f"{after:.2f} s", f"{times[way]:.1f}", f"{LEAST_TIMES[way]:g}")
    mebibytes = [f"{one / 1024**2:.1f} MiB" for one in read]
    shown.add_row("selective filter", *mebibytes, f"{read[0] / read[1]:.1f}", f"{1 / MOST_BYTES_PART:g}")
    shown.add_row("rows", "the same" if are_equal else "OTHER ROWS", "", "", "")
    Console(width=110).print(shown)


if __name__ == "__main__":
    sys.exit(main())
