"""When the increments of streams ended well, also those that found nothing to read and left no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.dialects.postgresql import insert

from sluice.ledger.announcements import is_published
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWriter:
    """An output of a stream that writes a table. is_incremental: whether its batches are those of increments."""

    stream: str
    output: str
    is_incremental: bool


def rows_since(ledger: Ledger, writers: Mapping[str, Sequence[TableWriter]], since: datetime) -> datetime | None:
    """Since when every one of some tables has had batches newer than a time; none when one has none, or no writer.

    Only a batch counts that is announced to those who wait for the table: it has published into it.

    Parameters
    ----------
    writers: of each table what writes it.
    """
    if not writers or not all(writers.values()):
        return None
    firsts: list[datetime | None] = []
    with ledger.transaction() as connection:
        for of_table in writers.values():
            publishes = or_(*(_publishes(writer) for writer in of_table))
            first = select(func.min(Batch.recorded_at)).where(publishes, Batch.recorded_at > since)
            firsts.append(connection.execute(first).scalar_one())
    known = [first for first in firsts if first is not None]
    return max(known) if len(known) == len(firsts) else None


def _publishes(writer: TableWriter) -> ColumnElement[bool]:
    by: Literal["rows", "snapshot"] = "rows" if writer.is_incremental else "snapshot"
    return and_(Batch.stream == writer.stream, is_published(writer.output, by=by))
