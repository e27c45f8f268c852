"""How many rows each stream has published and rejected in each hour, for longer than its batches are kept.

A trigger of the database adds each batch when it is recorded, so a driver pays no round trip for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, delete, func, literal, select, tuple_

from sluice.ledger.connection import Ledger
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import record_of

KEPT_FOR = timedelta(weeks=16)
"""What is usual is read from eight weeks in which rows came; a table may have paused for as long."""

_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HourOfRows:
    """What the batches of a stream did that were recorded in one hour.

    hour: when it begins. rejected_rows: without batches that a person rejected. published_rows: by output name.
    """

    stream: str
    hour: datetime
    batches: int
    input_rows: int
    rejected_rows: int
    published_rows: Mapping[str, int]


class HourlyRow(LedgerTable, record=HourOfRows, key=("stream", "hour")):
    """A row for each stream and hour in which a batch of it was recorded."""

    __tablename__ = "hourly_rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class HoursOfStreams:
    """The hours of some streams up to the last one that is over, oldest first. ends_at: when that one ended."""

    ends_at: datetime
    hours: tuple[HourOfRows, ...]


def read_hours(ledger: Ledger, streams: Collection[str]) -> HoursOfStreams:
    """Read the hours of some streams that are over and kept."""
    end = func.date_trunc("hour", func.now(), "UTC")
    kept = and_(HourlyRow.hour < end, HourlyRow.hour >= end - literal(KEPT_FOR))
    query = select(*HourlyRow.columns()).where(HourlyRow.stream.in_(list(streams)), kept).order_by(HourlyRow.hour)
    with ledger.transaction() as connection:
        ends_at: datetime = connection.execute(select(end)).scalar_one()
        rows = connection.execute(query).all()
    return HoursOfStreams(ends_at=ends_at, hours=tuple(record_of(HourOfRows, row) for row in rows))


def remove_old_hours(ledger: Ledger, of: type[LedgerTable] = HourlyRow, *, dry_run: bool = False) -> int:
    """Remove the hours that are not read any more, some at a time.

    Parameters
    ----------
    of: the table; each row of it is of one hour.

    Returns
    -------
    How many were removed; in a dry run, how many would be.
    """
    table = of.__table__
    key, is_old = tuple_(*table.primary_key), table.c.hour < func.now() - KEPT_FOR
    if dry_run:
        with ledger.transaction() as connection:
            return connection.execute(select(func.count()).select_from(of).where(is_old)).scalar_one()
    some = select(*table.primary_key).where(is_old).limit(_AT_ONCE)
    removed = 0
    while True:
        with ledger.transaction() as connection:
            gone = connection.execute(delete(of).where(key.in_(some))).rowcount
        removed += gone
        if gone < _AT_ONCE:
            return removed
