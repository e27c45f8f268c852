"""Many streams with a few queries: the same answers as one stream at a time, and by indexes only."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, text
from tests.fixtures.drill import first_of
from tests.fixtures.ledger_rows import find_lease
from tests.integration.ledger.test_batches import a_batch

from sluice.ledger.batches import newest_batch, record_batch
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.desired_states import find_desired_state, set_desired_state
from sluice.ledger.progress_samples import SourceSample
from sluice.ledger.run_values import DesiredState, RunState
from sluice.ledger.runs import admit_run, beat, newest_runs, recent_runs, record_end
from sluice.ledger.stream_figures import lag_history, read_figures, stream_history
from sluice.ledger.stream_records import read_streams
from sluice.ledger.stream_troubles import record_trouble
from sluice.supervision.progress_decision import oldest_unread

FILL = (
    "INSERT INTO sluice.batches (stream, generation, batch, run_id, started_at, duration_ms, input_rows, "
    "published_rows, refused_rows, late_rows, duplicate_rows, start_offsets, end_offsets, snapshot_ids, durations_ms, "
    "recorded_at) SELECT 's' || n % 100, 1, n, 'r', now(), 9, 10, '{\"main\": 9}', 1, 0, 0, '{}', '{}', '{}', "
    "'{\"addBatch\": 7}', now() - n * interval '1 second' FROM generate_series(0, 20000) AS n"
)


def admit(ledger: Ledger, stream: str) -> str:
    """Admit a run; its id."""
    run = admit_run(ledger, stream=stream, mode="continuous", declaration_digest="d", launched_by="a test")
    return run.run_id


def test_each_stream_is_as_it_is_when_asked_for_alone(ledger: Ledger) -> None:
    beat(ledger, admit(ledger, "runs"))
    record_end(ledger, admit(ledger, "failed"), state=RunState.FAILED, exit_code=1, reason="first")
    record_end(ledger, admit(ledger, "failed"), state=RunState.LOST, exit_code=None, reason="second")
    record_end(ledger, admit(ledger, "failed"), state=RunState.FINISHED, exit_code=0, reason="third")
    set_desired_state(ledger, "stopped", DesiredState.STOPPED, requested_by="ann")
    record_trouble(ledger, "failed", reason="given up", explanation="it failed", by="a test")
    for number in range(3):
        record_batch(ledger, a_batch(number, stream="runs"))
    names = ["failed", "never_heard_of", "runs", "stopped"]

    known = read_streams(ledger, names, runs_that_count=lambda newest, _: 0 if newest.is_live else 5)
    figures = read_figures(ledger, names)

    assert list(known) == names
    for name in names:
        assert known[name].desired == find_desired_state(ledger, name)
        assert known[name].lease == find_lease(ledger, name)
    assert [run.stream for run in newest_runs(ledger)] == ["failed", "runs"]
    assert known["runs"].runs == recent_runs(ledger, "runs", limit=5)
    assert known["failed"].runs == recent_runs(ledger, "failed", limit=5)
    assert [one.failed_runs for one in figures.values()] == [2, 0, 0, 0]
    assert known["failed"].trouble is not None
    assert known["failed"].trouble.explanation == "it failed"
    newest, alone = known["runs"].newest_batch, newest_batch(ledger, "runs")
    assert newest is not None
    assert alone is not None
    assert (newest.key, newest.watermark, newest.recorded_at) == (alone.key, alone.watermark, alone.recorded_at)
    deep = read_streams(ledger, names, with_progress=True)
    assert [len(one.batches) for one in deep.values()] == [0, 0, 3, 0]
    assert [len(one.runs) for one in deep.values()] == [2, 0, 1, 0], "no earlier run counts"
    assert figures["runs"].read_per_second == 300 / 60
    assert figures["runs"].published_per_second == 3 * 135 / 60
    assert figures["stopped"].read_per_second == 0
    assert figures["runs"].behind is None


@pytest.mark.parametrize("seed", first_of(*range(4)))
def test_the_age_of_unread_rows_is_that_of_the_one_rule(ledger: Ledger, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # no secret
    now = database_time(ledger)
    names = [f"s{number}" for number in range(25)]
    for name in names:
        read = 0
        for minutes in range(chance.randint(1, 30), 0, -1):
            read += chance.choice([0, 0, 10, 100])
            unread = chance.choice([0, 5, 50, 500, None])
            sample: dict[str, Any] = {"generation": chance.choice([1, 1, 1, 2]), "batch": 1, "read_rows": read}
            observed_at = now - timedelta(minutes=minutes)
            sample |= {"stream": name, "observed_at": observed_at, "unread_rows": unread, "problem": ""}
            with ledger.transaction() as connection:
                connection.execute(insert(SourceSample).values(undone=unread, is_failure=False, **sample))

    found, known = read_figures(ledger, names), read_streams(ledger, names, with_progress=True)

    for name in names:
        looked_at = found[name].observed_at
        samples = [one for one in known[name].samples if one.known_undone is not None]
        of_newest = [one for one in samples if one.generation == samples[0].generation] if samples else []
        expected = oldest_unread(samples, now=looked_at) if samples else None
        if len(of_newest) == 1 and expected == timedelta(0) and samples[0].known_undone:
            expected = looked_at - samples[0].observed_at  # all that is known: it was there then
        assert found[name].behind == expected, name


def test_the_lag_of_the_last_hours_has_gaps_where_it_was_unknown(ledger: Ledger) -> None:
    now = database_time(ledger)
    with ledger.transaction() as connection:
        for hours, unread in ((5.5, 10), (3.5, None), (2.5, 30), (0.1, 40)):
            values = {"stream": "clicks", "observed_at": now - timedelta(hours=hours), "read_rows": 0, "problem": ""}
            values["generation"] = 1
            connection.execute(insert(SourceSample).values(unread_rows=unread, is_failure=False, **values))

    history = lag_history(ledger, ["clicks", "unknown"], within=timedelta(hours=6), points=6)

    assert history == {"clicks": (10, None, None, 30, None, 40), "unknown": (None,) * 6}


def test_a_history_adds_up_what_each_step_did(ledger: Ledger) -> None:
    for number, state_rows in enumerate((None, 50, 40)):
        record_batch(ledger, replace(a_batch(number), state_rows=state_rows, state_bytes=state_rows and 9 * state_rows))

    history = stream_history(ledger, "flights", within=timedelta(hours=1), points=6)

    (step,) = [one for one in history.steps if one.batches]
    assert step == history.steps[-1]
    assert (step.batches, step.input_rows, step.published_rows) == (3, 300, 405)
    assert (step.refused_rows, step.late_rows, step.duplicate_rows, step.longest_ms) == (12, 9, 9, 420)
    assert step.phases_ms == {"addBatch": 300.0}
    assert (step.state_rows, step.state_bytes) == (50, 450), "the largest"
    assert history.unread_rows == (None,) * 6


@pytest.mark.full  # every run: what a look asks (`test_grown_ledger.py`)
def test_no_query_reads_a_whole_table(ledger: Ledger) -> None:
    names = [f"s{number}" for number in range(100)]
    with ledger.transaction() as connection:
        connection.execute(text(FILL))
        connection.execute(
            text(
                "INSERT INTO sluice.progress_samples (stream, observed_at, generation, read_rows, unread_rows) "
                "SELECT 's' || n % 100, now() - (n / 100) * interval '1 minute', 1, n, n % 7 "
                "FROM generate_series(0, 20000) AS n"
            )
        )
        connection.execute(
            text(
                "INSERT INTO sluice.runs (run_id, stream, generation, mode, state, desired_state, declaration_digest, "
                "launched_by, token, ended_at) SELECT 'r' || n, 's' || n % 100, 1, 'continuous', 'failed', 'running', "
                "'d', 'test', n, now() - n * interval '1 minute' FROM generate_series(0, 20000) AS n"
            )
        )
        connection.execute(
            text(
                "INSERT INTO sluice.leases (stream, token, run_id) "
                "SELECT 's' || n, n, 'r' || n FROM generate_series(0, 99) AS n"
            )
        )
        connection.execute(text("ANALYZE"))

    with explained(ledger) as plans:
        assert len(newest_runs(ledger)) == 100
        read_streams(ledger, names, runs_that_count=lambda *_: 11)
        read_figures(ledger, names)
        read_streams(ledger, names, with_progress=True)
        lag_history(ledger, names, within=timedelta(hours=6), points=24)
        stream_history(ledger, "s1", within=timedelta(hours=1), points=90)

    large = ("batches", "progress_samples", "runs")
    assert len(plans) >= 15
    assert [plan for plan in plans if any(f"Seq Scan on {table}" in plan for table in large)] == []


@contextmanager
def explained(ledger: Ledger) -> Iterator[list[str]]:
    """The plans of the queries that run inside the block."""
    plans: list[str] = []
    is_explaining = False

    def explain(
        connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool
    ) -> None:
        nonlocal is_explaining
        del cursor, context, executemany
        if is_explaining or not statement.startswith("SELECT"):
            return
        is_explaining = True
        try:
            rows = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars()
            plans.append("\n".join(rows))
        finally:
            is_explaining = False

    event.listen(ledger.engine, "before_cursor_execute", explain)
    try:
        yield plans
    finally:
        event.remove(ledger.engine, "before_cursor_execute", explain)
