"""The attempts to backfill intervals: what was read, replaced and rejected, and why an attempt ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Index, and_, func, insert, select, update

from sluice.ledger.connection import Ledger
from sluice.ledger.events import REQUESTED, WRITE, Actor, Event, EventAction, add_event
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import record_of


class BackfillState(StrEnum):
    """How an attempt stands, or how it ended.

    RUNNING: it has begun and not reported an end. PUBLISHED: the interval was replaced. UNCHANGED: the table held the
    very same rows, so nothing was committed. CHANGED_MEANWHILE: somebody else changed the interval; the next attempt
    computes it again. FAILED: with the reason. LOST: its process ended without a report.
    """

    RUNNING = "running"
    PUBLISHED = "published"
    UNCHANGED = "unchanged"
    CHANGED_MEANWHILE = "changed_meanwhile"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillAttemptKey:
    """An attempt: the stream, the interval in UTC, and the number of the attempt at this interval, from 1."""

    stream: str
    interval_start: datetime
    interval_end: datetime
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillAttemptObservation:
    """An attempt as it is recorded.

    planned_on: the target's snapshot on which it was planned. end_offsets: how far its sources were read, by input.
    generation, batch: of the batch that had read them so far; unset before a plan, and in attempts of earlier versions.
    snapshot_id: the snapshot that made its rows visible. rows: numbers of rows by name; see `backfill.results`.
    """

    key: BackfillAttemptKey
    state: BackfillState
    launched_by: str
    started_at: datetime
    ended_at: datetime | None = None
    planned_on: int | None = None
    end_offsets: Mapping[str, Any] | None = None
    generation: int | None = None
    batch: int | None = None
    snapshot_id: int | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None


class BackfillAttempt(
    LedgerTable,
    record=BackfillAttemptObservation,
    key=("stream", "interval_start", "interval_end", "attempt"),
    now=("started_at",),
):
    """One attempt to compute and replace one interval of a stream's output."""

    __tablename__ = "backfill_attempts"
    __table_args__ = (Index(None, "stream", "started_at"),)


_KEY_FIELDS = ("stream", "interval_start", "interval_end", "attempt")


def begin_attempt(
    ledger: Ledger, stream: str, *, start: datetime, end: datetime, launched_by: str, identity: str = ""
) -> BackfillAttemptKey:
    """Record the next attempt at an interval, with its event. Attempts that did not report an end are lost: the caller
    has its `interval_lock`.

    Parameters
    ----------
    launched_by: who asked, for people who read it. identity: under which it writes files.
    """
    same = and_(
        BackfillAttempt.stream == stream, BackfillAttempt.interval_start == start, BackfillAttempt.interval_end == end
    )
    with ledger.transaction() as connection:
        connection.execute(
            update(BackfillAttempt)
            .where(same, BackfillAttempt.state == BackfillState.RUNNING)
            .values(state=BackfillState.LOST, ended_at=func.now(), reason="its process ended without a report")
        )
        newest = connection.execute(
            select(func.coalesce(func.max(BackfillAttempt.attempt), 0)).where(same)
        ).scalar_one()
        key = BackfillAttemptKey(stream=stream, interval_start=start, interval_end=end, attempt=newest + 1)
        add_event(connection, _event(key, launched_by, identity))
        connection.execute(
            insert(BackfillAttempt).values(
                stream=stream,
                interval_start=start,
                interval_end=end,
                attempt=key.attempt,
                state=BackfillState.RUNNING,
                launched_by=launched_by,
            )
        )
    return key


def record_plan(
    ledger: Ledger,
    key: BackfillAttemptKey,
    *,
    planned_on: int | None,
    upto: tuple[int, int] | None,
    end_offsets: Mapping[str, Any],
) -> None:
    """Record on which snapshot an attempt was planned, and how far it reads.

    Parameters
    ----------
    upto: the generation and the batch that had read so far.
    """
    generation, batch = upto or (None, None)
    plan = {"planned_on": planned_on, "end_offsets": dict(end_offsets), "generation": generation, "batch": batch}
    with ledger.transaction() as connection:
        connection.execute(update(BackfillAttempt).where(_is(key)).values(plan))


def end_attempt(
    ledger: Ledger,
    key: BackfillAttemptKey,
    state: BackfillState,
    *,
    rows: Mapping[str, int] | None = None,
    snapshot_id: int | None = None,
    reason: str | None = None,
) -> None:
    """Record how an attempt ended."""
    with ledger.transaction() as connection:
        connection.execute(
            update(BackfillAttempt)
            .where(_is(key))
            .values(state=state, ended_at=func.now(), rows=dict(rows or {}), snapshot_id=snapshot_id, reason=reason)
        )


def recent_attempts(ledger: Ledger, stream: str, *, limit: int) -> tuple[BackfillAttemptObservation, ...]:
    """The newest attempts to backfill a stream, newest first, at most `limit`."""
    newest = (
        select(*BackfillAttempt.columns())
        .where(BackfillAttempt.stream == stream)
        .order_by(BackfillAttempt.started_at.desc(), BackfillAttempt.attempt.desc())
        .limit(limit)
    )
    with ledger.transaction() as connection:
        rows = connection.execute(newest).all()
    return tuple(record_of(BackfillAttemptObservation, row) for row in rows)


def newest_attempt(ledger: Ledger, stream: str, start: datetime, end: datetime) -> BackfillAttemptObservation | None:
    """The newest attempt at an interval; none before the first."""
    is_it = (
        BackfillAttempt.stream == stream,
        BackfillAttempt.interval_start == start,
        BackfillAttempt.interval_end == end,
    )
    newest = select(*BackfillAttempt.columns()).where(*is_it).order_by(BackfillAttempt.attempt.desc()).limit(1)
    with ledger.transaction() as connection:
        row = connection.execute(newest).one_or_none()
    return None if row is None else record_of(BackfillAttemptObservation, row)


def running_attempts(ledger: Ledger) -> tuple[BackfillAttemptObservation, ...]:
    """The attempts of all streams that have not reported an end, oldest first. Some may have died."""
    found = (
        select(*BackfillAttempt.columns())
        .where(BackfillAttempt.state == BackfillState.RUNNING)
        .order_by(BackfillAttempt.started_at, BackfillAttempt.attempt)
    )
    with ledger.transaction() as connection:
        rows = connection.execute(found).all()
    return tuple(record_of(BackfillAttemptObservation, row) for row in rows)


def attempts_launched_by(ledger: Ledger, launched_by: str) -> tuple[BackfillAttemptObservation, ...]:
    """The attempts of one launcher, such as a run of a DAG, oldest first."""
    found = (
        select(*BackfillAttempt.columns())
        .where(BackfillAttempt.launched_by == launched_by)
        .order_by(BackfillAttempt.started_at, BackfillAttempt.attempt)
    )
    with ledger.transaction() as connection:
        rows = connection.execute(found).all()
    return tuple(record_of(BackfillAttemptObservation, row) for row in rows)


def _event(key: BackfillAttemptKey, launched_by: str, identity: str) -> Event:
    start, end = (f"{time:%Y-%m-%d %H:%M}" for time in (key.interval_start, key.interval_end))
    return Event(
        name=key.stream,
        actor=Actor.person(launched_by),
        action=EventAction.BACKFILL,
        reason=REQUESTED,
        explanation=f"The interval {start} to {end} UTC is computed again and replaced, attempt {key.attempt}.",
        evidence={"attempt": key.attempt, WRITE: identity},
    )


def _is(key: BackfillAttemptKey) -> ColumnElement[bool]:
    return and_(*(getattr(BackfillAttempt, name) == getattr(key, name) for name in _KEY_FIELDS))
