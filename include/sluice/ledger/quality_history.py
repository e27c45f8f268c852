"""What the quality checks of the tables found."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Row, insert, select
from sqlalchemy.dialects.postgresql import distinct_on

from sluice.ledger.connection import Ledger, values_of
from sluice.ledger.models import QualityResult
from sluice.ledger.records.quality_check import ExpectationObservation, QualityObservation, QualityVerdict

_DETAILS = TypeAdapter(tuple[ExpectationObservation, ...])
_COLUMNS = [column for column in QualityResult.__table__.columns if column.name != "number"]


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
    return tuple(_observation_of(row) for row in rows)


def recent_quality(ledger: Ledger, table: str, limit: int) -> tuple[QualityObservation, ...]:
    """The newest quality checks of a table, newest first, at most `limit`."""
    newest = select(*_COLUMNS).where(QualityResult.table == table).order_by(QualityResult.number.desc())
    with ledger.transaction() as connection:
        rows = connection.execute(newest.limit(limit)).all()
    return tuple(_observation_of(row) for row in rows)


def _observation_of(row: Row[Any]) -> QualityObservation:
    values = dict(row._mapping)
    return QualityObservation(
        verdict=QualityVerdict(values.pop("verdict")),
        failed_expectations=tuple(values.pop("failed_expectations")),
        details=_DETAILS.validate_python(values.pop("details")),
        **values,
    )
