"""Removes old batches, whose totals stay, and old rows of every other table that grows; archives runs that ended long
ago.

Rows that a stream still needs stay whatever their age: the newest batch of every generation, at whose offsets a rebuilt
checkpoint starts; the batches that a person rejected, so that plans name them; the newest runs of every stream, from
which restarts and the breaker are decided; and the newest check of each checkpoint, table and maintenance.

Each part is done by itself: what one raises keeps no other one from being done, and is raised at the end. What a part
costs grows with what it removes, not with what stays. `RETAINED` and `KEPT` name every table between them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import (
    Connection,
    Index,
    Select,
    and_,
    delete,
    exists,
    func,
    insert,
    literal_column,
    not_,
    select,
    true,
)
from sqlalchemy.orm import Mapped, aliased, mapped_column

from sluice.errors import LedgerError, SluiceError
from sluice.ledger.batch_findings import StoredRuleResult
from sluice.ledger.batches import Batch
from sluice.ledger.connection import Ledger, in_steps
from sluice.ledger.events import LedgerEvent
from sluice.ledger.hourly_figures import HourlyColumnsRow, HourlyRow, remove_old_hours
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.maintenance_runs import MaintenanceRun
from sluice.ledger.recorded_checks import CheckpointCheck, QualityResult
from sluice.ledger.run_leases import Lease, Run
from sluice.ledger.run_values import LIVE_STATES
from sluice.ledger.work_items import remove_old_work
from sluice.settings import Settings

_log = logging.getLogger(__name__)


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

RETAINED: Mapping[str, str] = {
    "batches": "batches",
    "runs": "runs",
    "archived_runs": "events",
    "events": "events",
    "checkpoint_checks": "batches",
    "quality_results": "runs",
    "rule_results": "batches",
    "maintenance_runs": "runs",
    "hourly_columns": "by itself",
    "hourly_rows": "by itself",
    "work_items": "by itself",
    "applications": "by itself",
}
"""The tables from which old rows are removed, each with the retention that says how old."""

KEPT: Mapping[str, str] = {
    "announcements": "a row for each stream and table",
    "backfill_attempts": "what was backfilled is never forgotten: a gap would be filled twice",
    "batch_totals": "a row for each generation",
    "control_requests": "a month: each new request removes what is older",
    "dag_pauses": "a row for each stream",
    "desired_states": "a row for each stream",
    "driver_passes": "a row for each stream",
    "driver_uis": "a row for each run that is live",
    "generations": "a row for each reset of a stream",
    "held_batches": "a row for each stream of which a batch is held",
    "leases": "a row for each stream, whose token never falls",
    "ledger_owner": "one row",
    "newest_increments": "a row for each stream",
    "progress_samples": "two hours of each stream: each new sample removes what is older",
    "reconciler_passes": "one row",
    "refreshes": "a row for each refresh, which a person asks for",
    "source_schemas": "a row for each input of a stream",
    "troubles": "a row for each unhealthy stream",
    "undeclared_fields": "a row for each field of a stream, which has a largest number",
}
"""The tables that do not grow with time, and why."""

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
    """How many batches, events and work items were removed and runs archived; in a dry run, how many would be.

    records: of the other tables, removed.
    """

    batches: int
    runs: int
    events: int = 0
    work_items: int = 0
    records: int = 0


def apply_retention(ledger: Ledger, retention: Retention, *, dry_run: bool = False) -> RetentionResult:
    """Remove old rows, and archive old runs. Safe at any time, also beside drivers and when interrupted.

    Parameters
    ----------
    dry_run: only count.

    Raises
    ------
    LedgerError: when a part could not be done, after all others were.
    """
    parts = _counts_of(ledger, retention) if dry_run else _removals_of(ledger, retention)
    done, failed = dict.fromkeys(parts, 0), []
    for name, part in parts.items():
        try:
            done[name] = part()
        except SluiceError as error:
            _log.error("retention=%s %s", name, error)
            failed.append(f"{name}: {error.message}")
    if failed:
        raise LedgerError(
            f"The retention of {len(failed)} of {len(parts)} parts of the ledger is not done: {' '.join(failed)}",
            next_step="The others are done. Run `sluice ledger tidy` again; it continues where it ended.",
        )
    return RetentionResult(**done)


def _removals_of(ledger: Ledger, retention: Retention) -> Mapping[str, Callable[[], int]]:
    return {
        "batches": partial(_remove_batches, ledger, retention.batches),
        "runs": partial(_archive_runs, ledger, retention.runs),
        "events": partial(_remove_events, ledger, retention.events),
        "work_items": partial(remove_old_work, ledger),
        "records": partial(_remove_records, ledger, retention),
    }


def _counts_of(ledger: Ledger, retention: Retention) -> Mapping[str, Callable[[], int]]:
    runs = select(Run.run_id).where(_has_ended(retention.runs))
    return {
        "batches": partial(_count, ledger, select(Batch.batch).where(_is_old(retention.batches))),
        "runs": partial(_count, ledger, runs),
        "events": partial(_count, ledger, select(LedgerEvent.number).where(_is_old_event(retention.events))),
        "work_items": partial(remove_old_work, ledger, dry_run=True),
        "records": partial(_count_records, ledger, retention),
    }


def _count(ledger: Ledger, rows: Select[Any]) -> int:
    with ledger.transaction() as connection:
        return int(connection.execute(select(func.count()).select_from(rows.subquery())).scalar_one())


def _old_records(retention: Retention) -> Sequence[tuple[Any, Select[Any]]]:
    """The old rows of tables without a rule of their own, by their key: the newest of each subject stay."""
    archived = select(ArchivedRun.run_id).where(ArchivedRun.archived_at < func.now() - retention.events)
    return (
        (ArchivedRun.run_id, archived),
        (CheckpointCheck.number, _all_but_newest(CheckpointCheck, "stream", retention.batches)),
        (QualityResult.number, _all_but_newest(QualityResult, "table", retention.runs)),
        (StoredRuleResult.number, _all_but_newest(StoredRuleResult, "stream", retention.batches)),
        (MaintenanceRun.number, _all_but_newest(MaintenanceRun, "table", retention.runs)),
    )


def _all_but_newest(table: Any, subject: str, kept_for: timedelta) -> Select[Any]:
    later = aliased(table)
    has_later = exists().where(getattr(later, subject) == getattr(table, subject), later.number > table.number)
    return select(table.number).where(table.recorded_at < func.now() - kept_for, has_later)


_BY_HOUR = (HourlyRow, HourlyColumnsRow)


def _remove_records(ledger: Ledger, retention: Retention) -> int:
    of_tables = sum(_remove(ledger, key, old) for key, old in _old_records(retention))
    return of_tables + sum(remove_old_hours(ledger, of) for of in _BY_HOUR)


def _count_records(ledger: Ledger, retention: Retention) -> int:
    of_tables = sum(_count(ledger, old) for _, old in _old_records(retention))
    return of_tables + sum(remove_old_hours(ledger, of, dry_run=True) for of in _BY_HOUR)


def _remove(ledger: Ledger, key: Any, old: Select[Any]) -> int:
    some = delete(key.class_).where(key.in_(old.limit(_AT_ONCE)))
    return in_steps(ledger, lambda connection: connection.execute(some).rowcount, at_once=_AT_ONCE)


def _remove_events(ledger: Ledger, kept_for: timedelta) -> int:
    """Delete old events; their table lets only a transaction with this setting do so."""
    some = select(LedgerEvent.number).where(_is_old_event(kept_for)).limit(_AT_ONCE)

    def remove(connection: Connection) -> int:
        connection.execute(select(func.set_config("sluice.retention", "events", True)))
        return connection.execute(delete(LedgerEvent).where(LedgerEvent.number.in_(some))).rowcount

    return in_steps(ledger, remove, at_once=_AT_ONCE)


def _is_old_event(kept_for: timedelta) -> Any:
    return LedgerEvent.recorded_at < func.now() - kept_for


def _remove_batches(ledger: Ledger, kept_for: timedelta) -> int:
    """Delete old batches; their totals stay, because the database keeps them with each new batch."""
    keys = (Batch.stream, Batch.generation, Batch.batch)
    some = select(*keys).where(_is_old(kept_for)).limit(_AT_ONCE).subquery()
    is_chosen = and_(*(key == some.c[key.key] for key in keys))
    gone = delete(Batch).where(is_chosen)
    return in_steps(ledger, lambda connection: connection.execute(gone).rowcount, at_once=_AT_ONCE)


def _archive_runs(ledger: Ledger, kept_for: timedelta) -> int:
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
    moved = archived.returning(ArchivedRun.run_id)
    return in_steps(ledger, lambda connection: len(connection.execute(moved).all()), at_once=_AT_ONCE)


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
    """Runs that ended before the retention and are not among the newest of their stream.

    Where the newest ones begin is looked up once for each stream, and not counted for each run.
    """
    newest = (
        select(Run.number)
        .where(Run.stream == Lease.stream)
        .order_by(Run.number.desc())
        .offset(RUNS_KEPT_OF_A_STREAM - 1)
        .limit(1)
        .lateral("newest")
    )
    boundaries = (
        select(Lease.stream, newest.c.number).join(newest, true()).cte("boundaries").prefix_with("MATERIALIZED")
    )
    is_before = exists().where(boundaries.c.stream == Run.stream, Run.number < boundaries.c.number)
    return and_(Run.state.not_in(sorted(LIVE_STATES)), Run.ended_at < func.now() - kept_for, is_before)
