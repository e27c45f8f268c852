"""What it costs to put the small files of a table together: with PyArrow, and with a Spark that is warm already.

    .venv/bin/python -m benchmarks.binpack_time [--files 200] [--rows 500] [--rounds 3] [--json]

Tables of the same rows, in four partitions, get the same small files before each turn. *PyArrow* is
`TableMaintenance.maintain_without_spark`, in this process. *Warm Spark* is the same maintenance with Iceberg's
procedure and the comparison of all rows, in a session that has done both before. *A command* is `sluice table maintain`
in a process of its own; *a command with Spark* the same for a table that PyArrow must not rewrite, for which an
application starts: once, before the others, which begin when that application has ended.

Processor time is that of all processes of the stack, the services included. The rows of all tables are compared first,
by Spark. Ends with 1 when they differ, a table was not compacted, or the ratio to a warm Spark is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import psutil
import pyarrow as pa
import yaml
from benchmarks.idle_tables import processes_of, processor_seconds
from rich.console import Console
from rich.table import Table
from tests.fixtures.spark_submit import submit_arguments
from tests.fixtures.stack import Stack, stack_in

from sluice.cli.cli_context import CliContext, open_cli_context
from sluice.declarations.run_declaration import StateDeclaration
from sluice.ledger.maintenance_runs import MaintenanceStep, StepObservation, StepOutcome, newest_maintenance
from sluice.maintenance.maintenance_steps import TableMaintainer
from sluice.maintenance.run_maintenance import open_maintenance
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table
from sluice_spark.maintenance import SparkProcedures, contents_of
from sluice_spark.session.session import open_session

LEAST_TIMES = 2.5
"""How many times the processor seconds of PyArrow a warm Spark takes at least."""

_MOST_LINGERING_SECONDS = 300
PARTITIONS = 4
HERE, WARM, COMMAND, COLD = "PyArrow", "warm Spark", "a command", "a command with Spark"
BY_SPARK = {"write.parquet.bloom-filter-enabled.column.id": "true"}
TABLES = {HERE: "bench.here", WARM: "bench.warm", COMMAND: "bench.command", COLD: "bench.cold"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a turn took: by the clock, and of the processor in all processes."""

    seconds: float
    processor_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Four tables of a stack. files: that a table gets before each turn. rows: of each file."""

    ctx: CliContext
    stack: Stack
    files: int
    rows: int
    sluice: Path = Path(sys.executable).parent / "sluice"

    def fill(self, way: str, number: int) -> None:
        """Append small files to a table."""
        table = open_catalog(self.ctx.settings).load_table(TABLES[way])
        each = self.rows * PARTITIONS
        for place in range(self.files // PARTITIONS):
            first = (number * self.files + place) * each
            ids = range(first, first + each)
            columns: list[pa.Array[Any]] = [pa.array(ids, pa.int64()), pa.array([f"word {one}" for one in ids])]
            columns.append(pa.array([one % PARTITIONS for one in ids], pa.int64()))
            table.append(pa.Table.from_arrays(columns, names=["id", "word", "part"]))

    def here(self) -> None:
        """Maintain without Spark, in this process."""
        maintenance = open_maintenance(self.ctx.settings, self.ctx.ledger, self.ctx.declarations, launched_by="bench")
        maintenance.maintain_without_spark(TABLES[HERE])

    def warm(self, open_spark: Callable[[], object]) -> None:
        """Rewrite and compare with the session that is open."""
        name = TABLES[WARM]
        maintenance = open_maintenance(self.ctx.settings, self.ctx.ledger, self.ctx.declarations, launched_by="bench")
        plan = maintenance.plan(name)
        steps = tuple(replace(step, is_for_spark=True) for step in plan.due)
        procedures = SparkProcedures(catalog="lakehouse", table=name, open_session=open_spark)  # type: ignore[arg-type]
        table = open_catalog(self.ctx.settings).load_table(name)
        maintainer = TableMaintainer(
            name=name, table=table, procedures=procedures, before_step=lambda _: None, identity=uuid4().hex
        )
        _require_done(name, maintainer.carry_out(replace(plan, steps=steps))[0])

    def command(self, way: str) -> None:
        """Maintain by the command line."""
        subprocess.run([self.sluice, "table", "maintain", TABLES[way]], check=True, capture_output=True)  # noqa: S603
        run = newest_maintenance(self.ctx.ledger, TABLES[way])
        if run is None:
            raise SystemExit(f"{TABLES[way]} was not maintained")
        rewrite = next(one for one in run.operations if one.step is MaintenanceStep.REWRITE_DATA_FILES)
        _require_done(TABLES[way], rewrite)

    def with_spark(self) -> Cost:
        """What a command takes that starts an application, which has ended when this returns: one that ended later
        would take its processor time out of that of another turn."""
        earlier = self._jvms()
        cost = self.cost_of(lambda: self.command(COLD))
        _, left = psutil.wait_procs(self._jvms() - earlier, timeout=_MOST_LINGERING_SECONDS)
        if left:
            raise SystemExit(f"the application did not end within {_MOST_LINGERING_SECONDS} s: {left}")
        return cost

    def _jvms(self) -> set[psutil.Process]:
        return {process for process in processes_of(self.stack) if process.name() == "java"}

    def cost_of(self, work: Callable[[], object]) -> Cost:
        """What some work takes."""
        began, used = time.monotonic(), processor_seconds(self.stack)
        work()
        return Cost(seconds=time.monotonic() - began, processor_seconds=processor_seconds(self.stack) - used)


def _require_done(name: str, step: StepObservation) -> None:
    if step.outcome is not StepOutcome.DONE:
        raise SystemExit(f"the files of {name} were not put together: {step}")


def _declaration(way: str) -> Mapping[str, object]:
    return {
        "table": TABLES[way],
        "description": "small files",
        "owner": "benchmark",
        "columns": [
            {"name": name, "type": kind} for name, kind in (("id", "long"), ("word", "string"), ("part", "long"))
        ],
        "partitioning": [{"column": "part"}],
        "properties": BY_SPARK if way == COLD else {},
        "maintenance": {"manifest_rewrite": None, "expiry": None},
    }


def _measured(bench: Bench, rounds: int) -> tuple[dict[str, list[Cost]], bool]:
    """The costs of each way, and whether all tables hold the same rows afterwards."""
    settings = bench.ctx.settings
    os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(settings)
    spark = open_session(settings, name="benchmark", state=StateDeclaration(), names_call_sites=False)
    ways: dict[str, Callable[[], None]] = {
        HERE: bench.here,
        WARM: lambda: bench.warm(lambda: spark),
        COMMAND: lambda: bench.command(COMMAND),
    }
    bench.fill(COLD, 0)
    costs: dict[str, list[Cost]] = {**{way: [] for way in ways}, COLD: [bench.with_spark()]}
    for number in range(rounds + 1):
        for way, work in ways.items():
            bench.fill(way, number)
            cost = bench.cost_of(work)
            if number:  # the first turn is a warm-up
                costs[way].append(cost)
            sys.stderr.write(f"round {number}: {way}: {cost}\n")
    for number in range(1, rounds + 1):
        bench.fill(COLD, number)
    catalog = open_catalog(settings)
    contents = set()
    for name in TABLES.values():
        newest = catalog.load_table(name).metadata.current_snapshot_id or 0
        contents.add(contents_of(spark, f"lakehouse.{name}", [newest], is_hashed=True)[newest])
    spark.stop()
    return costs, len(contents) == 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=200, help="files that a table gets before each turn")
    parser.add_argument("--rows", type=int, default=500, help="rows of a file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        pipelines = Path(folder) / "pipelines"
        pipelines.mkdir()
        for way, name in TABLES.items():
            (pipelines / f"{name}.table.yaml").write_text(yaml.safe_dump(_declaration(way)))
        stack.up(("postgres", "seaweedfs"))
        environment = {**stack.environment(), "SLUICE_PIPELINES": str(pipelines)}
        with patch.dict(os.environ, environment), open_cli_context() as ctx:
            for loaded in ctx.declarations.tables.values():
                create_or_evolve_table(open_catalog(ctx.settings), loaded.declaration)
            bench = Bench(ctx=ctx, stack=stack, files=options.files, rows=options.rows)
            costs, are_equal = _measured(bench, options.rounds)
    used = {way: statistics.median(cost.processor_seconds for cost in of_way) for way, of_way in costs.items()}
    times = used[WARM] / used[HERE]
    if options.json:
        sys.stdout.write(f"{json.dumps({'processor_seconds': used, 'times': times, 'are_equal': are_equal})}\n")
    else:
        _print(costs, used, times, are_equal=are_equal, files=options.files)
    return 0 if are_equal and times >= LEAST_TIMES else 1


def _print(
    costs: Mapping[str, Sequence[Cost]], used: Mapping[str, float], times: float, *, are_equal: bool, files: int
) -> None:
    shown = Table(title=f"{files} small files put together, {os.cpu_count()} cores")
    for heading in ("", "seconds", "processor seconds"):
        shown.add_column(heading, justify="left" if not heading else "right")
    for way, of_way in costs.items():
        shown.add_row(way, f"{statistics.median(cost.seconds for cost in of_way):.1f}", f"{used[way]:.2f}")
    shown.add_section()
    shown.add_row("a warm Spark takes", f"{times:.1f} times", f"at least {LEAST_TIMES:g}")
    shown.add_row("a command takes", f"1/{used[COLD] / used[COMMAND]:.1f}", "of one with Spark")
    shown.add_row("the tables hold", "the same rows" if are_equal else "OTHER ROWS", "")
    Console(width=110).print(shown)


if __name__ == "__main__":
    sys.exit(main())
