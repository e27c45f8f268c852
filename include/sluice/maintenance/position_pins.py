"""Pins the positions of one stream, for its own driver: a new stream is protected from its first minute on.

The positions are those that maintenance observes, from the ledger and the checkpoint; both are at or behind the real
ones, so a pin is never too new. A pin is one commit of the table's metadata; it moves no snapshot.
"""

from __future__ import annotations

from datetime import datetime

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.connection import Ledger, database_time
from sluice.maintenance.direct_writers import newest_written
from sluice.maintenance.pin_commit import commit_pins
from sluice.maintenance.pin_plan import Pin, PinKind, ReaderObservation, plan_own_pins
from sluice.maintenance.retention_plan import SnapshotOnMain, need_of, plan_retention
from sluice.maintenance.table_readers import observe_stream_inputs, streamed_tables
from sluice.settings import ObjectStoreSettings
from sluice.sources.iceberg_positions import history_of
from sluice.tables.change_plan import declared_before
from sluice.tables.declared_tables import load_table


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
