"""What the ledger knows of many tables at once: their newest maintenance run and quality check, by an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, Row, Select, Text, func, literal, select, true

from sluice.ledger.batches import Batch
from sluice.ledger.connection import Ledger
from sluice.ledger.maintenance_runs import MaintenanceRun
from sluice.ledger.quality_checks import QualityResult

MOST_COUNTED = 10_000
"""Up to how many batches are counted; more are as many."""

_MAINTENANCE = (
    "table",
    "ended_at",
    "after_rows",
    "before_files",
    "after_files",
    "after_bytes",
    "after_small_files",
    "after_delete_files",
    "after_snapshots",
    "file_sizes",
    "kept",
)
_QUALITY = ("table", "checked_at", "verdict", "rows", "expectations", "failed_expectations")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """A table as the ledger has it. maintenance: its newest run. quality: its newest check; unset before the first.

    file_sizes, kept: of its newest maintenance run.
    """

    maintenance: Row[Any] | None = None
    file_sizes: tuple[int, ...] = ()
    kept: tuple[Mapping[str, Any], ...] = ()
    quality: Row[Any] | None = None


def find_tables(ledger: Ledger, names: Sequence[str]) -> Mapping[str, KnownTable]:
    """Read what the ledger knows of these tables, by name."""
    with ledger.transaction() as connection:
        maintenance = {row.table: row for row in connection.execute(_newest(names, MaintenanceRun, _MAINTENANCE))}
        quality = {row.table: row for row in connection.execute(_newest(names, QualityResult, _QUALITY))}
    return {
        name: KnownTable(
            maintenance=maintenance.get(name),
            file_sizes=tuple(maintenance[name].file_sizes) if name in maintenance else (),
            kept=tuple(maintenance[name].kept) if name in maintenance else (),
            quality=quality.get(name),
        )
        for name in names
    }


def batches_since(ledger: Ledger, streams: Sequence[str], since: datetime) -> int:
    """How many batches of these streams were recorded since then, at most `MOST_COUNTED`."""
    found = select(literal(1)).where(Batch.stream.in_(streams), Batch.recorded_at > since).limit(MOST_COUNTED)
    with ledger.transaction() as connection:
        return int(connection.execute(select(func.count()).select_from(found.subquery())).scalar_one())


def _newest(names: Sequence[str], records: Any, columns: Sequence[str]) -> Select[Any]:
    asked = func.unnest(literal(list(names), ARRAY(Text))).table_valued("name").render_derived(name="asked")
    newest = (
        select(*(records.__table__.columns[column] for column in columns))
        .where(records.table == asked.c.name)
        .order_by(records.number.desc())
        .limit(1)
        .lateral("newest")
    )
    return select(*newest.c).select_from(asked.join(newest, true()))
