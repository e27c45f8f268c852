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


_NEWS = Console(stderr=True)
_HEARTBEAT_SECONDS = 5.0

_FILL = """
INSERT INTO sluice.runs (run_id, stream, generation, mode, state, desired_state, declaration_digest, launched_by, token,
  heartbeat_at)
SELECT 'run-' || n, 'stream_' || n, 1, 'continuous', 'running', 'running', 'd', 'a benchmark', 1, now()
FROM generate_series(0, {streams} - 1) AS n;
INSERT INTO sluice.leases (stream, token, run_id, expires_at)
SELECT stream, token, run_id, now() + interval '1 h' FROM sluice.runs;
INSERT INTO sluice.runs (run_id, stream, generation, mode, state, desired_state, declaration_digest, launched_by, token,
  launched_at, heartbeat_at, ended_at, number) OVERRIDING SYSTEM VALUE
SELECT 'run-' || s || '-' || h, 'stream_' || s, 1, 'continuous', 'finished', 'running', 'd', 'a benchmark', 0,
  now() - interval '1 h' * (h + 1), now() - interval '1 h' * h, now() - interval '1 h' * h, -h
FROM generate_series(0, {streams} - 1) AS s, generate_series(1, 100) AS h;
INSERT INTO sluice.generations (stream, generation, checkpoint, query_id, opened_by)
SELECT 'stream_' || n, 1, 's3a://lakehouse/checkpoints/stream_' || n || '/1', 'q', 'a benchmark'
FROM generate_series(0, {streams} - 1) AS n;
INSERT INTO sluice.batches (stream, generation, batch, run_id, started_at, duration_ms, input_rows, published_rows,
  refused_rows, late_rows, duplicate_rows, start_offsets, end_offsets, snapshot_ids, durations_ms, recorded_at)
SELECT 'stream_' || n % {streams}, 1, n / {streams}, 'run', at, 900, 1000, '{{"main": 990}}', 10, 0, 0,
  jsonb_build_object('rows', jsonb_build_object('flights', n)), jsonb_build_object('rows', n), '{{}}',
  '{{"triggerExecution": 900, "addBatch": 700, "latestOffset": 90, "walCommit": 40}}', at
FROM (SELECT n, now() - interval '1 second' * ({batches} - n) * 2.0 / {streams} AS at
      FROM generate_series(0, {batches} - 1) AS n) AS filled;
INSERT INTO sluice.batch_totals (stream, generation, batches, input_rows, published_rows, refused_rows, late_rows,
  duplicate_rows)
SELECT stream, generation, count(*), sum(input_rows),
  jsonb_build_object('main', sum((published_rows ->> 'main')::bigint)), sum(refused_rows), 0, 0
FROM sluice.batches GROUP BY stream, generation;
INSERT INTO sluice.progress_samples (stream, observed_at, generation, batch, read_rows, unread_rows, undone, problem)
SELECT 'stream_' || s, now() - interval '1 minute' * m, 1, 1000 - m, 1000000 - m * 100, (m * s) % 90, (m * s) % 90, ''
FROM generate_series(0, {streams} - 1) AS s, generate_series(0, 1439) AS m;
INSERT INTO sluice.maintenance_runs ("table", started_at, ended_at, launched_by, before_rows, after_rows, before_files,
  after_files, before_bytes, after_bytes, before_delete_files, after_delete_files, before_manifests, after_manifests,
  before_snapshots, after_snapshots, operations, before_small_files, after_small_files, file_sizes, oldest_snapshot_at,
  kept)
SELECT 'silver.t' || t, at - interval '9 s', at, 'a benchmark', 1000, 1000, 40 + t, 4, 4000000, 4000000, 2, 0, 12, 1,
  30, 20, (SELECT jsonb_agg(jsonb_build_object('step', step, 'outcome', 'skipped', 'reason', 'few_small_files',
    'explanation', '3 of 12 files are small, and no partition has 5', 'result', '{{}}'::jsonb))
    FROM unnest(array['rewrite_data_files', 'rewrite_manifests', 'pin_snapshots', 'expire_snapshots']) AS step),
  30 + t % 9, 3, '[3, 0, 0, 1, 0, 0, 0]', at - interval '4 days',
  jsonb_build_array(jsonb_build_object('stream', 'stream_' || t, 'endpoint', 'flights', 'kind', 'position',
    'snapshot_id', 5000000000 + t, 'committed_at', at - interval '3 h', 'held_snapshots', 2, 'held_bytes', 100000))
FROM generate_series(0, {streams} - 1) AS t,
  (SELECT now() - interval '1 hour' * (71 - h) AS at FROM generate_series(0, 71) AS h) AS hours;
INSERT INTO sluice.quality_results ("table", checked_at, launched_by, verdict, rows, expectations, failed_expectations,
  details)
SELECT 'silver.t' || t, now() - interval '1 day' * (29 - d), 'a benchmark',
  CASE t % 2 WHEN 0 THEN 'passed' ELSE 'failed' END, 1000, 12,
  CASE t % 2 WHEN 0 THEN '[]'::jsonb ELSE '["expect_column_values_to_be_between"]' END,
  (SELECT jsonb_agg(jsonb_build_object('expectation', 'expect_column_values_to_be_between', 'arguments',
    jsonb_build_object('column', 'c' || c, 'min_value', 0, 'max_value', 5), 'success', t % 2 = 0 OR c > 1, 'observed',
    jsonb_build_object('element_count', 1000, 'samples', jsonb_build_array(5.3, 6.1, 7)), 'unexpected_rows', c))
    FROM generate_series(1, 12) AS c)
FROM generate_series(0, {streams} - 1) AS t, generate_series(0, 29) AS d;
INSERT INTO sluice.events (subject, name, actor_kind, actor_name, action, reason, explanation, evidence)
SELECT CASE n % 2 WHEN 0 THEN 'stream' ELSE 'table' END,
  CASE n % 2 WHEN 0 THEN 'stream_' ELSE 'silver.t' END || n % {streams}, 'component', 'driver', 'launch',
  'never_started', 'The stream is to run and there is no run.', '{{}}'
FROM generate_series(0, 100 * {streams} - 1) AS n
"""


def everything(names: Iterable[str]) -> frozenset[str]:
    """A reader who may read all."""
    return frozenset(names)


def looked_at(tables: Sequence[str]) -> Mapping[str, TableLook]:
    """Looks that are kept: a page does not wait for the catalog."""
    now = datetime.now(UTC)
    look = TableLook(exists=True, snapshot_id=1, committed_at=now, fresh_at=now, rows=1000, files=4, bytes=4_000_000)
    return dict.fromkeys(tables, look)


@contextmanager
def logged(what: str) -> Iterator[None]:
    """Say on stderr how long something took."""
    began = time.perf_counter()
    yield
    _NEWS.print(f"{what}: {time.perf_counter() - began:.1f} s")


def fill(ledger: Ledger, *, streams: int, batches: int) -> None:
    """Give every stream a live run, its batches and its samples.

    Without triggers: one adds each batch to its sums, which takes hours when all are inserted by one statement.
    """
    with ledger.transaction() as connection:
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        for statement in _FILL.format(streams=streams, batches=batches).split(";"):
            with logged(statement.split("(")[0].strip()):
                connection.execute(text(statement))
    with (
        ledger.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        logged("VACUUM ANALYZE"),
    ):
        connection.execute(text("SET statement_timeout = 0"))
        connection.execute(text("VACUUM ANALYZE"))


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
    for number in track(range(refreshes), description="refreshes", console=_NEWS):
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
