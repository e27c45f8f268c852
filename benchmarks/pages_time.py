"""How long the page of all streams takes, compared with observing one stream after the other as the command line does.

    .venv/bin/python -m benchmarks.pages_time [--streams 200] [--batches 100000] [--refreshes 1000]

The ledger is a real PostgreSQL with so many streams, each with a live run, a day of samples and its share of the
batches. A refresh is everything between a request and its answer but the login: queries, decisions, HTML. The last row
is the growth of the process over all refreshes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table
from sqlalchemy import text
from tests.fixtures.ledger import running_postgres
from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.migrations import upgrade
from sluice.ledger.runs import admit_run, beat
from sluice.pages.declared_now import DeclaredNow
from sluice.pages.line_selection import LineCounts, LineSelection
from sluice.pages.observing_launcher import ObservingLauncher
from sluice.pages.page_templates import render
from sluice.pages.stream_lines import HISTORY_HOURS, observe_streams
from sluice.pages.stream_page import load_stream_page
from sluice.processes.driver_processes import observe_process
from sluice.supervision.stream_status import observe_rows

MOST_FIRST_MS = 1000.0
MOST_REFRESH_MS = 150.0
MOST_KILOBYTES = 300.0
MOST_GROWTH_MB = 20.0

_FILL = """
INSERT INTO sluice.batches (stream, generation, batch, run_id, started_at, duration_ms, input_rows, published_rows,
  refused_rows, late_rows, duplicate_rows, start_offsets, end_offsets, snapshot_ids, durations_ms, recorded_at)
SELECT 'stream_' || n % {streams}, 1, n / {streams}, 'run', at, 900, 1000, '{{"main": 990}}', 10, 0, 0,
  jsonb_build_object('rows', jsonb_build_object('flights', n)), jsonb_build_object('rows', n), '{{}}',
  '{{"triggerExecution": 900, "addBatch": 700, "latestOffset": 90, "walCommit": 40}}', at
FROM (SELECT n, now() - interval '1 second' * ({batches} - n) * 2.0 / {streams} AS at
      FROM generate_series(0, {batches} - 1) AS n) AS filled;
INSERT INTO sluice.progress_samples (stream, observed_at, generation, batch, read_rows, unread_rows, undone, problem)
SELECT 'stream_' || s, now() - interval '1 minute' * m, 1, 1000 - m, 1000000 - m * 100, (m * s) % 90, (m * s) % 90, ''
FROM generate_series(0, {streams} - 1) AS s, generate_series(0, 1439) AS m;
ANALYZE
"""


def everything(names: Iterable[str]) -> frozenset[str]:
    """A reader who may read all."""
    return frozenset(names)


def fill(ledger: Ledger, *, streams: int, batches: int) -> None:
    """Give every stream a live run, its batches and its samples."""
    with ledger.transaction() as connection:
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        for statement in _FILL.format(streams=streams, batches=batches).split(";"):
            connection.execute(text(statement))
    for number in range(streams):
        stream = f"stream_{number}"
        run = admit_run(ledger, stream=stream, mode="continuous", declaration_digest="d", launched_by="a benchmark")
        beat(ledger, run.run_id)


def streams_page(ledger: Ledger, declared: DeclaredNow) -> str:
    """The page of all streams, as its route makes it."""
    seen = observe_streams(ledger, declared.read(), observe_process=observe_process, may_read=everything)
    selection = LineSelection()
    values = {
        "base": "/sluice",
        "lines": selection.select(seen.lines),
        "counts": LineCounts.of(seen.lines),
        "selection": selection,
        "problems": (),
        "may_act": everything(line.stream for line in seen.lines),
        "history_hours": HISTORY_HOURS,
        "link_to_sort": lambda key: f"sort={key}",
        "link_to_show": lambda show: f"show={show}",
    }
    return render("streams", values)


def milliseconds(work: Callable[[], object], *, times: int) -> float:
    """The median of some runs."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--streams", type=int, default=200)
    options.add_argument("--batches", type=int, default=100_000)
    options.add_argument("--refreshes", type=int, default=1000)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pipelines, database = Path(folder, "pipelines"), Path(folder, "postgres")
        pipelines.mkdir()
        database.mkdir()
        for number in range(given.streams):
            write_table(pipelines, f"silver.t{number}")
            write_continuous_stream(pipelines, f"stream_{number}", reads="silver.t0", writes=f"silver.t{number}")
        with running_postgres(database) as server:
            url = server.url.render_as_string(hide_password=False)
            upgrade(url)
            with open_ledger(url) as ledger:
                fill(ledger, streams=given.streams, batches=given.batches)
                is_within = measure(ledger, DeclaredNow(pipelines), refreshes=given.refreshes)
    sys.exit(0 if is_within else 1)


def measure(ledger: Ledger, declared: DeclaredNow, *, refreshes: int) -> bool:
    """Measure the pages, print the table, and return whether every figure is within its limit."""
    began = time.perf_counter()
    page = streams_page(ledger, declared)
    first = 1000 * (time.perf_counter() - began)
    streams = tuple(declared.read().streams.values())
    refresh = milliseconds(lambda: streams_page(ledger, declared), times=20)
    launcher = ObservingLauncher()
    alone = milliseconds(lambda: observe_rows(streams, ledger=ledger, launcher=launcher, heads=None), times=3)
    one = milliseconds(lambda: one_page(ledger, declared), times=20)
    process = psutil.Process()
    before = process.memory_info().rss
    for _ in range(refreshes):
        streams_page(ledger, declared)
    growth = (process.memory_info().rss - before) / 1e6
    kilobytes = len(page.encode()) / 1000
    figures = (
        ("first page, with the declarations", first, MOST_FIRST_MS, "ms"),
        (f"refresh, {len(streams)} streams", refresh, MOST_REFRESH_MS, "ms"),
        ("one stream after the other (baseline)", alone, None, "ms"),
        ("page of one stream", one, MOST_REFRESH_MS, "ms"),
        ("size of the page", kilobytes, MOST_KILOBYTES, "KB"),
        (f"growth over {refreshes:,} refreshes", growth, MOST_GROWTH_MB, "MB"),
    )
    table = Table("figure", "measured", "limit", title="Pages")
    for name, measured, limit, unit in figures:
        is_beyond = limit is not None and measured > limit
        most = "" if limit is None else f"{limit:,.0f} {unit}"
        table.add_row(name, f"{measured:,.1f} {unit}", most, style="red" if is_beyond else "")
    Console().print(table)
    return all(limit is None or measured <= limit for _, measured, limit, _ in figures)


def one_page(ledger: Ledger, declared: DeclaredNow) -> object:
    """What the page of one stream reads beside the lines of all."""
    declarations, observe = declared.read(), partial(observe_streams, ledger, observe_process=observe_process)
    observe(declarations, may_read=everything, with_history=False, among=["stream_7"])
    return load_stream_page(ledger, declarations, "stream_7", hours=1, may_read=everything, may_read_log=True)


if __name__ == "__main__":
    main()
