"""What the quality checks of the tables found."""

from __future__ import annotations

from pydantic import TypeAdapter
from sqlalchemy import insert, select
from sqlalchemy.dialects.postgresql import distinct_on

from sluice.ledger.connection import Ledger
from sluice.ledger.models import QualityResult
from sluice.ledger.records.quality_check import ExpectationObservation, QualityObservation
from sluice.ledger.stored_values import record_of, values_of

_DETAILS = TypeAdapter(tuple[ExpectationObservation, ...])
_COLUMNS = QualityResult.columns(without=("number",))


def record_quality(ledger: Ledger, check: QualityObservation) -> None:
    """Record what a quality check found.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        connection.execute(insert(QualityResult).values(**values_of(check)))


def newest_quality(ledger: Ledger, table: str) -> QualityObservation | None:
    """The newest quality check of a table; none before its first."""
    return next(iter(recent_quality(ledger, table, limit=1)), None)


def newest_checks(ledger: Ledger) -> tuple[QualityObservation, ...]:
    """The newest quality check of every table that has one, by the tables' names."""
    newest = select(*_COLUMNS).ext(distinct_on(QualityResult.table))
    with ledger.transaction() as connection:
        rows = connection.execute(newest.order_by(QualityResult.table, QualityResult.number.desc())).all()
    return tuple(record_of(QualityObservation, row) for row in rows)


def recent_quality(ledger: Ledger, table: str, limit: int) -> tuple[QualityObservation, ...]:
    """The newest quality checks of a table, newest first, at most `limit`."""
    newest = select(*_COLUMNS).where(QualityResult.table == table).order_by(QualityResult.number.desc())
    with ledger.transaction() as connection:
        rows = connection.execute(newest.limit(limit)).all()
    return tuple(record_of(QualityObservation, row) for row in rows)
