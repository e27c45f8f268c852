"""What each stream has published and rejected in each hour, for longer than its batches are kept: its rows, and of each
column how many nulls and the lowest and highest value.

A trigger of the database adds the rows of each batch when it is recorded, so a driver pays no round trip for it. The
figures of columns come from the metrics of its staged files, and are added in the transaction that records the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Text, and_, cast, delete, func, literal, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert

from sluice.ledger.connection import Ledger, in_steps
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import record_of, values_of

KEPT_FOR = timedelta(weeks=16)
"""What is usual is read from eight weeks in which rows came; a table may have paused for as long."""

_AT_ONCE = 5_000

_HOUR = func.date_trunc("hour", func.now(), "UTC")


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
    kept = and_(HourlyRow.hour < _HOUR, HourlyRow.hour >= _HOUR - literal(KEPT_FOR))
    query = select(*HourlyRow.columns()).where(HourlyRow.stream.in_(list(streams)), kept).order_by(HourlyRow.hour)
    with ledger.transaction() as connection:
        ends_at: datetime = connection.execute(select(_HOUR)).scalar_one()
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
    some = delete(of).where(key.in_(select(*table.primary_key).where(is_old).limit(_AT_ONCE)))
    return in_steps(ledger, lambda connection: connection.execute(some).rowcount, at_once=_AT_ONCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFigures:
    """What is known of a column in some rows.

    rows: in which it was counted. nulls: of them.
    lowest, highest: of numbers, dates and times that are not masked; unset otherwise, and where all are null. Those of
        dates and times are seconds since 1970.
    """

    rows: int
    nulls: int
    lowest: float | None = None
    highest: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HourOfColumns:
    """The columns of one output of a stream, of the batches that were recorded in one hour. figures: by column."""

    stream: str
    output: str
    hour: datetime
    figures: Mapping[str, ColumnFigures]


class HourlyColumnsRow(LedgerTable, record=HourOfColumns, key=("stream", "output", "hour")):
    """A row for each stream, output and hour in which a batch with figures was recorded."""

    __tablename__ = "hourly_columns"


_ADDED = text(
    """(
    SELECT jsonb_object_agg(name, CASE WHEN known IS NULL THEN new WHEN new IS NULL THEN known
        ELSE jsonb_strip_nulls(jsonb_build_object(
            'rows', (known->>'rows')::bigint + (new->>'rows')::bigint,
            'nulls', (known->>'nulls')::bigint + (new->>'nulls')::bigint,
            'lowest', least((known->>'lowest')::float8, (new->>'lowest')::float8),
            'highest', greatest((known->>'highest')::float8, (new->>'highest')::float8))) END)
    FROM jsonb_each(hourly_columns.figures) AS of_hour (name, known)
    FULL JOIN jsonb_each(excluded.figures) AS of_batch (name, new) USING (name))"""
)
_FIGURES = TypeAdapter(dict[str, ColumnFigures])


def add_column_figures(connection: Connection, stream: str, figures: Mapping[str, Mapping[str, ColumnFigures]]) -> None:
    """Add the figures of a batch to its hour, in the transaction that records it.

    Parameters
    ----------
    figures: by output and column.
    """
    for output, columns in sorted(figures.items()):
        if not columns:
            continue
        values = {"stream": stream, "output": output, "hour": _HOUR, "figures": _stored(columns)}
        added = insert(HourlyColumnsRow).values(**values)
        key = ["stream", "output", "hour"]
        connection.execute(added.on_conflict_do_update(index_elements=key, set_={"figures": _ADDED}))


def _stored(columns: Mapping[str, ColumnFigures]) -> dict[str, dict[str, Any]]:
    """Without what is unset: an hour is a row of a kilobyte or two."""
    each = {name: values_of(one) for name, one in columns.items()}
    return {name: {key: value for key, value in one.items() if value is not None} for name, one in each.items()}


def read_column_hours(ledger: Ledger, streams: Collection[str]) -> tuple[HourOfColumns, ...]:
    """Read the hours of some streams that are over and kept, oldest first."""
    kept = and_(HourlyColumnsRow.hour < _HOUR, HourlyColumnsRow.hour >= _HOUR - literal(KEPT_FOR))
    # As text: weeks of a table are tens of thousands of figures, which are read from JSON in about half of the time.
    read = (*HourlyColumnsRow.columns(without=("figures",)), cast(HourlyColumnsRow.figures, Text).label("figures"))
    query = select(*read).where(HourlyColumnsRow.stream.in_(list(streams)), kept).order_by(HourlyColumnsRow.hour)
    with ledger.transaction() as connection:
        rows = connection.execute(query).all()
    return tuple(
        HourOfColumns(stream=row.stream, output=row.output, hour=row.hour, figures=_FIGURES.validate_json(row.figures))
        for row in rows
    )
