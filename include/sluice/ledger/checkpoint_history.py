"""What the checks of the checkpoints found."""

from __future__ import annotations

from pydantic import TypeAdapter
from sqlalchemy import insert, select

from sluice.ledger.connection import Ledger
from sluice.ledger.models import CheckpointCheck
from sluice.ledger.records.checkpoint_check import CheckpointFinding, CheckpointObservation
from sluice.ledger.stored_values import record_of, values_of

_FINDINGS = TypeAdapter(tuple[CheckpointFinding, ...])
_COLUMNS = CheckpointCheck.columns(without=("number",))


def record_checkpoint_check(ledger: Ledger, check: CheckpointObservation) -> None:
    """Record what a check of a checkpoint found.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        connection.execute(insert(CheckpointCheck).values(**values_of(check)))


def newest_checkpoint_check(ledger: Ledger, stream: str) -> CheckpointObservation | None:
    """The newest check of a stream's checkpoint; none before its first."""
    return next(iter(recent_checkpoint_checks(ledger, stream, limit=1)), None)


def recent_checkpoint_checks(ledger: Ledger, stream: str, limit: int) -> tuple[CheckpointObservation, ...]:
    """The newest checks of a stream's checkpoint, newest first, at most `limit`."""
    newest = select(*_COLUMNS).where(CheckpointCheck.stream == stream).order_by(CheckpointCheck.number.desc())
    with ledger.transaction() as connection:
        rows = connection.execute(newest.limit(limit)).all()
    return tuple(record_of(CheckpointObservation, row) for row in rows)
