"""Sets and removes references of a table: its pins, with the properties that go with them, and those of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update.snapshot import ManageSnapshots

from sluice.maintenance.file_rewrite import CommitConflictError
from sluice.maintenance.pin_plan import Pin
from sluice.tables.catalog import catalog_refusals
from sluice.tables.table_observation import ReferenceKind, ReferenceObservation


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


def remove_references(table: Table, references: Sequence[ReferenceObservation]) -> tuple[str, ...]:
    """Remove tags and branches in one commit. One that is on another snapshot than it was is in use, and stays.

    Returns
    -------
    The names of those that are gone.

    Raises
    ------
    CommitConflictError: when one of them was moved at the same time.
    LakehouseError: when the catalog refuses.
    """
    name = ".".join(table.name())
    with catalog_refusals(f"remove references of {name}"):
        refs = table.refresh().refs()
        found = [one for one in references if one.name in refs and refs[one.name].snapshot_id == one.snapshot_id]
        if not found:
            return ()
        try:
            with table.transaction() as transaction:
                update = ManageSnapshots(transaction=transaction)
                for one in found:
                    is_tag = one.kind is ReferenceKind.TAG
                    update = update.remove_tag(one.name) if is_tag else update.remove_branch(one.name)
                update.commit()
        except CommitFailedException as error:
            raise CommitConflictError(f"a reference of {name} was moved: {error}") from error
    return tuple(one.name for one in found)
