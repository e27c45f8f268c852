"""Puts the planned pins onto a table: Iceberg tags, set and removed in one commit."""

from __future__ import annotations

from pyiceberg.table import Table

from sluice.maintenance.pin_plan import PinPlan
from sluice.tables.catalog import catalog_refusals


def apply_pins(table: Table, plan: PinPlan) -> None:
    """Set and remove the tags of a plan, all of them or none. Nothing is committed when they are as planned.

    A commit of others in between is no conflict: tags are checked one by one, and only the platform touches its own.

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
