"""What the hourly maintenance of many tables costs when most of them, or all, have nothing due.

    .venv/bin/python -m benchmarks.idle_tables [--tables 200] [--due 3] [--files 200] [--rounds 2] [--json]

*Nothing due*: all tables are looked at in one process, as the first task of the DAG `table_maintenance` does. No
application may be recorded in the ledger, and none may run.
*Some due*: files are appended to a few of the tables, all of them are looked at, and what is left is asked of the queue
and awaited. Its processor time stands beside that of as many maintenance runs, asked for without looking at any other
table: tables of the same shape, by turns, in the same application, which has had items for a warm-up. So both have a
warm JVM, and the difference is the cost of the idle tables. What an application that starts costs is shown beside it:
it is paid once, for however many tables.

Processor time is that of all processes: this one, the application, PostgreSQL, the catalog and the object store. The
tables are real, in the embedded services.

Ends with 1 when an application is recorded for tables with nothing due, more than one is for those with something due,
a step that is due was not done, or the time is beyond its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pyarrow as pa
import yaml
from rich.console import Console
from rich.table import Table
from tests.fixtures.stack import Stack, stack_in

from sluice.cli.cli_context import CliContext, open_cli_context
from sluice.declarations.run_declaration import EngineDeclaration
from sluice.ledger.applications import recent_applications
from sluice.ledger.maintenance_runs import MaintenanceStep, StepOutcome, newest_maintenance
from sluice.ledger.work_items import ask
from sluice.ledger.work_values import WorkState
from sluice.maintenance.due_tables import due_tables
from sluice.stack.environment import STACK_MARK
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table
from sluice.work.pools import EngineProfile
from sluice.work.requests import MaintainTable
from sluice.work.start_application import await_item

MOST_TIMES = 1.3
"""The processor time with the idle tables, as a multiple of that without them."""

WARM_UP_ROUNDS = 2
LINGERS = EngineProfile(engine=EngineDeclaration(kept_minutes=60))
"""The default engine settings, with an application that stays for all rounds."""

SEVERAL_DUE, NONE_DUE, WITHOUT = "some due", "nothing due", "without idle tables"
PARTITIONS = 4
"""Of each table; an append writes a file into each."""

_ROWS = 2_000
"""Of an append."""

_IDLE_APPENDS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a turn took: by the clock, and of the processor in all processes."""

    seconds: float
    processor_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The tables of a deployment.

    all_tables: those that are looked at together. due: those of them to which files are appended; beside, warming: as
    many of the same shape, which are not looked at together.
    """

    ctx: CliContext
    stack: Stack
    all_tables: Sequence[str]
    due: Sequence[str]
    beside: Sequence[str]
    warming: Sequence[str]
    files: int

    def look(self) -> tuple[str, ...]:
        """Look at all tables; those that are left for Spark."""
        return due_tables(self.ctx.settings, self.ctx.declarations, self.all_tables, launched_by="a benchmark")

    def make_due(self, tables: Sequence[str]) -> None:
        """Append small files to tables."""
        catalog = open_catalog(self.ctx.settings)
        for name in tables:
            table = catalog.load_table(name)
            for number in range(self.files // PARTITIONS):
                table.append(_rows(number))

    def maintain(self, tables: Sequence[str]) -> None:
        """Ask for the maintenance of tables, and wait for all of them."""
        queue = self.ctx.work_queue()
        items = ask(self.ctx.ledger, *(queue.item(MaintainTable(table=name), LINGERS) for name in tables))
        for number, item in enumerate(items):
            seen = await_item(queue, item, LINGERS, on_line=lambda _: None, beside=items[number + 1 :])
            if seen.state is not WorkState.DONE:
                raise SystemExit(f"the maintenance of {tables[number]} {seen.state}: {seen.failure}")
        for name in tables:
            self._require_compacted(name)

    def with_idle_tables(self) -> Cost:
        """Look at all tables, and maintain those that are due."""
        self.make_due(self.due)

        def work() -> None:
            left = self.look()
            if sorted(left) != sorted(self.due):  # they come by what they are worth
                raise SystemExit(f"due are {', '.join(self.due)}; left were {', '.join(left)}")
            self.maintain(left)

        return self._cost_of(work)

    def without_idle_tables(self) -> Cost:
        """Maintain as many tables of the same shape."""
        self.make_due(self.beside)
        return self._cost_of(lambda: self.maintain(self.beside))

    def nothing_due(self) -> Cost:
        """Look at all tables while none is due."""

        def work() -> None:
            if left := self.look():
                raise SystemExit(f"nothing is due; left were {', '.join(left)}")

        return self._cost_of(work)

    def warm_up(self) -> Cost:
        """Start the application with its first items."""
        self.make_due(self.warming)
        return self._cost_of(lambda: self.maintain(self.warming))

    def applications(self) -> int:
        """How many applications the ledger knows."""
        return len(recent_applications(self.ctx.ledger, limit=100))

    def _cost_of(self, work: Callable[[], object]) -> Cost:
        began, used = time.monotonic(), processor_seconds(self.stack)
        work()
        return Cost(seconds=time.monotonic() - began, processor_seconds=processor_seconds(self.stack) - used)

    def _require_compacted(self, name: str) -> None:
        run = newest_maintenance(self.ctx.ledger, name)
        done = {step.step for step in run.operations if step.outcome is StepOutcome.DONE} if run is not None else set()
        if MaintenanceStep.REWRITE_DATA_FILES not in done:
            raise SystemExit(f"the files of {name} were not compacted: {run}")


def processor_seconds(stack: Stack) -> float:
    """What this process, the services and the applications of a stack have used of the processor so far, and those of
    their children that have ended."""
    used = 0.0
    for process in {psutil.Process(), *processes_of(stack)}:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used += times.user + times.system + times.children_user + times.children_system
    return used


def processes_of(stack: Stack) -> set[psutil.Process]:
    """The services and the applications of a stack that live."""
    processes = set[psutil.Process]()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(STACK_MARK) == str(stack.data):
                processes |= {process, *process.children(recursive=True)}
    return processes


def _rows(number: int) -> pa.Table:
    ids = range(number * _ROWS, (number + 1) * _ROWS)
    words, parts = [f"word {one}" for one in ids], [one % PARTITIONS for one in ids]
    columns: list[pa.Array[Any]] = [pa.array(ids, pa.int64()), pa.array(words), pa.array(parts, pa.int64())]
    return pa.Table.from_arrays(columns, names=["id", "word", "part"])


@contextmanager
def running_bench(folder: Path, *, tables: int, due: int, files: int) -> Iterator[Bench]:
    """A stack with all tables."""
    pipelines = folder / "pipelines"
    pipelines.mkdir()
    names = [f"bench.table_{number:03}" for number in range(tables)]
    beside, warming = ([f"bench.{kind}_{number}" for number in range(due)] for kind in ("beside", "warming"))
    for name in (*names, *beside, *warming):
        (pipelines / f"{name}.table.yaml").write_text(yaml.safe_dump(_declaration(name)))
    with stack_in(folder / "data") as stack:
        stack.up(("postgres", "seaweedfs"))
        # The mark of the stack goes to what is started here, and not to this process, which ends after the stack.
        with (
            patch.dict(os.environ, {**stack.environment(), "SLUICE_PIPELINES": str(pipelines)}),
            open_cli_context() as ctx,
        ):
            create_tables(ctx)
            yield Bench(
                ctx=ctx,
                stack=stack,
                all_tables=names,
                due=names[:due],
                beside=beside,
                warming=warming,
                files=files,
            )


def _declaration(name: str) -> Mapping[str, object]:
    return {
        "table": name,
        "description": "small files",
        "owner": "benchmark",
        "columns": [
            {"name": "id", "type": "long"},
            {"name": "word", "type": "string"},
            {"name": "part", "type": "long"},
            {"name": "ratio", "type": "double"},
        ],
        "partitioning": [{"column": "part"}],
        "sort_order": [{"column": "ratio"}],  # only Spark writes files in this order
        "maintenance": {"compaction": {"min_input_files": 5}, "expiry": {"older_than": "7 days", "retain_last": 10}},
    }


def create_tables(ctx: CliContext) -> None:
    """Create all tables, each with few files."""
    loaded = list(ctx.declarations.tables.values())

    def create(first: int) -> None:
        catalog = open_catalog(ctx.settings)
        for one in loaded[first::4]:
            create_or_evolve_table(catalog, one.declaration)
            table = catalog.load_table(one.declaration.table)
            for number in range(_IDLE_APPENDS):
                table.append(_rows(number))

    create_or_evolve_table(open_catalog(ctx.settings), loaded[0].declaration)  # and its namespace, once
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create, range(4)))


def show(costs: Mapping[str, Sequence[Cost]], start: Cost, *, times: float, tables: int, due: int) -> None:
    """Print what each way took."""
    shown = Table(title=f"Maintenance of {tables} tables, {os.cpu_count()} cores")
    for heading in ("", "seconds", "processor seconds"):
        shown.add_column(heading, justify="left" if not heading else "right")
    labels = {
        NONE_DUE: f"{tables} tables, nothing due",
        WITHOUT: f"{due} tables due, no others",
        SEVERAL_DUE: f"{tables} tables, {due} due",
    }
    for way, of_way in costs.items():
        seconds, processor = (
            statistics.median(figures)
            for figures in zip(*((cost.seconds, cost.processor_seconds) for cost in of_way), strict=True)
        )
        shown.add_row(labels[way], f"{seconds:.1f}", f"{processor:.1f}")
    shown.add_row(f"{due} tables due, application starts", f"{start.seconds:.1f}", f"{start.processor_seconds:.1f}")
    shown.add_section()
    verdict = "met" if times <= MOST_TIMES else "MISSED"
    shown.add_row("processor time with the idle tables", f"{times:.2f} times", f"at most {MOST_TIMES:g}: {verdict}")
    Console(width=110).print(shown)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 1 when an application was started for nothing, or the time is beyond its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=200, help="tables that are looked at")
    parser.add_argument("--due", type=int, default=3, help="how many of them have small files to compact")
    parser.add_argument("--files", type=int, default=200, help="files that are appended to a table before each turn")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args(arguments)
    costs: dict[str, list[Cost]] = {NONE_DUE: [], WITHOUT: [], SEVERAL_DUE: []}
    with (
        tempfile.TemporaryDirectory() as folder,
        running_bench(Path(folder), tables=options.tables, due=options.due, files=options.files) as bench,
    ):
        costs[NONE_DUE].append(bench.nothing_due())
        started_for_nothing = bench.applications()
        start, *_ = [bench.warm_up() for _ in range(WARM_UP_ROUNDS)]
        ways = [(WITHOUT, bench.without_idle_tables), (SEVERAL_DUE, bench.with_idle_tables)]
        for number in range(options.rounds):
            for way, take_turn in ways if number % 2 == 0 else reversed(ways):
                costs[way].append(take_turn())
                sys.stderr.write(f"round {number + 1} of {options.rounds}: {way}: {costs[way][-1]}\n")
        applications = bench.applications()
    times = _sum(costs[SEVERAL_DUE]) / _sum(costs[WITHOUT])
    if options.json:
        figures = {way: [cost.processor_seconds for cost in of_way] for way, of_way in costs.items()}
        applied = {"applications": applications, "started_for_nothing": started_for_nothing}
        sys.stdout.write(f"{json.dumps({'processor_seconds': figures, 'times': times, **applied})}\n")
    else:
        show(costs, start, times=times, tables=options.tables, due=options.due)
        Console().print(f"Applications: {started_for_nothing} with nothing due, {applications} in all.")
    return 0 if times <= MOST_TIMES and started_for_nothing == 0 and applications == 1 else 1


def _sum(costs: Sequence[Cost]) -> float:
    return sum(cost.processor_seconds for cost in costs)


if __name__ == "__main__":
    sys.exit(main())
