"""What each stream has published of each column in each hour: how many nulls, and the lowest and highest value.

The figures of a batch come from the metrics of its staged files. They are added in the transaction that records the
batch, and kept as long as the sums of its rows (`hourly_rows`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Text, and_, cast, func, literal, select, text
from sqlalchemy.dialects.postgresql import insert

from sluice.ledger.connection import Ledger
from sluice.ledger.hourly_rows import KEPT_FOR
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import values_of


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
_HOUR = func.date_trunc("hour", func.now(), "UTC")


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
