"""Removes old batches, whose totals stay, old events and old work items; archives runs that ended long ago.

Rows that a stream still needs stay whatever their age: the newest batch of every generation, at whose offsets a rebuilt
checkpoint starts; the batches that a person rejected, so that plans name them; and the newest runs of
every stream, from which restarts and the breaker are decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Index,
    and_,
    delete,
    exists,
    func,
    insert,
    literal_column,
    not_,
    select,
)
from sqlalchemy.orm import Mapped, aliased, mapped_column

from sluice.ledger.batches import Batch
from sluice.ledger.connection import Ledger
from sluice.ledger.events import LedgerEvent
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.run_table import Run
from sluice.ledger.run_values import LIVE_STATES
from sluice.ledger.work_items import remove_old_work
from sluice.settings import Settings


class ArchivedRun(LedgerTable):
    """A run that ended long ago, whole, out of the way of the queries that look at runs."""

    __tablename__ = "archived_runs"
    __table_args__ = (Index(None, "stream", "ended_at"),)

    run_id: Mapped[str] = mapped_column(primary_key=True)
    stream: Mapped[str]
    ended_at: Mapped[datetime]
    run: Mapped[dict[str, Any]]
    archived_at: Mapped[datetime] = mapped_column(server_default=func.now())


RUNS_KEPT_OF_A_STREAM = 200
"""More of the newest than the restart decision of a stream with usual budgets reads (`restart_policy.runs_to_read`)."""

_AT_ONCE = 2_000
"""Rows in one transaction: it takes milliseconds, so no driver waits to record a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long the ledger keeps batches, ended runs and events."""

    batches: timedelta
    runs: timedelta
    events: timedelta


def retention_of(settings: Settings) -> Retention:
    """The retention in the deployment's settings."""
    return Retention(
        batches=timedelta(days=settings.batches_kept_days),
        runs=timedelta(days=settings.runs_kept_days),
        events=timedelta(days=settings.events_kept_days),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionResult:
    """How many batches, events and work items were removed and runs archived; in a dry run, how many would be."""

    batches: int
    runs: int
    events: int = 0
    work_items: int = 0


def apply_retention(ledger: Ledger, retention: Retention, *, dry_run: bool = False) -> RetentionResult:
    """Remove old batches, events and work items, and archive old runs. Safe at any time, also beside drivers and when
    interrupted.

    Parameters
    ----------
    dry_run: only count.
    """
    if dry_run:
        with ledger.transaction() as connection:
            batches = connection.execute(
                select(func.count()).select_from(Batch).where(_is_old(retention.batches))
            ).scalar_one()
            runs = connection.execute(
                select(func.count()).select_from(Run).where(_has_ended(retention.runs))
            ).scalar_one()
            events = connection.execute(
                select(func.count()).select_from(LedgerEvent).where(_is_old_event(retention.events))
            ).scalar_one()
        work_items = remove_old_work(ledger, dry_run=True)
        return RetentionResult(batches=batches, runs=runs, events=events, work_items=work_items)
    return RetentionResult(
        batches=_remove_batches(ledger, retention.batches),
        runs=_archive_runs(ledger, retention.runs),
        events=_remove_events(ledger, retention.events),
        work_items=remove_old_work(ledger),
    )


def _remove_events(ledger: Ledger, kept_for: timedelta) -> int:
    """Delete old events, some at a time; their table lets only a transaction with this setting do so."""
    some = select(LedgerEvent.number).where(_is_old_event(kept_for)).limit(_AT_ONCE)
    removed = 0
    while True:
        with ledger.transaction() as connection:
            connection.execute(select(func.set_config("sluice.retention", "events", True)))
            gone = connection.execute(delete(LedgerEvent).where(LedgerEvent.number.in_(some))).rowcount
        removed += gone
        if gone < _AT_ONCE:
            return removed


def _is_old_event(kept_for: timedelta) -> Any:
    return LedgerEvent.recorded_at < func.now() - kept_for


def _remove_batches(ledger: Ledger, kept_for: timedelta) -> int:
    """Delete old batches, some at a time; their totals stay, because the database keeps them with each new batch."""
    keys = (Batch.stream, Batch.generation, Batch.batch)
    some = select(*keys).where(_is_old(kept_for)).limit(_AT_ONCE).subquery()
    is_chosen = and_(*(key == some.c[key.key] for key in keys))
    removed = 0
    while True:
        with ledger.transaction() as connection:
            gone = connection.execute(delete(Batch).where(is_chosen)).rowcount
        removed += gone
        if gone < _AT_ONCE:
            return removed


def _archive_runs(ledger: Ledger, kept_for: timedelta) -> int:
    archived = 0
    while True:
        with ledger.transaction() as connection:
            moved = len(connection.execute(_some_runs_archived(kept_for)).all())
        archived += moved
        if moved < _AT_ONCE:
            return archived


def _some_runs_archived(kept_for: timedelta) -> Any:
    """The statement that moves some old runs; all at once may take longer than a statement may."""
    some = select(Run.run_id).where(_has_ended(kept_for)).limit(_AT_ONCE).subquery()
    gone = (
        delete(Run)
        .where(Run.run_id == some.c.run_id)
        .returning(Run.run_id, Run.stream, Run.ended_at, _whole_row())
        .cte("gone")
    )
    archived = insert(ArchivedRun).from_select(
        ["run_id", "stream", "ended_at", "run"], select(gone.c.run_id, gone.c.stream, gone.c.ended_at, gone.c.whole)
    )
    return archived.returning(ArchivedRun.run_id)


def _whole_row() -> Any:
    return literal_column("to_jsonb(runs.*)").label("whole")


def _is_old(kept_for: timedelta) -> Any:
    """Batches older than the retention, not the newest of their generation, and not rejected: what a person rejected is
    to be known as long as its source may give it again."""
    later = aliased(Batch)
    has_later = exists().where(
        later.stream == Batch.stream, later.generation == Batch.generation, later.batch > Batch.batch
    )
    return and_(Batch.recorded_at < func.now() - kept_for, has_later, not_(Batch.is_rejected))


def _has_ended(kept_for: timedelta) -> Any:
    """Runs that ended before the retention and are not among the newest of their stream."""
    later = aliased(Run)
    later_runs = (
        select(func.count())
        .where(later.stream == Run.stream, later.number > Run.number)
        .correlate(Run)
        .scalar_subquery()
    )
    return and_(
        Run.state.not_in(sorted(LIVE_STATES)),
        Run.ended_at < func.now() - kept_for,
        later_runs >= RUNS_KEPT_OF_A_STREAM,
    )
