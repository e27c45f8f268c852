"""What the batches of a stream did over time, in equal steps: for the charts of its page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Integer, Subquery, cast, func, literal, select, true

from sluice.ledger.batches import Batch
from sluice.ledger.connection import Ledger
from sluice.ledger.progress_samples import SourceSample

MOST_BATCHES = 20_000
"""How many of the newest batches are read at most: five hours of a stream with one a second, in a tenth of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStep:
    """The batches that were recorded within one step, together.

    longest_ms: the duration of the longest one. phases_ms: the mean of each phase, under Spark's names.
    state_rows, state_bytes: the largest size of the state; unset where no batch reported one.
    """

    batches: int = 0
    input_rows: int = 0
    published_rows: int = 0
    refused_rows: int = 0
    late_rows: int = 0
    duplicate_rows: int = 0
    longest_ms: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    phases_ms: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHistory:
    """A stream over time. steps, unread_rows: oldest first; unread rows are unset where they were unknown."""

    since: datetime
    until: datetime
    step: timedelta
    steps: tuple[HistoryStep, ...]
    unread_rows: tuple[int | None, ...]


def stream_history(ledger: Ledger, stream: str, *, within: timedelta, points: int) -> StreamHistory:
    """Read the history of a stream up to now, in so many steps."""
    step = within / points
    with ledger.transaction() as connection:
        until: datetime = connection.execute(select(func.now())).scalar_one()
        since = until - within
        recent = _recent(stream, since, step)
        sums = {row.step: row._asdict() for row in connection.execute(_sums(recent))}
        phases: dict[int, dict[str, float]] = {}
        for row in connection.execute(_phases(recent)):
            phases.setdefault(row.step, {})[row.phase] = float(row.mean)
        unread = {row.step: row.unread for row in connection.execute(_unread(stream, since, step))}
    steps = []
    for number in range(points):
        values = sums.get(number, {})
        values.pop("step", None)
        steps.append(HistoryStep(**values, phases_ms=phases.get(number, {})))
    return StreamHistory(
        since=since,
        until=until,
        step=step,
        steps=tuple(steps),
        unread_rows=tuple(unread.get(number) for number in range(points)),
    )


def _step_of(moment: Any, since: datetime, step: timedelta) -> Any:
    return cast(func.floor(func.extract("epoch", moment - literal(since)) / step.total_seconds()), Integer)


def _recent(stream: str, since: datetime, step: timedelta) -> Subquery:
    columns = Batch.__table__.columns
    return (
        select(
            _step_of(Batch.recorded_at, since, step).label("step"),
            *(
                columns[name]
                for name in (
                    "input_rows",
                    "published_rows",
                    "refused_rows",
                    "late_rows",
                    "duplicate_rows",
                    "duration_ms",
                    "durations_ms",
                    "state_rows",
                    "state_bytes",
                )
            ),
        )
        .where(Batch.stream == stream, Batch.recorded_at > since)
        .order_by(Batch.recorded_at.desc())
        .limit(MOST_BATCHES)
        .subquery("recent")
    )


def _sums(recent: Subquery) -> Any:
    values = func.jsonb_each_text(recent.c.published_rows).table_valued("key", "value")
    published = select(func.sum(cast(values.c.value, BigInteger))).select_from(values).scalar_subquery()
    return select(
        recent.c.step,
        func.count().label("batches"),
        *(
            cast(func.sum(recent.c[name]), BigInteger).label(name)
            for name in ("input_rows", "refused_rows", "late_rows", "duplicate_rows")
        ),
        cast(func.coalesce(func.sum(published), 0), BigInteger).label("published_rows"),
        func.max(recent.c.duration_ms).label("longest_ms"),
        func.max(recent.c.state_rows).label("state_rows"),
        func.max(recent.c.state_bytes).label("state_bytes"),
    ).group_by(recent.c.step)


def _phases(recent: Subquery) -> Any:
    phase = func.jsonb_each_text(recent.c.durations_ms).table_valued("key", "value").lateral("phase")
    return (
        select(recent.c.step, phase.c.key.label("phase"), func.avg(cast(phase.c.value, BigInteger)).label("mean"))
        .select_from(recent.join(phase, true()))
        .group_by(recent.c.step, phase.c.key)
    )


def _unread(stream: str, since: datetime, step: timedelta) -> Any:
    number = _step_of(SourceSample.observed_at, since, step).label("step")
    unread = func.max(func.coalesce(SourceSample.unread_rows, SourceSample.undone)).label("unread")
    return (
        select(number, unread).where(SourceSample.stream == stream, SourceSample.observed_at > since).group_by(number)
    )
