"""How long the ledger takes to delete old batches row by row, compared with dropping the partitions of whole days.

    .venv/bin/python -m benchmarks.retention_time [--rows 500000] [--days 60] [--kept 30]

Row by row is what `sluice.ledger.retention.apply_retention` does. The twin is the same table partitioned by the day of
`recorded_at`; the partition of each old day is dropped. While either works, a driver records
a batch every 20 ms: how long its record takes is what a stream would feel.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from sqlalchemy import text
from tests.fixtures.ledger import running_postgres

from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.migrations import upgrade
from sluice.ledger.retention import Retention, apply_retention

STREAMS = 100

_FILL = """
INSERT INTO {table} (stream, generation, batch, run_id, started_at, duration_ms, input_rows, published_rows,
  refused_rows, late_rows, duplicate_rows, start_offsets, end_offsets, snapshot_ids, durations_ms, recorded_at)
SELECT 'flights_' || n % {streams}, 1, n / {streams}, 'run', at, 900, 1000, '{{"rows": 990}}', 10, 0, 0,
  jsonb_build_object('records', jsonb_build_object('flights', jsonb_build_object('0', n, '1', n))),
  jsonb_build_object('records', jsonb_build_object('flights', jsonb_build_object('0', n + 1000, '1', n + 1000))),
  jsonb_build_object('rows', n), '{{"triggerExecution": 900, "addBatch": 800}}', at
FROM (SELECT n, now() - interval '1 day' * ({days} - n * {days}.0 / {rows}) AS at
      FROM generate_series(0, {rows} - 1) AS n) AS filled
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What it took. record_ms: how long the records of a driver took meanwhile, in milliseconds."""

    way: str
    seconds: float
    megabytes_before: float
    megabytes_after: float
    record_ms: Sequence[float]


def run_sql(ledger: Ledger, statement: str) -> None:
    """Run one statement, however long it takes."""
    with ledger.transaction() as connection:
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text(statement))


def megabytes(ledger: Ledger, tables: str) -> float:
    """The size of all tables whose name is like this, with their indexes."""
    question = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname LIKE :tables"
    with ledger.transaction() as connection:
        return float(connection.execute(text(question), {"tables": tables}).scalar_one()) / 1e6


@contextmanager
def recording(ledger: Ledger, table: str) -> Iterator[list[float]]:
    """A driver that records batches until the block ends; how long each record took, in milliseconds."""
    ended = threading.Event()
    took: list[float] = []

    def record_all() -> None:
        number = 10**9
        while not ended.wait(0.02):
            number += 1
            began = time.monotonic()
            if table == "sluice.batches":
                record_batch(ledger, _batch(number))
            else:
                run_sql(ledger, _FILL.format(table=table, streams=1, days=0, rows=1).replace("n / 1", str(number)))
            took.append(1000 * (time.monotonic() - began))

    driver = threading.Thread(target=record_all)
    driver.start()
    try:
        yield took
    finally:
        ended.set()
        driver.join()


def measure(ledger: Ledger, way: str, *, table: str, like: str, delete: Callable[[], object]) -> Deletion:
    """Delete the old batches in one way, and measure it."""
    before = megabytes(ledger, like)
    with recording(ledger, table) as took:
        began = time.monotonic()
        delete()
        seconds = time.monotonic() - began
    after = megabytes(ledger, like)
    return Deletion(way=way, seconds=seconds, megabytes_before=before, megabytes_after=after, record_ms=took)


def make_partitions(ledger: Ledger, *, days: int) -> list[str]:
    """The empty twin, with a partition for each day and one ahead; the partitions, oldest first."""
    run_sql(ledger, "CREATE TABLE daily (LIKE sluice.batches INCLUDING DEFAULTS) PARTITION BY RANGE (recorded_at)")
    run_sql(ledger, "CREATE UNIQUE INDEX ON daily (stream, generation, batch, recorded_at)")
    run_sql(ledger, "CREATE INDEX ON daily (stream, recorded_at)")
    run_sql(ledger, "CREATE INDEX ON daily (run_id)")
    names = []
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for back in range(days + 1, -2, -1):
        day = midnight - timedelta(days=back)
        name = f"daily_{day:%Y%m%d}"
        until = day + timedelta(days=1)
        run_sql(ledger, f"CREATE TABLE {name} PARTITION OF daily FOR VALUES FROM ('{day}') TO ('{until}')")
        names.append(name)
    return names


def drop(ledger: Ledger, partitions: Sequence[str]) -> None:
    """Drop each day, in one transaction for each."""
    for name in partitions:
        with ledger.transaction() as connection:
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text(f"DROP TABLE {name}"))


def _batch(number: int) -> BatchObservation:
    return BatchObservation(
        key=PublicationKey(stream="beside", generation=1, batch=number),
        run_id="run",
        started_at=datetime.now(UTC),
        duration_ms=900,
        input_rows=1000,
        published_rows={"rows": 1000},
    )


def show(found: Sequence[Deletion]) -> None:
    """A table."""
    table = Table(title="Forgetting old batches")
    for heading in ("way", "seconds", "MB before", "MB after", "records", "record p50 ms", "p99", "worst"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for one in found:
        ordered = sorted(one.record_ms) or [0.0]
        at = (ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1])
        cells = (one.seconds, one.megabytes_before, one.megabytes_after)
        table.add_row(one.way, *(f"{cell:.0f}" for cell in cells), str(len(ordered)), *(f"{cell:.1f}" for cell in at))
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--kept", type=int, default=30)
    chosen = parser.parse_args(arguments)
    filled = {"streams": STREAMS, "days": chosen.days, "rows": chosen.rows}
    kept = Retention(batches=timedelta(days=chosen.kept), runs=timedelta(days=chosen.kept))
    with (
        tempfile.TemporaryDirectory(prefix="sluice-retention-") as place,
        running_postgres(Path(place)) as server,
    ):
        url = server.url.render_as_string(hide_password=False)
        upgrade(url)
        with open_ledger(url) as ledger:
            run_sql(ledger, _FILL.format(table="sluice.batches", **filled))
            rows = measure(
                ledger,
                "row by row",
                table="sluice.batches",
                like="batches",
                delete=partial(apply_retention, ledger, kept),
            )
            partitions = make_partitions(ledger, days=chosen.days)
            run_sql(ledger, _FILL.format(table="daily", **filled))
            old = partitions[: chosen.days - chosen.kept + 1]
            days = measure(ledger, "day by day", table="daily", like="daily%", delete=partial(drop, ledger, old))
    show([rows, days])
    return 0


if __name__ == "__main__":
    sys.exit(main())
