"""Streams, runs and batches as tables for a person and as JSON for a program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from rich.table import Table
from rich.text import Text

from sluice.failure_reasons import Failure, next_step
from sluice.failures.classification import failure_of_run
from sluice.ledger.batch_findings import UndeclaredField
from sluice.ledger.batches import BatchObservation
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.source_schemas import SourceSchema, phrase_of
from sluice.supervision.stream_status import StreamRow
from sluice.supervision.stream_verdict import StreamState, StreamVerdict

_QUIET_STATES = frozenset({StreamState.NEVER_STARTED, StreamState.STOPPED, StreamState.FINISHED})


def rows_table(rows: Sequence[StreamRow], *, title: str | None = None) -> Table:
    """Streams with their figures: stream, state, batch, rows, rows/s, batch time, lag, last batch."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("stream")
    table.add_column("state")
    for heading in ("batch", "rows", "rows/s", "batch time", "lag", "last batch"):
        table.add_column(heading, justify="right")
    for row in rows:
        batch = row.seen.newest_batch
        table.add_row(
            row.stream,
            state_text(row.verdict),
            "" if batch is None else f"{batch.key.batch:,}",
            f"{row.totals.input_rows:,}",
            f"{row.rows_per_second:,.0f}",
            "" if batch is None else f"{batch.duration_ms / 1000:.1f} s",
            row.lag.text,
            "" if row.seen.batch_age is None else f"{age_text(row.seen.batch_age)} ago",
        )
    return table


def state_text(verdict: StreamVerdict) -> Text:
    """The state, in the colour of its verdict."""
    if not verdict.is_healthy:
        return Text(verdict.state, style="red")
    return Text(verdict.state, style="dim" if verdict.state in _QUIET_STATES else "green")


def remarks(rows: Iterable[StreamRow]) -> list[str]:
    """Sentences below a table: why a stream is unhealthy, and why a lag is unknown."""
    sentences = []
    for row in rows:
        if not row.verdict.is_healthy:
            step = row.verdict.next_step if row.verdict.failure is None else ""
            sentences.append(f"{row.stream}: {row.verdict.explanation} {step}".rstrip())
        if row.lag.problem:
            sentences.append(f"{row.stream}: the lag is unknown: {row.lag.problem}.")
    return sentences


def row_json(row: StreamRow) -> dict[str, Any]:
    """A stream with its figures, for a program."""
    batch, run = row.seen.newest_batch, row.seen.newest_run
    return {
        "stream": row.stream,
        "mode": row.mode,
        "state": row.verdict.state,
        "healthy": row.verdict.is_healthy,
        "explanation": row.verdict.explanation,
        "failure": None if row.verdict.failure is None else failure_json(row.verdict.failure, stream=row.stream),
        "desired_state": row.seen.desired.desired_state,
        "run_id": None if run is None else run.run_id,
        "batch": None if batch is None else batch.key.batch,
        "generation": None if batch is None else batch.key.generation,
        "batches": row.totals.batches,
        "rows": row.totals.input_rows,
        "published_rows": dict(row.totals.published_rows),
        "refused_rows": row.totals.refused_rows,
        "late_rows": row.totals.late_rows,
        "duplicate_rows": row.totals.duplicate_rows,
        "rows_per_second": row.rows_per_second,
        "batch_ms": None if batch is None else batch.duration_ms,
        "batch_age_seconds": _seconds(row.seen.batch_age),
        "heartbeat_age_seconds": _seconds(row.seen.heartbeat_age),
        "lag_rows": row.lag.rows,
        "lag_files": row.lag.files,
        "lag_problem": row.lag.problem or None,
    }


def failure_json(failure: Failure, *, stream: str) -> dict[str, str]:
    """A failure with its meaning and the next step of the on-call guide, for a program."""
    return {
        "class": failure.failure_class,
        "reason": failure.reason,
        "means": failure.reason.means,
        "next_step": next_step(failure.reason, stream=stream),
    }


def runs_table(runs: Sequence[RunObservation]) -> Table:
    """Runs, newest first."""
    table = Table(title="Runs", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("run", "state", "launched", "ended", "launched by", "version", "failure", "reason"):
        table.add_column(heading, overflow="fold")
    for run in runs:
        table.add_row(
            run.run_id[:8],
            run.state,
            f"{run.launched_at:%Y-%m-%d %H:%M:%S}",
            "" if run.ended_at is None else f"{run.ended_at:%Y-%m-%d %H:%M:%S}",
            run.launched_by,
            run.version,
            _failure_text(run),
            run.reason or "",
        )
    return table


def _failure_text(run: RunObservation) -> str:
    if run.state not in (RunState.FAILED, RunState.LOST):
        return ""
    failure = failure_of_run(run)
    return f"{failure.failure_class}: {failure.reason}"


def batches_table(batches: Sequence[BatchObservation]) -> Table:
    """Batches, newest first."""
    table = Table(title="Batches", title_justify="left", box=None, padding=(0, 2, 0, 0))
    headings = ("batch", "started", "read", "published", "refused", "late", "duplicate", "batch time", "watermark")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "started" else "right")
    for batch in batches:
        table.add_row(
            f"{batch.key.generation}:{batch.key.batch}",
            f"{batch.started_at:%Y-%m-%d %H:%M:%S}",
            f"{batch.input_rows:,}",
            f"{sum(batch.published_rows.values()):,}",
            f"{batch.refused_rows:,}",
            f"{batch.late_rows:,}",
            f"{batch.duplicate_rows:,}",
            f"{batch.duration_ms / 1000:.1f} s",
            "" if batch.watermark is None else f"{batch.watermark:%Y-%m-%d %H:%M:%S}",
        )
    return table


def fields_table(fields: Sequence[UndeclaredField]) -> Table:
    """Fields that no column takes."""
    table = Table(title="Fields that are not declared", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("input", "field", "times", "first seen", "in batch", "last seen", "in batch"):
        table.add_column(heading, justify="right" if heading == "times" else "left", overflow="fold")
    for one in fields:
        seen = (f"{one.first_seen_at:%Y-%m-%d %H:%M:%S}", one.first_batch)
        again = (f"{one.last_seen_at:%Y-%m-%d %H:%M:%S}", one.last_batch)
        table.add_row(one.input, Text(one.field), f"{one.times:,}", *seen, *again)
    return table


def schemas_table(schemas: Sequence[SourceSchema]) -> Table:
    """The schemas that inputs were last seen with."""
    table = Table(title="Schemas of the inputs", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("input", "source", "fields", "since", "what changed", "what the stream did"):
        table.add_column(heading, justify="right" if heading == "fields" else "left", overflow="fold")
    for one in schemas:
        changes, answer = (phrase_of(one.changes), one.answer) if one.changes else ("nothing yet", "")
        since = f"{one.seen_at:%Y-%m-%d %H:%M:%S}"
        table.add_row(one.input, Text(one.source), f"{len(one.fields):,}", since, Text(changes), answer)
    return table


def age_text(age: timedelta) -> str:
    """An age in its largest unit, for example `12 s`, `3 min`, `5 h`, `2 d`."""
    seconds = max(0, round(age.total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _seconds(age: timedelta | None) -> float | None:
    return None if age is None else round(age.total_seconds(), 3)
