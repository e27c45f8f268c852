"""Gathers what the proof needs from the platform: the tables, the topic, the landing folder and the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.demo.lakehouse_copy import copy_lakehouse
from sluice.demo.oracle import load_oracle
from sluice.demo.replay_position import make_plan, plans_in
from sluice.demo.report import RowBalance, TableReport
from sluice.demo.stream_watch import SILVER
from sluice.demo.verification import TABLES, rows_by_table, verify
from sluice.demo.weather_files import open_landing_folder

if TYPE_CHECKING:
    from sluice.demo.comparison import CheckResult
    from sluice.demo.flights_topic import FlightsTopic
    from sluice.ledger.connection import Ledger
    from sluice.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the verification found. sent_records: how many records the topic holds."""

    checks: tuple[CheckResult, ...]
    sent_records: int
    balance: RowBalance
    tables: tuple[TableReport, ...]


def prove(*, settings: Settings, ledger: Ledger, topic: FlightsTopic) -> Proof:
    """Make every check on the tables as they are now.

    Everything that was ever sent is checked, not only what was sent by this demo.

    Parameters
    ----------
    settings: say where the tables and the landing folder are.
    ledger: has counted what silver dropped.
    topic: holds what was sent.
    """
    from sluice.ledger.batches import totals
    from sluice.ledger.maintenance_history import newest_maintenance
    from sluice.ledger.quality_history import newest_quality

    sent = topic.read()
    silver = totals(ledger, SILVER)
    database = copy_lakehouse(settings, tables=TABLES)
    try:
        load_oracle(
            database,
            sent=sent,
            plans=[make_plan(name) for name in plans_in(sent)],
            weather_days=open_landing_folder(settings).days(),
        )
        checks = verify(database, silver=silver)
        rows = rows_by_table(database)
    finally:
        database.close()
    return Proof(
        checks=tuple(checks),
        sent_records=sent.num_rows,
        balance=RowBalance(
            bronze=rows["bronze.flights"],
            silver=rows["silver.flights"],
            refused=rows["quarantine.silver_flights"],
            late=silver.late_rows,
            duplicate=silver.duplicate_rows,
        ),
        tables=tuple(
            TableReport(
                table=table,
                rows=count,
                maintenance=newest_maintenance(ledger, table),
                quality=newest_quality(ledger, table),
            )
            for table, count in rows.items()
        ),
    )
