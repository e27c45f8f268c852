"""What the maintenance runs of the tables did."""

from __future__ import annotations

from pydantic import TypeAdapter
from sqlalchemy import insert, select

from sluice.ledger.connection import Ledger
from sluice.ledger.models import MaintenanceRun
from sluice.ledger.records.maintenance import KeptSnapshot, MaintenanceObservation, StepObservation
from sluice.ledger.stored_values import record_of, values_of

_STEPS = TypeAdapter(tuple[StepObservation, ...])
_SIZES = TypeAdapter(tuple[int, ...] | None)
_KEPT = TypeAdapter(tuple[KeptSnapshot, ...] | None)
_COLUMNS = MaintenanceRun.columns(without=("number",))


def record_maintenance(ledger: Ledger, run: MaintenanceObservation) -> None:
    """Record what a maintenance run did.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        connection.execute(insert(MaintenanceRun).values(**values_of(run)))


def newest_maintenance(ledger: Ledger, table: str) -> MaintenanceObservation | None:
    """The newest maintenance run of a table; none before its first."""
    return next(iter(recent_maintenance(ledger, table, limit=1)), None)


def recent_maintenance(ledger: Ledger, table: str, limit: int) -> tuple[MaintenanceObservation, ...]:
    """The newest maintenance runs of a table, newest first, at most `limit`."""
    newest = select(*_COLUMNS).where(MaintenanceRun.table == table).order_by(MaintenanceRun.number.desc())
    with ledger.transaction() as connection:
        rows = connection.execute(newest.limit(limit)).all()
    return tuple(record_of(MaintenanceObservation, row) for row in rows)
