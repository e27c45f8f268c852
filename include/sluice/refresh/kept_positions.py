"""Pins where a stream reads before its refresh is swapped: it continues from there when the refresh is taken back.

The pins have the name of the shadow. Maintenance respects them as long as the refresh can be taken back
(`sluice.ledger.refreshes.kept_shadows`), and removes them afterwards.
"""

from __future__ import annotations

from dataclasses import replace

from pyiceberg.catalog import Catalog
from pyiceberg.table.refs import SnapshotRefType

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.connection import Ledger
from sluice.ledger.refreshes import RefreshObservation
from sluice.maintenance.pin_commit import commit_pins
from sluice.maintenance.pin_plan import plan_own_pins
from sluice.maintenance.table_readers import observe_stream_inputs, streamed_tables
from sluice.settings import ObjectStoreSettings
from sluice.sources.iceberg_positions import history_of
from sluice.tables.declared_tables import require_table


def keep_positions(
    catalog: Catalog,
    ledger: Ledger,
    stream: LoadedStream,
    refresh: RefreshObservation,
    *,
    object_store: ObjectStoreSettings,
) -> None:
    """Pin the positions of a stream in the tables that it reads, under the name of its shadow.

    Raises
    ------
    LedgerError, LakehouseError: when the positions cannot be read or pinned; nothing is swapped then.
    """
    for name in dict.fromkeys(source.table for _, source in streamed_tables(stream.declaration)):
        table = require_table(catalog, name)
        listed = tuple(snapshot.snapshot_id for snapshot in table.snapshots())
        readers = observe_stream_inputs(ledger, stream.declaration, name, listed=listed, object_store=object_store)
        refs = table.refs().items()
        pins = plan_own_pins(
            main_line=tuple(step.snapshot_id for step in history_of(table)),
            tags={tag: ref.snapshot_id for tag, ref in refs if ref.snapshot_ref_type is SnapshotRefType.TAG},
            readers=[replace(reader, stream=refresh.shadow) for reader in readers],
            writers=(),
        )
        commit_pins(table, to_set=pins, properties={})
