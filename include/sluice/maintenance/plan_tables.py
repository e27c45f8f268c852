"""Plans the maintenance of a table: observe its readers and itself, then decide. For the job and the CLI alike."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from sluice.declarations.loaded import Declarations
from sluice.declarations.tables import TableDeclaration
from sluice.ledger.connection import Ledger
from sluice.maintenance.maintenance_plan import MaintenancePlan, plan_maintenance, put_off, small_file_bytes
from sluice.maintenance.pin_plan import plan_pins
from sluice.maintenance.table_readers import observe_readers
from sluice.settings import Settings
from sluice.supervision.progress_watch import writers_that_defer
from sluice.tables.inspection import observe_table

if TYPE_CHECKING:
    from pyiceberg.table import Table


def plan_table(
    ledger: Ledger,
    declarations: Declarations,
    settings: Settings,
    *,
    declaration: TableDeclaration,
    table: Table,
    now: datetime,
) -> MaintenancePlan:
    """Look at everyone who reads a table and at the table itself, and decide every step of its maintenance.

    The readers are looked at first: what one needs is then among the snapshots that the table lists, and a reader that
    moves on meanwhile needs less.

    Parameters
    ----------
    declaration: the table's policy.
    table: from the catalog; it is refreshed here.
    now: when this is, by the database's clock.

    Raises
    ------
    LedgerError: when the ledger cannot be reached: without it nobody knows what readers need.
    LakehouseError: when the table's metadata cannot be read.
    """
    name, policy = declaration.table, declaration.maintenance
    readers = observe_readers(
        ledger,
        declarations,
        name,
        listed=tuple(snapshot.snapshot_id for snapshot in table.snapshots()),
        object_store=settings.object_store,
    )
    seen = observe_table(table.refresh(), name=name, small_file_bytes=small_file_bytes(policy), now=now)
    pins = plan_pins(
        seen=seen,
        readers=readers,
        unreadable_streams=frozenset(declarations.stream_names) - frozenset(declarations.streams),
    )
    plan = plan_maintenance(policy=policy, seen=seen, pins=pins, now=now)
    return put_off(plan, late_writers=writers_that_defer(ledger, declarations, name))
