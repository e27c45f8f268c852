"""What the ledger forgets of a stream that was taken back: later numbers are read and recorded again.

Of what is recorded by the number of a batch, what came first stays. So what the batches of these numbers were, what
their rules found and up to where they were announced has to go before the first of them runs again.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, delete, func, select, update

from sluice.ledger.announcements import Announcement
from sluice.ledger.batch_rules import StoredRuleResult
from sluice.ledger.batches import Batch
from sluice.ledger.connection import Ledger


def count_batches_behind(ledger: Ledger, stream: str, *, generation: int, batch: int) -> int:
    """How many later batches of a generation are recorded."""
    query = select(func.count()).select_from(Batch).where(_is_later(Batch, stream, generation, batch))
    with ledger.transaction() as connection:
        return connection.execute(query).scalar_one()


def forget_batches_behind(ledger: Ledger, stream: str, *, generation: int, batch: int) -> None:
    """Delete what is recorded of later batches of a generation, and announce their numbers once more when they are
    published again. The totals stay, as for other batches that are deleted."""
    announced = _is_later(Announcement, stream, generation, batch)
    with ledger.transaction() as connection:
        connection.execute(delete(Batch).where(_is_later(Batch, stream, generation, batch)))
        connection.execute(delete(StoredRuleResult).where(_is_later(StoredRuleResult, stream, generation, batch)))
        connection.execute(update(Announcement).where(announced).values(batch=batch))


def _is_later(
    table: type[Batch] | type[StoredRuleResult] | type[Announcement], stream: str, generation: int, batch: int
) -> ColumnElement[bool]:
    columns = table.__table__.columns
    return and_(columns.stream == stream, columns.generation == generation, columns.batch > batch)
