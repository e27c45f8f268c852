"""Plans the declared start of an Iceberg input from its table as it is now."""

from __future__ import annotations

from datetime import datetime
from functools import partial

from pyiceberg.table import Table

from sluice.declarations.source_declarations import IcebergSource, SnapshotStart
from sluice.sources.iceberg_positions import BEGINNING, StreamOffset, history_of
from sluice.sources.snapshot_files import observe_files
from sluice.sources.table_starts import (
    StartPlan,
    Unreachable,
    plan_after_newest,
    plan_after_snapshot,
    plan_begun,
    plan_since,
    plan_whole_table,
)


def plan_declared_start(
    table: Table, source: IcebergSource, *, now: datetime, begun: StreamOffset | None = None
) -> StartPlan | None:
    """Where a new checkpoint begins in a table; none when the table has no snapshot yet, and all that comes is read.

    Parameters
    ----------
    table: freshly loaded.
    begun: where an earlier run began that planned no batch. A whole table is begun again: nothing of it was read.

    Raises
    ------
    LakehouseError: when the files of a snapshot cannot be read.
    """
    name, history = source.table, tuple(history_of(table))
    files_of = partial(observe_files, table)
    if history and begun is not None and source.starting != "table" and not begun.scan_all_files:
        was_empty = begun.snapshot_id == BEGINNING  # so that all of it came since
        return plan_whole_table(name, history, files_of) if was_empty else plan_begun(name, history, begun)
    match source.starting:
        case SnapshotStart() as wanted:
            return _after(table, name, wanted)
        case "table":
            return plan_whole_table(name, history, files_of) if history else None
        case "latest":
            return plan_after_newest(history) if history else None
        case instant:
            return plan_since(name, history, files_of, instant, now=now) if history else None


def _after(table: Table, name: str, wanted: SnapshotStart) -> StartPlan:
    declared = f"tag {wanted.tag}" if wanted.tag is not None else f"snapshot {wanted.snapshot_id}"
    reference = table.refs().get(wanted.tag) if wanted.tag is not None else None
    snapshot_id = reference.snapshot_id if reference is not None else wanted.snapshot_id
    history = tuple(history_of(table))
    if snapshot_id is None or not history:
        return Unreachable(
            reason=f"{name} has no {declared}",
            next_step="Declare a snapshot or a tag that it has, or `starting: table`.",
        )
    return plan_after_snapshot(name, history, snapshot_id, declared=declared)
