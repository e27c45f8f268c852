"""Finds the declared tables, plans the maintenance of a table, and sets its pins. For the job and the CLI."""

from __future__ import annotations

from datetime import datetime

from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.quarantine_table import all_tables
from sluice.declarations.table_declaration import TableDeclaration
from sluice.ledger.connection import Ledger
from sluice.maintenance.maintenance_plan import MaintenancePlan, plan_maintenance, put_off, small_file_bytes
from sluice.maintenance.pin_plan import PinPlan, plan_pins
from sluice.maintenance.table_readers import observe_readers
from sluice.settings import Settings
from sluice.supervision.progress_watch import writers_that_defer
from sluice.tables.catalog import catalog_refusals
from sluice.tables.inspection import observe_table


def find_declaration(declarations: Declarations, name: str) -> TableDeclaration:
    """The declaration of a table, its own or the platform's for a quarantine.

    Raises
    ------
    UsageError: when there is none; the message names those that exist.
    DeclarationError: when its file has a problem.
    """
    found = all_tables(declarations).get(name)
    return declarations.table(name).declaration if found is None else found


def plan_table_maintenance(
    ledger: Ledger,
    declarations: Declarations,
    settings: Settings,
    *,
    declaration: TableDeclaration,
    table: Table,
    now: datetime,
) -> MaintenancePlan:
    """Observe the readers of a table and the table itself, and decide every step of its maintenance.

    The readers are observed first: the table still lists the snapshots that they need, and a reader that advances
    meanwhile needs fewer.

    Parameters
    ----------
    declaration: the table's policy.
    table: from the catalog; it is refreshed here.
    now: the current time of the database's clock.

    Raises
    ------
    LedgerError: when the ledger cannot be reached: without it the needs of the readers are unknown.
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


def apply_pins(table: Table, plan: PinPlan) -> None:
    """Set and remove the tags of a plan in one commit. Nothing is committed when the tags are as planned.

    A commit of another writer in between is not a conflict: the catalog checks each tag by itself, and only Sluice
    changes its own tags.

    Raises
    ------
    LakehouseError: when the catalog refuses, for example because a snapshot has been expired meanwhile.
    """
    if plan.is_current:
        return
    update = table.manage_snapshots()
    for pin in plan.to_set:
        update = update.create_tag(pin.snapshot_id, pin.tag)
    for tag in plan.to_remove:
        update = update.remove_tag(tag)
    with catalog_refusals(f"set the pins of {'.'.join(table.name())}"):
        update.commit()
