"""Days backfilled by a run for each, beside one batch over all of them, by turns on one stack.

    .venv/bin/python -m benchmarks.backfill_time [--days 30] [--rows 100000] [--rounds 2] [--json]

A stream has read a table of so many days. Each turn empties its target and backfills it by work items; no application
lives when it begins. *One batch* is one item over all days; *by day* are as many runs as days, the newest first, ten of
them active at a time as in a backfill of Airflow. Each asks for its day, starts the application when its item is the
first of the queue, and looks whether its day is replaced; Airflow itself is not part of it. An application processes
ten days at the same time, five of them as one batch: the target is partitioned by day, so that no file holds rows of
two days. The time of a turn ends when its last interval is replaced. What the target holds is compared with the source
before any time counts. *One day alone* is the same for one day, to its end: what a start costs is most of it when a day
is small. *The next day* is the same in the application that has just done that.

Ends with 1 when a target differs from the source, or the days reach less than 0.8 of one batch's throughput.
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
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from benchmarks.asked_work import AskedWork, asked_work
from benchmarks.paired_turns import Limit, Spread, Turn, over_rounds, speed, take_turns
from pyiceberg.expressions import AlwaysTrue
from rich.console import Console
from rich.table import Table
from tests.fixtures.stack import stack_in

from sluice.backfill.intervals import Interval, divide
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import all_tables
from sluice.ledger.backfill_attempts import recent_attempts
from sluice.ledger.connection import database_time, open_ledger
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table
from sluice.work.requests import Increment, ReplaceInterval

STREAM, SOURCE, TARGET = "days", "bench.records", "bench.days"
FIRST_DAY = datetime(2013, 1, 1, tzinfo=UTC)
AT_ONCE = 10
ACTIVE_RUNS = 10
"""How many runs of a backfill Airflow starts before one has ended, unless a person asks for another number."""

ONE_BATCH, BY_DAY, ONE_DAY, NEXT_DAY = "one batch", "by day", "one day alone", "the next day"
LIMIT = Limit(way=BY_DAY, what="throughput", figure=speed, least=0.8)

COLUMNS = [{"name": "id", "type": "long"}, {"name": "at", "type": "timestamptz"}, {"name": "word", "type": "string"}]
QUERY = "SELECT id, at, sha2(word, 256) AS word FROM records\n"
DECLARATION: Mapping[str, Any] = {
    "stream": STREAM,
    "description": "records by day",
    "owner": "benchmark",
    "mode": "incremental",
    "schedule": {"cron": "0 0 1 1 *"},
    "inputs": {"records": {"stream": {"iceberg": {"table": SOURCE}}}},
    "transformation": {"sql": "days.sql"},
    "outputs": {"days": {"iceberg": {"table": TARGET}}},
    "backfill": {"column": "at", "interval": "day", "at_once": AT_ONCE, "reads": {"records": "at"}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where the ways run. rows: of each day."""

    settings: Settings
    work: AskedWork
    days: int
    rows: int

    @property
    def interval(self) -> Interval:
        """All days."""
        return Interval(start=FIRST_DAY, end=FIRST_DAY + timedelta(days=self.days))

    def fill(self) -> None:
        """Write the source, a file for each day, and have the stream read it."""
        catalog = open_catalog(self.settings)
        for declaration in all_tables(load_declarations(self.settings.pipelines)).values():
            create_or_evolve_table(catalog, declaration)
        source = catalog.load_table(SOURCE)
        for day in range(self.days):
            source.append(rows_of(day, count=self.rows).to_arrow().cast(source.schema().as_arrow()))
        self.work.have_done(Increment(stream=STREAM))

    def one_batch(self) -> Turn:
        """All days as one item."""
        return self.turn(lambda: self.backfill(self.interval))

    def by_day(self) -> Turn:
        """A run for each day."""
        return self.turn(self.runs)

    def single_days(self) -> tuple[float, float]:
        """The seconds of one day by an application that is started for it, and of the next day by the same one."""
        self.empty()
        self.work.end_applications()
        first, second, *_ = divide(self.interval, "day")
        return self.seconds_of(first), self.seconds_of(second)

    def seconds_of(self, day: Interval) -> float:
        """The seconds from asking for a day to its end."""
        began = time.monotonic()
        self.backfill(day)
        return time.monotonic() - began

    def turn(self, work: Callable[[], object]) -> Turn:
        """Empty the target and backfill it; the time ends when the ledger has the end of the last interval."""
        self.empty()
        self.work.end_applications()
        with open_ledger(self.settings.ledger_url.get_secret_value()) as ledger:
            began = database_time(ledger)
            work()
            attempts = recent_attempts(ledger, STREAM, limit=self.days + AT_ONCE)
        ended = max(one.ended_at for one in attempts if one.ended_at is not None and one.started_at > began)
        seconds = (ended - began).total_seconds()
        return Turn(batches_ms=(seconds * 1000,), busy_seconds=seconds, seconds=seconds, content=self.content())

    def runs(self) -> None:
        """The runs of all days, so many of them at a time."""
        with ThreadPoolExecutor(ACTIVE_RUNS) as pool:
            list(pool.map(self.run_of_a_day, reversed(divide(self.interval, "day"))))

    def run_of_a_day(self, day: Interval) -> None:
        """Ask for a day and wait until it is replaced."""
        self.backfill(day, asked_by=f"run of {day}")

    def empty(self) -> None:
        """Delete all rows of the target."""
        open_catalog(self.settings).load_table(TARGET).delete(AlwaysTrue())

    def backfill(self, interval: Interval, *, asked_by: str = "a benchmark") -> None:
        """Backfill an interval, to its end."""
        start, end = interval.start.isoformat(), interval.end.isoformat()
        self.work.have_done(ReplaceInterval(stream=STREAM, start=start, end=end), asked_by=asked_by)

    def content(self) -> tuple[int, int, int]:
        """The number of rows in the target, of different ids among them, and a sum over all values."""
        seen = pl.DataFrame(open_catalog(self.settings).load_table(TARGET).scan().to_arrow())
        return content_of(seen)


def rows_of(day: int, *, count: int) -> pl.DataFrame:
    """The source's rows of a day."""
    ids = np.arange(day * count, (day + 1) * count)
    midnight = FIRST_DAY + timedelta(days=day)
    offsets_us = (np.arange(count) * (86_400_000_000 // count)).astype("timedelta64[us]")
    times = pl.Series("at", np.datetime64(midnight.replace(tzinfo=None), "us") + offsets_us)
    return pl.DataFrame({"id": ids, "at": times.dt.replace_time_zone("UTC"), "word": [f"word {one}" for one in ids]})


def content_of(rows: pl.DataFrame) -> tuple[int, int, int]:
    """What is compared of a table: numbers of rows and of ids, and a sum that depends on every value of every row."""
    values = rows.select(pl.col("id"), pl.col("at").dt.timestamp("us"), pl.col("word"))
    return len(rows), rows["id"].n_unique(), int(values.hash_rows(seed=7).cast(pl.UInt64).sum())


def expected_content(*, days: int, rows: int) -> tuple[int, int, int]:
    """The same of the source, transformed by polars instead of Spark."""
    every_day = pl.concat([rows_of(day, count=rows) for day in range(days)])
    hashed = pl.Series("word", [sha256(word.encode()).hexdigest() for word in every_day["word"]])
    return content_of(every_day.with_columns(hashed))


@contextmanager
def running_bench(folder: Path, *, days: int, rows: int) -> Iterator[Bench]:
    """A stack with the declared stream, which has read all days."""
    pipelines = folder / "pipelines"
    pipelines.mkdir()
    for table in (SOURCE, TARGET):
        by_day = [{"column": "at", "transform": "day"}]
        declared = {"table": table, "description": table, "owner": "benchmark", "columns": COLUMNS}
        (pipelines / f"{table}.table.yaml").write_text(yaml.safe_dump({**declared, "partitioning": by_day}))
    (pipelines / f"{STREAM}.stream.yaml").write_text(yaml.safe_dump(dict(DECLARATION)))
    (pipelines / "days.sql").write_text(QUERY)
    with stack_in(folder / "data", SLUICE_PIPELINES=str(pipelines)) as stack:
        stack.up(("postgres", "seaweedfs"))
        with asked_work(stack.settings(), stack.environment()) as work:
            bench = Bench(settings=stack.settings(), work=work, days=days, rows=rows)
            bench.fill()
            yield bench


def show(
    bench: Bench, turns: Mapping[str, Sequence[Turn]], single: Mapping[str, Sequence[float]], ratio: Spread
) -> None:
    """Print what each way took."""
    table = Table(title=f"{bench.days} days of {bench.rows:,} rows, {AT_ONCE} at a time, {os.cpu_count()} cores")
    for heading in ("way", "runs", "seconds", "rows/s", "throughput"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for name, of_way in turns.items():
        seconds = statistics.median(turn.seconds for turn in of_way)
        runs, figure = (bench.days, str(ratio)) if name == BY_DAY else (1, "1")
        table.add_row(name, str(runs), f"{seconds:.1f}", f"{bench.days * bench.rows / seconds:,.0f}", figure)
    for name, seconds_of_day in single.items():
        seconds = statistics.median(seconds_of_day)
        table.add_row(name, "1", f"{seconds:.1f}", f"{bench.rows / seconds:,.0f}", "")
    table.add_section()
    table.add_row(LIMIT.way, "", "", LIMIT.what, f"{LIMIT}: {'met' if LIMIT.is_met(ratio) else 'MISSED'}")
    Console(width=120).print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 1 when a target differs from the source, or the throughput is too low."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of a day")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_bench(Path(folder), days=options.days, rows=options.rows) as bench,
    ):
        turns = take_turns({ONE_BATCH: bench.one_batch, BY_DAY: bench.by_day}, rounds=options.rounds)
        days = [bench.single_days() for _ in range(options.rounds)]
    single = dict(zip((ONE_DAY, NEXT_DAY), zip(*days, strict=True), strict=True))
    expected = expected_content(days=options.days, rows=options.rows)
    different = {turn.content for of_way in turns.values() for turn in of_way} - {expected}
    if different:
        sys.stderr.write(f"The target held {different}, and not {expected}: no time counts.\n")
        return 1
    ratio = over_rounds(speed, turns[ONE_BATCH], turns[BY_DAY])
    if options.json:
        seconds = {name: [turn.seconds for turn in of_way] for name, of_way in turns.items()} | single
        sys.stdout.write(f"{json.dumps({'seconds': seconds, 'throughput': ratio.median})}\n")
    else:
        show(bench, turns, single, ratio)
    return 0 if LIMIT.is_met(ratio) else 1


if __name__ == "__main__":
    sys.exit(main())
