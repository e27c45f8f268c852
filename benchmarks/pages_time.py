"""How long the pages take, compared with observing one stream after the other as the command line does.

    .venv/bin/python -m benchmarks.pages_time [--streams 200] [--batches 100000] [--refreshes 1000]

The ledger is a real PostgreSQL with so many streams, each with a live run, a hundred former ones, a day of samples and
its share of the batches, and as many tables, each with three days of hourly maintenance runs and thirty days of quality
checks. A refresh is everything between a request and its answer but the login: queries, decisions, HTML. PostgreSQL is
asked for the plan of every query: none may read a large table whole. The last row is the growth of the process over all
refreshes, half of them of the streams and half of the tables. It takes one or two minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psutil
from benchmarks.ledger_of_pages import NEWS, fill
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sqlalchemy import text
from tests.fixtures.grown_ledgers import watched_queries
from tests.fixtures.ledger import running_postgres
from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.declarations.load_declarations import DeclaredNow
from sluice.ledger.batch_findings import rule_results_of_tables
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.migrations import upgrade
from sluice.ledger.recorded_checks import checks_of_tables
from sluice.pages.line_selection import LineCounts, LineSelection, TableSelection, counts_of
from sluice.pages.lineage_page import MOST_NAMED, LineageSelection, known_lineage, lineage_page
from sluice.pages.page_templates import render
from sluice.pages.quality_report import SUMMARY_CHECKS, batch_lines, charts_of_report, quality_line, summary_figures
from sluice.pages.stream_lines import HISTORY_HOURS, ObservingLauncher, observe_streams
from sluice.pages.stream_page import load_stream_page
from sluice.pages.table_lines import TableLine, observe_tables
from sluice.pages.table_looks import TableLook
from sluice.pages.table_page import load_table_page
from sluice.quality.rule_results import TableRules, judged_rules, read_report, writers_of
from sluice.supervision.stream_status import observe_rows

MOST_FIRST_MS = 1000.0
MOST_REFRESH_MS = 150.0
MOST_SUMMARY_MS = 300.0
MOST_KILOBYTES = 300.0
MOST_GROWTH_MB = 20.0
OF_EVERY_PAGE = {"base": "/sluice", "airflow": "/", "paused": ()}
LARGE_TABLES = frozenset({"batches", "progress_samples", "runs", "events", "maintenance_runs", "quality_results"})
"""What grows with time. A table of a row for each stream is read whole where that is quicker."""


_HEARTBEAT_SECONDS = 5.0


def everything(names: Iterable[str]) -> frozenset[str]:
    """A reader who may read all."""
    return frozenset(names)


def looked_at(tables: Sequence[str]) -> Mapping[str, TableLook]:
    """Looks that are kept: a page does not wait for the catalog."""
    now = datetime.now(UTC)
    look = TableLook(exists=True, snapshot_id=1, committed_at=now, fresh_at=now, rows=1000, files=4, bytes=4_000_000)
    return dict.fromkeys(tables, look)


def run_as_declared(ledger: Ledger, declared: DeclaredNow) -> None:
    """Give every live run the digest of its declaration: of a stream whose declaration has changed, the runs that
    followed each other before are read too."""
    digests = [{"name": name, "digest": one.digest} for name, one in declared.read().streams.items()]
    with ledger.transaction() as connection:
        statement = "UPDATE sluice.runs SET declaration_digest = :digest WHERE stream = :name AND ended_at IS NULL"
        connection.execute(text(statement), digests)


@contextmanager
def heard_from(ledger: Ledger) -> Iterator[None]:
    """Let every live run be heard from every few seconds while the block runs, as its driver is: by connections of its
    own, since the queries of the pages are watched."""
    over = threading.Event()

    def beat() -> None:
        with open_ledger(ledger.engine.url.render_as_string(hide_password=False)) as apart:
            while not over.wait(_HEARTBEAT_SECONDS):
                with apart.transaction() as connection:
                    connection.execute(text("UPDATE sluice.runs SET heartbeat_at = now() WHERE ended_at IS NULL"))

    drivers = threading.Thread(target=beat)
    drivers.start()
    try:
        yield
    finally:
        over.set()
        drivers.join()


def streams_page(ledger: Ledger, declared: DeclaredNow) -> str:
    """The page of all streams, as its route makes it."""
    seen = observe_streams(ledger, declared.read(), launcher=ObservingLauncher(), may_read=everything)
    selection = LineSelection()
    values = {
        "base": "/sluice",
        "lines": selection.select(seen.lines),
        "counts": LineCounts.of(seen.lines),
        "selection": selection,
        "problems": (),
        "may_act": everything(line.stream for line in seen.lines),
        "history_hours": HISTORY_HOURS,
        "airflow": "/",
        "outlooks": {},
        "paused": (),
        "failed_checks": (),
        "link_to_sort": lambda key: f"sort={key}",
        "link_to_show": lambda show: f"show={show}",
    }
    return render("streams", values)


def tables_page(ledger: Ledger, declared: DeclaredNow) -> str:
    """The page of all tables, as its route makes it."""
    lines = table_lines(ledger, declared)
    selection = TableSelection()
    values = {
        "lines": selection.select(lines),
        "counts": counts_of(lines),
        "selection": selection,
        "may_see_quality": True,
        "link_to_sort": lambda key: f"sort={key}",
        "link_to_show": lambda kind: f"show={kind}",
    }
    return render("tables", OF_EVERY_PAGE | values)


def table_lines(ledger: Ledger, declared: DeclaredNow, *, only: str | None = None) -> tuple[TableLine, ...]:
    """The lines of all tables, or of one."""
    streams = declared.read().streams
    return observe_tables(ledger, declared.read(), readable_streams=streams, looks=looked_at, only=only)


def one_table(ledger: Ledger, declared: DeclaredNow) -> object:
    """What the page of one table reads."""
    (line,) = table_lines(ledger, declared, only="silver.t7")
    return load_table_page(ledger, line, declared.read().tables["silver.t7"].declaration.maintenance)


def quality_page(ledger: Ledger, declared: DeclaredNow) -> str:
    """The summary of the quality of all tables, as its route makes it."""
    lines = table_lines(ledger, declared)
    found = checks_of_tables(ledger, [line.table for line in lines], limit=SUMMARY_CHECKS)
    rules = judged_rules(declared.read())
    batches = rule_results_of_tables(ledger, writers_of(rules, found), limit=SUMMARY_CHECKS)
    shown = [
        quality_line(
            line,
            found.get(line.table, ()),
            (),
            rules=rules.get(line.table, TableRules()).rules,
            batches=batches.get(line.table, ()),
        )
        for line in lines
    ]
    values = {
        "shown": shown,
        "without_rules": (),
        "counts": counts_of(lines),
        "figures": summary_figures(shown),
        "selection": TableSelection(),
        "most_checks": SUMMARY_CHECKS,
        "link_to_show": lambda kind: f"show={kind}",
    }
    return render("quality", OF_EVERY_PAGE | values)


def one_report(ledger: Ledger, declared: DeclaredNow) -> str:
    """The report of one table, as its route makes it."""
    (line,) = table_lines(ledger, declared, only="silver.t7")
    report = read_report(ledger, declared.read(), declared.read().tables["silver.t7"].declaration)
    values = {
        "line": line,
        "report": report,
        "charts": charts_of_report(report),
        "batches": batch_lines(report),
        "held": (),
        "run_link": "",
        "data_docs": {},
        "outlook": None,
    }
    return render("table_quality", OF_EVERY_PAGE | values)


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
        write_table(pipelines, "bronze.source")
        for number in range(given.streams):
            write_table(pipelines, f"silver.t{number}")
            write_continuous_stream(pipelines, f"stream_{number}", reads="bronze.source", writes=f"silver.t{number}")
        with running_postgres(database) as server:
            url = server.url.render_as_string(hide_password=False)
            upgrade(url)
            with open_ledger(url) as ledger:
                fill(ledger, streams=given.streams, batches=given.batches)
                declared = DeclaredNow(pipelines)
                run_as_declared(ledger, declared)
                with heard_from(ledger):
                    is_within = measure(ledger, declared, refreshes=given.refreshes)
    sys.exit(0 if is_within else 1)


def measure(ledger: Ledger, declared: DeclaredNow, *, refreshes: int) -> bool:
    """Measure the pages, print the table, and return whether every figure is within its limit."""
    began = time.perf_counter()
    page = streams_page(ledger, declared)
    first = 1000 * (time.perf_counter() - began)
    streams = tuple(declared.read().streams.values())
    refresh = milliseconds(lambda: streams_page(ledger, declared), times=20)
    launcher = ObservingLauncher()
    alone = milliseconds(
        lambda: [observe_rows([one], ledger=ledger, launcher=launcher, heads=None)[0] for one in streams], times=3
    )
    one = milliseconds(lambda: one_page(ledger, declared), times=20)
    tables = tables_page(ledger, declared)
    tables_refresh = milliseconds(lambda: tables_page(ledger, declared), times=20)
    table = milliseconds(lambda: one_table(ledger, declared), times=20)
    lineage = milliseconds(lambda: whole_lineage(ledger, declared), times=20)
    quality = milliseconds(lambda: quality_page(ledger, declared), times=20)
    report = milliseconds(lambda: one_report(ledger, declared), times=20)
    with watched_queries(ledger) as watched:
        for load in (streams_page, one_page, tables_page, one_table, whole_lineage, quality_page, one_report):
            load(ledger, declared)
    scans = watched.whole_scans(ledger, LARGE_TABLES)
    process = psutil.Process()
    before = process.memory_info().rss
    for number in track(range(refreshes), description="refreshes", console=NEWS):
        (tables_page if number % 2 else streams_page)(ledger, declared)
    growth = (process.memory_info().rss - before) / 1e6
    kilobytes = len(page.encode()) / 1000
    figures = (
        ("first page, with the declarations", first, MOST_FIRST_MS, "ms"),
        (f"refresh, {len(streams)} streams", refresh, MOST_REFRESH_MS, "ms"),
        ("one stream after the other (baseline)", alone, None, "ms"),
        ("page of one stream", one, MOST_REFRESH_MS, "ms"),
        ("size of the page", kilobytes, MOST_KILOBYTES, "KB"),
        (f"refresh, {len(declared.read().tables)} tables", tables_refresh, MOST_REFRESH_MS, "ms"),
        ("page of one table", table, MOST_REFRESH_MS, "ms"),
        ("size of the page of all tables", len(tables.encode()) / 1000, MOST_KILOBYTES, "KB"),
        (f"quality of {len(declared.read().tables)} tables, half of them broken", quality, MOST_SUMMARY_MS, "ms"),
        ("size of the page of the quality", len(quality_page(ledger, declared).encode()) / 1000, MOST_KILOBYTES, "KB"),
        ("report of one table over 30 checks", report, MOST_REFRESH_MS, "ms"),
        ("lineage of all streams and tables", lineage, MOST_REFRESH_MS, "ms"),
        ("size of the page of the lineage", len(whole_lineage(ledger, declared).encode()) / 1000, MOST_KILOBYTES, "KB"),
        (f"queries without an index, of {len(watched.sent)}", len(scans), 0, ""),
        (f"growth over {refreshes:,} refreshes", growth, MOST_GROWTH_MB, "MB"),
    )
    shown = Table("figure", "measured", "limit", title="Pages")
    for name, measured, limit, unit in figures:
        is_beyond = limit is not None and measured > limit
        most = "" if limit is None else f"{limit:,.0f} {unit}"
        shown.add_row(name, f"{measured:,.1f} {unit}", most, style="red" if is_beyond else "")
    Console().print(shown)
    for statement in scans:
        Console().print(statement)
    return all(limit is None or measured <= limit for _, measured, limit, _ in figures)


def whole_lineage(ledger: Ledger, declared: DeclaredNow) -> str:
    """The page of the lineage over all streams and tables, with one of them chosen."""
    declarations = declared.read()
    observe = partial(observe_streams, ledger, launcher=ObservingLauncher(), may_read=everything)
    seen = observe(declarations, with_figures=False, with_history=False)
    known = known_lineage(declarations, readable_streams=declarations.streams, readable_tables=declarations.tables)
    selection = LineageSelection(chosen="stream_7")
    values = {
        "base": "/sluice",
        "known": known,
        "selection": selection,
        "page": lineage_page(known, selection),
        "lines": {line.stream: line for line in seen.lines},
        "tables": frozenset(declarations.tables),
        "failed": {},
        "problems": (),
        "most_named": MOST_NAMED,
        "link_to_choose": lambda name: f"of={name}",
    }
    return render("lineage", values)


def one_page(ledger: Ledger, declared: DeclaredNow) -> object:
    """What the page of one stream reads beside the lines of all."""
    declarations, observe = declared.read(), partial(observe_streams, ledger, launcher=ObservingLauncher())
    observe(declarations, may_read=everything, with_history=False, among=["stream_7"])
    load = partial(load_stream_page, ledger, declarations, "stream_7", logs=declarations.folder)
    return load(hours=1, may_read=everything, may_read_log=True)


if __name__ == "__main__":
    main()
