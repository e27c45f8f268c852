"""How many rows streams have rejected of late, since a person has last seen it: what `max_rejected` is judged on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Interval, Text, and_, cast, column, func, not_, select, true, values
from sqlalchemy.dialects.postgresql import JSONPATH

from sluice.ledger.batch_findings import LIMITED_OUTPUT, MAX_REJECTED, StoredRuleResult
from sluice.ledger.batches import Batch
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import StreamDesiredState


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedSince:
    """How many rows a stream has read and rejected since a moment."""

    since: datetime
    rows: int
    read: int


def _newest_judged(stream: ColumnElement[str], since: ColumnElement[datetime]) -> ColumnElement[Any]:
    """When the newest batch was recorded that was held for its rejected rows, as a SQL expression."""
    found = StoredRuleResult
    is_same = and_(found.stream == Batch.stream, found.generation == Batch.generation, found.batch == Batch.batch)
    newest = (
        select(func.max(Batch.recorded_at))
        .join(found, and_(is_same, found.output == LIMITED_OUTPUT, found.rules.has_key(MAX_REJECTED)))
        .where(Batch.stream == stream, Batch.recorded_at > since)
    )
    return newest.scalar_subquery()


def _separated() -> ColumnElement[int]:
    """How many rows a person has separated from a batch, as a SQL expression."""
    found, path = StoredRuleResult, cast("$.*.separated ? (@ > 0)", JSONPATH)
    counts = (
        select(cast(cast(func.jsonb_path_query(found.rules, path), Text), BigInteger).label("rows"))
        .where(found.stream == Batch.stream, found.generation == Batch.generation, found.batch == Batch.batch)
        .correlate(Batch)
        .subquery("separated")
    )
    return func.coalesce(select(func.sum(counts.c.rows)).scalar_subquery(), 0)


def rejected_within(ledger: Ledger, windows: Mapping[str, timedelta]) -> Mapping[str, RejectedSince]:
    """What each of these streams has rejected in its window, or since a person has last asked something of it or has
    decided about a batch that was held for its rejected rows. What a person rejected, the whole batch or some of its
    rows, does not count.
    """
    if not windows:
        return {}
    given = [(stream, window) for stream, window in windows.items()]
    asked = values(column("stream", Text), column("length", Interval), name="asked").data(given)
    window_start = func.now() - cast(asked.c.length, Interval)
    judged = _newest_judged(asked.c.stream, window_start)
    known = StreamDesiredState
    since = func.greatest(window_start, known.requested_at, known.suspended_at, judged)
    of_stream = (
        select(asked.c.stream, since.label("since"))
        .select_from(asked.outerjoin(known.__table__, known.stream == asked.c.stream))
        .subquery("of_stream")
    )
    counts = and_(Batch.stream == of_stream.c.stream, Batch.recorded_at > of_stream.c.since, not_(Batch.is_rejected))
    rejected = Batch.refused_rows - _separated()
    sums = (func.coalesce(func.sum(one), 0) for one in (rejected, Batch.input_rows))
    counted = select(*(one.label(name) for one, name in zip(sums, ("rows", "read"), strict=True))).where(counts)
    total = counted.lateral("total")
    query = select(of_stream, total.c.rows, total.c.read).select_from(of_stream.join(total, true()))
    with ledger.transaction() as connection:
        rows = connection.execute(query).all()
    return {row.stream: RejectedSince(since=row.since, rows=int(row.rows), read=int(row.read)) for row in rows}


def recorded_among(ledger: Ledger, stream: str, *, generation: int, batches: Collection[int]) -> frozenset[int]:
    """Which of these batches of a generation the ledger has, those that a person rejected too."""
    wanted = (Batch.stream == stream, Batch.generation == generation, Batch.batch.in_(batches))
    with ledger.transaction() as connection:
        return frozenset(connection.execute(select(Batch.batch).where(*wanted)).scalars())
