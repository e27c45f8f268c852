"""Fills the ledger that `benchmarks.pages_time` reads: streams and tables with a history of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from sqlalchemy import text

from sluice.ledger.connection import Ledger

NEWS = Console(stderr=True)

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


@contextmanager
def logged(what: str) -> Iterator[None]:
    """Say on stderr how long something took."""
    began = time.perf_counter()
    yield
    NEWS.print(f"{what}: {time.perf_counter() - began:.1f} s")


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
