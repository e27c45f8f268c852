"""Sets and removes the pins of a table, with the properties that go with them, in one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.table import Table
from pyiceberg.table.update.snapshot import ManageSnapshots

from sluice.maintenance.pin_plan import Pin
from sluice.tables.catalog import catalog_refusals


def commit_pins(
    table: Table, *, to_set: Sequence[Pin], to_remove: Sequence[str] = (), properties: Mapping[str, str]
) -> None:
    """Set and remove tags, and set properties, in one commit. Nothing is committed when there is nothing to change.

    A commit of another writer in between is not a conflict: the catalog checks each tag by itself, and only Sluice
    changes its own tags.

    Raises
    ------
    LakehouseError: when the catalog refuses, for example because a snapshot has been expired meanwhile.
    """
    if not to_set and not to_remove and not properties:
        return
    with catalog_refusals(f"set the pins of {'.'.join(table.name())}"), table.transaction() as transaction:
        if properties:
            transaction.set_properties(dict(properties))
        if to_set or to_remove:
            update = ManageSnapshots(transaction=transaction)
            for pin in to_set:
                update = update.create_tag(pin.snapshot_id, pin.tag)
            for tag in to_remove:
                update = update.remove_tag(tag)
            update.commit()
