"""When the increments of streams ended well, also those that found nothing to read and left no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert

from sluice.ledger.batches import Batch
from sluice.ledger.connection import Ledger
from sluice.ledger.ledger_table import LedgerTable


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementObservation:
    """The newest increment of a stream that ended well. ended_at: by the database's clock."""

    stream: str
    ended_at: datetime


class NewestIncrement(LedgerTable, record=IncrementObservation, key=("stream",), now=("ended_at",)):
    """When an increment of a stream last ended well."""

    __tablename__ = "newest_increments"


def record_increment(ledger: Ledger, stream: str) -> None:
    """Record that an increment of a stream has ended well now."""
    now = {"ended_at": func.now()}
    recorded = insert(NewestIncrement).values(stream=stream)
    with ledger.transaction() as connection:
        connection.execute(recorded.on_conflict_do_update(index_elements=[NewestIncrement.stream], set_=now))


def rows_since(ledger: Ledger, writers: Mapping[str, Sequence[str]], since: datetime) -> datetime | None:
    """Since when every one of some tables has had batches newer than a time; none when one has none, or no writer.

    Parameters
    ----------
    writers: of each table the streams that write it.
    """
    if not writers:
        return None
    firsts: list[datetime | None] = []
    with ledger.transaction() as connection:
        for streams in writers.values():
            first = select(func.min(Batch.recorded_at)).where(Batch.stream.in_(streams), Batch.recorded_at > since)
            firsts.append(connection.execute(first).scalar_one())
    known = [first for first in firsts if first is not None]
    return max(known) if len(known) == len(firsts) else None
