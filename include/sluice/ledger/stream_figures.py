"""Figures of streams: of many at once what they read and publish, how far they are behind and how often they fail; of
one, what its batches did over time.

Each query on many streams takes their names and looks up the newest rows of each by an index (`LATERAL … LIMIT`), so
its cost grows with the number of streams and not with the number of batches, runs or samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Row,
    Select,
    Subquery,
    TableValuedAlias,
    and_,
    cast,
    func,
    literal,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB

from sluice.ledger.batches import Batch
from sluice.ledger.connection import Ledger
from sluice.ledger.progress_samples import SourceSample
from sluice.ledger.run_leases import Run
from sluice.ledger.run_values import RunState
from sluice.ledger.stream_records import asked_for

RATE_WINDOW = timedelta(minutes=1)
"""The time over which rates are computed: some batches of most streams, and still recent."""

FAILURES_WITHIN = timedelta(days=1)
"""The time in which failed runs are counted."""

MOST_RUNS_COUNTED = 100
"""Of the newest runs of a stream; one that fails more often within a day is shown with this many."""

_LONG_AGO: ColumnElement[datetime] = literal_column("'-infinity'::timestamptz")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFigures:
    """The figures of a stream.

    observed_at: when they were read, by the database's clock.
    read_per_second, published_per_second: rows, by its batches of the last `RATE_WINDOW` together.
    behind: how old its oldest unread row is at least; unset when unknown.
    failed_runs: those that failed or were lost within `FAILURES_WITHIN`.
    """

    observed_at: datetime
    read_per_second: float = 0.0
    published_per_second: float = 0.0
    behind: timedelta | None = None
    failed_runs: int = 0


def read_figures(ledger: Ledger, names: Sequence[str]) -> Mapping[str, StreamFigures]:
    """Read the figures of these streams, with three queries."""
    asked = asked_for(names)
    with ledger.transaction() as connection:
        arrivals = {row.stream: row for row in connection.execute(_select_arrivals(asked))}
        rates = {row.stream: row for row in connection.execute(_select_rates(asked))}
        failed = {row.stream: row.failed for row in connection.execute(_select_failed_runs(asked))}
    seconds = RATE_WINDOW.total_seconds()
    return {
        name: StreamFigures(
            observed_at=rates[name].now,
            read_per_second=float(rates[name].read or 0) / seconds,
            published_per_second=float(rates[name].published or 0) / seconds,
            behind=_behind(arrivals[name], rates[name].now) if name in arrivals else None,
            failed_runs=failed.get(name, 0),
        )
        for name in names
    }


def _behind(arrival: Row[Any], now: datetime) -> timedelta | None:
    if arrival.undone == 0:
        return timedelta(0)
    if arrival.unread_rows is None or arrival.arrived_at is None:
        return None
    behind: timedelta = now - arrival.arrived_at
    return max(behind, timedelta(0))


def lag_history(
    ledger: Ledger, names: Sequence[str], *, within: timedelta, points: int
) -> Mapping[str, tuple[int | None, ...]]:
    """The unread rows of each stream at evenly spaced times, oldest first; unset where they were unknown.

    Each point is one look-up of an index, so streams that are sampled more often cost no more.
    """
    query = _select_lag_history(asked_for(names), within=within, points=points)
    with ledger.transaction() as connection:
        unread = {row.stream: row.unread for row in connection.execute(query)}
    return {name: tuple(unread.get(name, {}).get(str(point)) for point in range(points)) for name in names}


def _select_arrivals(asked: TableValuedAlias) -> Select[Any]:
    """When the oldest unread row of each stream had arrived at the latest.

    The rule is that of `progress_decision.oldest_unread`: it arrived after the newest sample whose input has all been
    read by now, so at the latest with the sample that follows that one.
    """
    newest = (
        select(*SourceSample.columns())
        .where(SourceSample.stream == asked.c.stream)
        .where(func.coalesce(SourceSample.undone, SourceSample.unread_rows).is_not(None))
        .order_by(SourceSample.observed_at.desc())
        .limit(1)
        .lateral("newest_known")
    )
    sample = SourceSample.__table__.alias("sample")
    same = and_(
        sample.c.stream == asked.c.stream,
        sample.c.generation == newest.c.generation,
        sample.c.unread_rows.is_not(None),
    )
    is_read = sample.c.read_rows + sample.c.unread_rows <= newest.c.read_rows
    covered = (
        select(sample.c.observed_at)
        .where(same, is_read, sample.c.observed_at < newest.c.observed_at)
        .order_by(sample.c.observed_at.desc())
        .limit(1)
        .lateral("covered")
    )
    following = (
        select(sample.c.observed_at)
        .where(
            same,
            sample.c.observed_at > func.coalesce(covered.c.observed_at, _LONG_AGO),
        )
        .order_by(sample.c.observed_at)
        .limit(1)
        .lateral("following")
    )
    joined = asked.join(newest, true()).outerjoin(covered, true()).outerjoin(following, true())
    undone = func.coalesce(newest.c.undone, newest.c.unread_rows)
    return select(
        asked.c.stream, undone.label("undone"), newest.c.unread_rows, following.c.observed_at.label("arrived_at")
    ).select_from(joined)


def _select_rates(asked: TableValuedAlias) -> Select[Any]:
    """The rows that the batches of the last `RATE_WINDOW` read and published."""
    values = func.jsonb_each_text(Batch.published_rows).table_valued("key", "value")
    published = select(func.sum(cast(values.c.value, BigInteger))).select_from(values).scalar_subquery()
    sums = (
        select(
            func.sum(Batch.input_rows).label("read"),
            func.sum(published).label("published"),
        )
        .where(Batch.stream == asked.c.stream, Batch.recorded_at >= func.now() - RATE_WINDOW)
        .lateral("sums")
    )
    return select(asked.c.stream, func.now().label("now"), sums.c.read, sums.c.published).select_from(
        asked.join(sums, true())
    )


def _select_failed_runs(asked: TableValuedAlias) -> Select[Any]:
    """How many of the newest runs of each stream failed or were lost within `FAILURES_WITHIN`."""
    newest = (
        select(Run.state, Run.ended_at)
        .where(Run.stream == asked.c.stream)
        .order_by(Run.number.desc())
        .limit(MOST_RUNS_COUNTED)
        .lateral("newest")
    )
    has_failed = newest.c.state.in_([str(RunState.FAILED), str(RunState.LOST)])
    is_recent = newest.c.ended_at >= func.now() - FAILURES_WITHIN
    return (
        select(asked.c.stream, func.count().label("failed"))
        .select_from(asked.join(newest, true()))
        .where(has_failed, is_recent)
        .group_by(asked.c.stream)
    )


def _select_lag_history(asked: TableValuedAlias, *, within: timedelta, points: int) -> Select[Any]:
    """The newest sample at or before each of several evenly spaced times, by its number from 0, in a row a stream."""
    step = within / points
    numbers = func.generate_series(0, points - 1).table_valued("point").render_derived(name="points")
    end = func.now() - step * (points - 1 - numbers.c.point)
    sample = (
        select(func.coalesce(SourceSample.unread_rows, SourceSample.undone).label("unread"))
        .where(
            SourceSample.stream == asked.c.stream,
            SourceSample.observed_at <= end,
            SourceSample.observed_at > end - step,
        )
        .order_by(SourceSample.observed_at.desc())
        .limit(1)
        .lateral("sample")
    )
    joined = asked.join(numbers, true()).join(sample, true())
    unread = func.jsonb_object_agg(numbers.c.point, sample.c.unread, type_=JSONB).label("unread")
    return select(asked.c.stream, unread).select_from(joined).group_by(asked.c.stream)


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
