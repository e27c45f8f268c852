"""Pins the positions of one stream for its own driver, and sets and removes references of a table.

The positions are those that maintenance observes, from the ledger and the checkpoint; both are at or behind the real
ones, so a pin is never too new. A pin is one commit of the table's metadata; it moves no snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update.snapshot import ManageSnapshots

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.connection import Ledger, database_time
from sluice.maintenance.file_rewrite import CommitConflictError
from sluice.maintenance.pin_plan import Pin, PinKind, ReaderObservation, plan_own_pins
from sluice.maintenance.retention_plan import SnapshotOnMain, need_of, plan_retention
from sluice.maintenance.table_readers import newest_written, observe_stream_inputs, streamed_tables
from sluice.settings import ObjectStoreSettings
from sluice.sources.iceberg_positions import history_of
from sluice.tables.catalog import catalog_refusals
from sluice.tables.change_plan import declared_before
from sluice.tables.declared_tables import load_table
from sluice.tables.table_observation import ReferenceKind, ReferenceObservation


def pinned_tables(stream: StreamDeclaration) -> tuple[str, ...]:
    """The tables in which a stream pins snapshots: it reads them as streams, or writes them directly."""
    read = [source.table for _, source in streamed_tables(stream)]
    outputs = (declared.iceberg for declared in stream.outputs.values())
    written = [output.table for output in outputs if output is not None and output.is_direct]
    return tuple(dict.fromkeys([*read, *written]))


def pin_positions(
    catalog: Catalog, ledger: Ledger, stream: StreamDeclaration, *, object_store: ObjectStoreSettings
) -> tuple[Pin, ...]:
    """Pin where a stream is in each of its tables, and have the tables keep what follows.

    Nothing is committed to a table in which the pins are in place and enough snapshots are kept.

    Returns
    -------
    The pins that were set.

    Raises
    ------
    LakehouseError: when a table cannot be read, or its catalog refuses the pins.
    """
    now = database_time(ledger)
    pinned: list[Pin] = []
    for name in pinned_tables(stream):
        table = load_table(catalog, name)
        if table is not None:
            pinned += _pin(table, name, ledger, stream, object_store, now)
    return tuple(pinned)


def _pin(
    table: Table,
    name: str,
    ledger: Ledger,
    stream: StreamDeclaration,
    object_store: ObjectStoreSettings,
    now: datetime,
) -> tuple[Pin, ...]:
    listed = tuple(snapshot.snapshot_id for snapshot in table.snapshots())
    readers = observe_stream_inputs(ledger, stream, name, listed=listed, object_store=object_store)
    line = tuple(
        SnapshotOnMain(snapshot_id=step.snapshot_id, committed_at=step.committed_at) for step in history_of(table)
    )
    tags = {tag: ref.snapshot_id for tag, ref in table.refs().items() if ref.snapshot_ref_type is SnapshotRefType.TAG}
    to_set = plan_own_pins(
        main_line=tuple(one.snapshot_id for one in line),
        tags=tags,
        readers=readers,
        writers=tuple(newest_written(stream, table, name)),
    )
    kept = plan_retention(
        properties=table.properties,
        declared=declared_before(table.properties),
        need=need_of(_positions(readers, to_set), main_line=line, now=now),
        policy=None,
    )
    commit_pins(table, to_set=to_set, properties=kept)
    return to_set


def _positions(readers: tuple[ReaderObservation, ...], pins: tuple[Pin, ...]) -> frozenset[int]:
    """The snapshots that this stream reads from. Its sink looks at the newest ones only, so they are not among them."""
    read = [pin.snapshot_id for pin in pins if pin.kind is PinKind.POSITION]
    return frozenset([*read, *(reader.position for reader in readers if reader.position is not None)])


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
