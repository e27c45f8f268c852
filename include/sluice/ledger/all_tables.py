"""What the ledger knows of many tables at once: their newest maintenance runs and quality checks, by an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ARRAY, Row, Select, Text, func, literal, select, true

from sluice.ledger.connection import Ledger
from sluice.ledger.models import MaintenanceRun, QualityResult

HISTORY_RUNS = 20
"""How many of the newest runs of a table its list shows: most of a day of hourly ones."""

_MAINTENANCE = (
    "table",
    "ended_at",
    "rows_after",
    "files_before",
    "files_after",
    "bytes_after",
    "delete_files_after",
    "snapshots_after",
)
_QUALITY = ("table", "checked_at", "verdict", "rows", "expectations", "failed_expectations")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """A table as the ledger has it. maintenance, quality: the newest first, at most `HISTORY_RUNS` of each."""

    maintenance: tuple[Row[Any], ...] = ()
    quality: tuple[Row[Any], ...] = ()


def find_tables(ledger: Ledger, names: Sequence[str]) -> Mapping[str, KnownTable]:
    """Read what the ledger knows of these tables, by name.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    maintenance: dict[str, list[Row[Any]]] = {name: [] for name in names}
    quality: dict[str, list[Row[Any]]] = {name: [] for name in names}
    with ledger.transaction() as connection:
        for row in connection.execute(_newest(names, MaintenanceRun, _MAINTENANCE)):
            maintenance[row.table].append(row)
        for row in connection.execute(_newest(names, QualityResult, _QUALITY)):
            quality[row.table].append(row)
    return {name: KnownTable(maintenance=tuple(maintenance[name]), quality=tuple(quality[name])) for name in names}


def _newest(names: Sequence[str], records: Any, columns: Sequence[str]) -> Select[Any]:
    asked = func.unnest(literal(list(names), ARRAY(Text))).table_valued("name").render_derived(name="asked")
    newest = (
        select(*(records.__table__.columns[column] for column in columns))
        .where(records.table == asked.c.name)
        .order_by(records.number.desc())
        .limit(HISTORY_RUNS)
        .lateral("newest")
    )
    return select(*newest.c).select_from(asked.join(newest, true()))
