"""The history of a table as a reader of its appended rows meets it."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from sluice.ledger.records.lag import TableStep


def history_of(table: Table) -> Iterator[TableStep]:
    """The snapshots from the table's newest back to the oldest that is left."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    snapshot = table.current_snapshot()
    while snapshot is not None:
        summary = snapshot.summary
        operation = summary.operation if summary is not None else Operation.REPLACE
        told = summary.additional_properties if summary is not None else {}
        added = told if operation is Operation.APPEND else {}
        changed = told if operation in (Operation.OVERWRITE, Operation.DELETE) else {}
        yield TableStep(
            snapshot_id=snapshot.snapshot_id,
            appended_rows=int(added.get("added-records", 0)),
            appended_files=int(added.get("added-data-files", 0)),
            changed_rows=int(changed.get("added-records", 0)) + int(changed.get("deleted-records", 0)),
            committed_at_ms=snapshot.timestamp_ms,
        )
        parent = snapshot.parent_snapshot_id
        snapshot = by_id.get(parent) if parent is not None else None
