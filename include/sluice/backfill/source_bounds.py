"""Decides at which snapshot a source table is read, so that a backfill sees exactly what the stream had read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from sluice.backfill.read_bounds import TableBound

_BEGINNING = -1
"""The snapshot id of an offset before the first snapshot. Source: Iceberg's `StreamingOffset.START_OFFSET`."""


def bound_of(offset: object, table: Table, *, input_name: str, column: str | None) -> TableBound:
    """The snapshot up to which a stream has read a table, from its end offset.

    An offset is a snapshot and a number of files that the snapshot added. When all of them were read, the stream had
    read the table at that snapshot; when none were, at the one before. Later snapshots that appended nothing belong to
    it: a backfill that corrected the source is one of them, and the stream may not have passed it yet. A correction
    behind rows that the stream has not read is a problem: without it, the result would be as wrong as the source was.

    Parameters
    ----------
    offset: the end offset of the newest published batch, as Iceberg's source writes it.
    column: the column by which only an interval is read.
    """
    name = ".".join(table.name())
    snapshot_id, problem = _snapshot_of(offset, table, name=name)
    if snapshot_id is not None:
        following = _since(table, snapshot_id)
        read = list(takewhile(lambda snapshot: not _appends(snapshot), following))
        snapshot_id = read[-1].snapshot_id if read else snapshot_id
        if (missed := next(filter(_corrects, following[len(read) :]), None)) is not None:
            snapshot_id, problem = (
                None,
                f"snapshot {missed.snapshot_id} corrected {name} after rows that the stream has not read yet.",
            )
    return TableBound(input=input_name, table=name, snapshot_id=snapshot_id, column=column, problem=problem)


def _snapshot_of(offset: object, table: Table, *, name: str) -> tuple[int | None, str]:
    if not isinstance(offset, Mapping) or "snapshot_id" not in offset or offset["snapshot_id"] == _BEGINNING:
        return None, f"the stream has read nothing of {name} yet."
    snapshot = table.snapshot_by_id(int(offset["snapshot_id"]))
    if snapshot is None:
        return None, f"the snapshot {offset['snapshot_id']} of {name}, which the stream has read up to, is expired."
    added, position = _files_to_read(snapshot, offset), int(offset.get("position", 0))
    if position >= added:
        return snapshot.snapshot_id, ""
    if position == 0 and not offset.get("scan_all_files") and snapshot.parent_snapshot_id is not None:
        if table.snapshot_by_id(snapshot.parent_snapshot_id) is not None:
            return snapshot.parent_snapshot_id, ""
        return None, f"the snapshot of {name} that the stream has read up to is expired."
    return None, f"the stream has read {position} of the {added} files that snapshot {snapshot.snapshot_id} added."


def _since(table: Table, snapshot_id: int) -> Sequence[Snapshot]:
    """The snapshots of main after one, oldest first; none when main does not lead back to it."""
    later: list[Snapshot] = []
    snapshot = table.current_snapshot()
    while snapshot is not None and snapshot.snapshot_id != snapshot_id:
        later.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    return () if snapshot is None else tuple(reversed(later))


def _corrects(snapshot: Snapshot) -> bool:
    """Whether a snapshot has changed or removed rows that were there before."""
    summary = snapshot.summary
    return summary is not None and summary.operation in (Operation.OVERWRITE, Operation.DELETE)


def _appends(snapshot: Snapshot) -> bool:
    summary = snapshot.summary
    return summary is None or (
        summary.operation is Operation.APPEND and int(summary.additional_properties.get("added-data-files", 0)) > 0
    )


def _files_to_read(snapshot: Snapshot, offset: Mapping[str, Any]) -> int:
    summary = snapshot.summary
    if summary is None:
        return 0
    if offset.get("scan_all_files"):
        return int(summary.additional_properties.get("total-data-files", 0))
    # A reader of appended rows leaves out what other operations added, or has stopped before them.
    is_append = summary.operation is Operation.APPEND
    return int(summary.additional_properties.get("added-data-files", 0)) if is_append else 0
