"""A ledger after a year of 200 streams: how long its nightly retention, a pass, a turn of what watches the rows of
tables, and a page take, and how large it is.

    .venv/bin/python -m benchmarks.ledger_year [--streams 200] [--batches 5000] [--increments 5] [--scale 1.0]

It is filled as retention leaves it: batches of 30 days, runs of 90, events and checks of a year or as long as they are
kept, and what the night before has made old. A month of batches every two seconds would be 260 million rows, so each
stream has a few thousand, and the night's share of them; a night costs by what it removes. The hours of 16 weeks have
rows and the figures of eight columns each. `--scale` takes a part of
the rest. Then an hour of heartbeats is written, one every two seconds, which only updates rows. Ends with 1 when a
night takes more than 60 seconds, a pass or a turn more than 5, the look of a page more than 1, or when heartbeats let a
table grow by more than 8 MiB: autovacuum or the pruning of pages does not keep up with them.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table
from sqlalchemy import text
from tests.fixtures.grown_ledgers import AliveLauncher, let_grow, looked, named
from tests.fixtures.ledger import running_postgres
from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import LaunchError
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.migrations import upgrade
from sluice.ledger.retention import Retention, apply_retention
from sluice.supervision.rows_watch import JUDGED_EVERY_MINUTES, watch_rows
from sluice.supervision.stream_status import observe_rows
from sluice.supervision.supervisor import Supervisor

NIGHT_SECONDS, PASS_SECONDS, PAGE_SECONDS = 60.0, 5.0, 1.0
HEARTBEATS, GROWN_MEBIBYTES = 1_800, 8.0
RETENTION = Retention(batches=timedelta(days=30), runs=timedelta(days=90), events=timedelta(days=365))

_OF_A_YEAR = {
    "runs": """
INSERT INTO sluice.runs (run_id, stream, generation, mode, state, desired_state, declaration_digest, launched_by,
    launched_at, token, process_host, process_pid, process_started_at_seconds, heartbeat_at, ended_at, exit_code,
    reason)
SELECT 'minute-' || stream || '-' || n, 'minutes_' || stream, 1, 'incremental', 'finished', 'running', 'd', 'a year',
    at, n, 'here', n, 1.0, at, at, 0, 'finished'
FROM generate_series(1, CAST(:increments AS int)) AS stream,
    LATERAL (SELECT n, now() - interval '1 minute' * (CAST(:minutes AS int) - n) AS at
             FROM generate_series(1, CAST(:minutes AS int)) AS n) AS run""",
    "leases": """
INSERT INTO sluice.leases (stream, token, run_id)
SELECT stream, max(token), max(run_id) FROM sluice.runs WHERE stream LIKE 'minutes_%' GROUP BY stream""",
    "batches": """
UPDATE sluice.batches SET recorded_at = recorded_at - interval '30 days' WHERE batch <= CAST(:old_batches AS int)""",
    "events": """
INSERT INTO sluice.events (recorded_at, subject, name, actor_kind, actor_name, action, reason, explanation, evidence)
SELECT now() - interval '366 days' * n / CAST(:events AS int), 'stream', 'flights_' || stream, 'component', 'a year',
    'launch', 'restart_due', 'It was restarted.', '{}'
FROM generate_series(0, CAST(:streams AS int) - 1) AS stream, generate_series(1, CAST(:events AS int)) AS n""",
    "checkpoint_checks": """
INSERT INTO sluice.checkpoint_checks (stream, generation, location, checked_at, findings, recorded_at)
SELECT 'flights_' || stream, 1, 's3://c', at, '[]', at
FROM generate_series(0, CAST(:streams AS int) - 1) AS stream,
    LATERAL (SELECT now() - interval '31 days' * n / CAST(:checks AS int) AS at
             FROM generate_series(CAST(:checks AS int), 1, -1) AS n) AS checked""",
    "quality_results": """
INSERT INTO sluice.quality_results ("table", checked_at, launched_by, verdict, rows, expectations, failed_expectations,
    recorded_at)
SELECT 'silver.flights_' || stream, at, 'a year', 'passed', 1000, 5, '[]', at
FROM generate_series(0, CAST(:streams AS int) - 1) AS stream,
    LATERAL (SELECT now() - interval '1 day' * n AS at FROM generate_series(91, 1, -1) AS n) AS checked""",
    "hourly_rows": """
INSERT INTO sluice.hourly_rows (stream, hour, batches, input_rows, rejected_rows, published_rows)
SELECT 'flights_' || stream, date_trunc('hour', now(), 'UTC') - interval '1 hour' * n, 1800,
    rows, rows / 100, jsonb_build_object('main', rows)
FROM generate_series(0, CAST(:streams AS int) - 1) AS stream, generate_series(CAST(:hours AS int), 1, -1) AS n,
    LATERAL (SELECT CAST(1000 + 500 * sin(n * pi() / 12) + 100 * random() AS int) AS rows) AS counted
ON CONFLICT DO NOTHING""",
    "hourly_columns": """
INSERT INTO sluice.hourly_columns (stream, output, hour, figures)
SELECT 'flights_' || stream, 'main', date_trunc('hour', now(), 'UTC') - interval '1 hour' * n,
    (SELECT jsonb_object_agg('c' || c, jsonb_build_object('rows', 1000, 'nulls', CAST(20 * random() AS int),
        'lowest', random(), 'highest', 100 + random())) FROM generate_series(1, 8) AS c WHERE n > 0)
FROM generate_series(0, CAST(:streams AS int) - 1) AS stream, generate_series(CAST(:hours AS int), 1, -1) AS n""",
}
_BEAT = (
    "UPDATE sluice.runs SET heartbeat_at = clock_timestamp() WHERE ended_at IS NULL",
    "UPDATE sluice.leases SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + interval '2 minutes' "
    "WHERE expires_at IS NOT NULL",
)
"""What the heartbeats of all drivers write, as one statement for each table."""

_UPDATES = """
SELECT relname, n_tup_upd, n_tup_hot_upd, n_dead_tup, pg_total_relation_size(relid) / 1048576.0, autovacuum_count
FROM pg_stat_user_tables WHERE schemaname = 'sluice' AND relname IN ('runs', 'leases') ORDER BY relname"""

_SIZES = """
SELECT relname, n_live_tup, n_dead_tup, pg_total_relation_size(relid) / 1048576.0, autovacuum_count
FROM pg_stat_user_tables WHERE schemaname = 'sluice' ORDER BY 4 DESC LIMIT 8"""


def _run(ledger: Ledger, *statements: str, values: dict[str, int] | None = None) -> None:
    with ledger.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("SET statement_timeout = 0"))
        for statement in statements:
            connection.execute(text(statement), values or {})


def fill(ledger: Ledger, *, streams: int, batches: int, increments: int, scale: float) -> None:
    """A year of this many streams, of which some are incremental and run each minute."""
    let_grow(ledger, streams=streams, batches=batches, runs=300, digest="d")
    values = {
        "streams": streams,
        "increments": increments,
        "minutes": int(91 * 1440 * scale),
        "old_batches": batches // 30,
        "events": int(1800 * scale),
        "checks": int(31 * 144 * scale),
        "hours": int((16 * 7 + 1) * 24 * scale),
    }
    _run(ledger, *_OF_A_YEAR.values(), values=values)
    _run(ledger, "VACUUM ANALYZE")


def _timed(what: Callable[[], object]) -> tuple[float, object]:
    began = time.perf_counter()
    found = what()
    return time.perf_counter() - began, found


def _no_driver(*_: object) -> object:
    raise LaunchError("this benchmark starts no driver")


def declare(folder: Path, *, streams: int) -> Declarations:
    """The streams, each with a table of its own."""
    write_table(folder, "bronze.flights")
    (folder / "rows.sql").write_text("SELECT * FROM rows")
    columns = "".join(f"  - {{name: c{number}, type: double}}\n" for number in range(1, 9))
    for number in range(streams):
        name = f"flights_{number}"
        file = write_table(folder, f"silver.{name}")
        file.write_text(f"{file.read_text().partition('columns:')[0]}columns:\n{columns}")
        write_continuous_stream(folder, name, writes=f"silver.{name}")
    declarations = load_declarations(folder)
    declarations.require_valid()
    return declarations


def measure(ledger: Ledger, declarations: Declarations, *, streams: int, table: Table) -> bool:
    """Two nights, a pass, a turn, and the look of a page. Returns whether all stay within their limits."""
    supervisor = Supervisor(
        ledger=ledger, launcher=AliveLauncher(ledger), request_for=_no_driver, launched_by="a benchmark"  # type: ignore[arg-type]  # it is not called
    )  # fmt: skip
    declared = [named(number) for number in range(streams)]
    steps: tuple[tuple[str, float, Callable[[], object]], ...] = (
        ("the night's retention", NIGHT_SECONDS, lambda: apply_retention(ledger, RETENTION)),
        ("the next one, with nothing old", NIGHT_SECONDS, lambda: apply_retention(ledger, RETENTION)),
        ("a pass, alerts", PASS_SECONDS, lambda: len(looked(supervisor, ledger, streams=streams, of=streams))),
        (
            f"the rows of a {JUDGED_EVERY_MINUTES}th of the tables, unusual",
            PASS_SECONDS,
            lambda: len(watch_rows(ledger, declarations, number=0, by="a benchmark")),
        ),
        (
            "all streams, as the page has them",
            PAGE_SECONDS,
            lambda: len(observe_rows(declared, ledger=ledger, launcher=supervisor.launcher, heads=None)),
        ),
    )
    is_within = True
    for what, limit, step in steps:
        seconds, found = _timed(step)
        is_within = is_within and seconds <= limit
        table.add_row(what, f"{seconds:.2f}", f"{limit:.0f}", str(found))
    return is_within


def measure_bloat(ledger: Ledger, *, table: Table) -> bool:
    """An hour of heartbeats. Returns whether no table has grown beyond the limit."""
    before = _updates(ledger)
    for _ in range(HEARTBEATS):
        _run(ledger, *_BEAT)
    _run(ledger, "SELECT pg_stat_force_next_flush()")
    is_within = True
    for name, (updated, hot, dead, mebibytes, vacuums) in _updates(ledger).items():
        written, grown = updated - before[name][0], mebibytes - before[name][3]
        share = f"{100 * (hot - before[name][1]) / max(1, written):.0f} %"
        is_within = is_within and written > 0 and grown <= GROWN_MEBIBYTES
        table.add_row(name, f"{written:,}", share, f"{dead:,}", f"{grown:.1f}", f"{GROWN_MEBIBYTES:.0f}", str(vacuums))
    return is_within


def _updates(ledger: Ledger) -> dict[str, tuple[int, int, int, float, int]]:
    """Of each table: its updates, those within a page, its dead rows, its size and how often it was vacuumed."""
    with ledger.transaction() as connection:
        return {
            name: (updated, hot, dead, float(mebibytes), vacuums)
            for name, updated, hot, dead, mebibytes, vacuums in connection.execute(text(_UPDATES))
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--batches", type=int, default=5_000)
    parser.add_argument("--increments", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    chosen = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # a line for each look
    table, sizes = Table(title="A ledger after a year"), Table(title="Its largest tables, after the nights")
    for heading in ("what", "seconds", "at most", "result"):
        table.add_column(heading)
    bloat = Table(title="After an hour of heartbeats")
    for heading in ("table", "updates", "within the page", "dead rows", "MiB grown", "at most", "autovacuums"):
        bloat.add_column(heading)
    for heading in ("table", "rows", "dead rows", "MiB", "autovacuums"):
        sizes.add_column(heading)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-year-") as place,
        tempfile.TemporaryDirectory() as folder,
        running_postgres(Path(place)) as server,
    ):
        url = server.url.render_as_string(hide_password=False)
        upgrade(url)
        with open_ledger(url) as ledger:
            seconds, _ = _timed(
                lambda: fill(
                    ledger,
                    streams=chosen.streams,
                    batches=chosen.batches,
                    increments=chosen.increments,
                    scale=chosen.scale,
                )
            )
            declarations = declare(Path(folder), streams=chosen.streams)
            is_within = measure(ledger, declarations, streams=chosen.streams, table=table)
            is_within = measure_bloat(ledger, table=bloat) and is_within
            with ledger.transaction() as connection:
                for name, rows, dead, mebibytes, vacuums in connection.execute(text(_SIZES)):
                    sizes.add_row(name, f"{rows:,}", f"{dead:,}", f"{mebibytes:,.0f}", str(vacuums))
    for shown in (table, bloat, sizes, f"filled in {seconds:.0f} s"):
        Console().print(shown)
    return int(not is_within)


if __name__ == "__main__":
    sys.exit(main())
