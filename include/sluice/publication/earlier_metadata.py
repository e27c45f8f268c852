"""Reads what a table was before: its previous metadata files, as far as the catalog keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from sluice.tables.catalog import catalog_refusals

_NEAREST_FILES = 4
"""How many metadata files near the commit of a snapshot are searched for its parent; clocks of writers differ."""


def previous_properties(table: Table) -> Iterator[dict[str, str]]:
    """The properties of the table's previous metadata files, newest first, as far as they are kept.

    Raises
    ------
    LakehouseError: when one cannot be read.
    """
    for entry in reversed(table.metadata.metadata_log):
        metadata = _read(table, entry.metadata_file)
        if metadata is None:
            return
        yield metadata.properties


def earlier_snapshot(table: Table, snapshot_id: int) -> Snapshot | None:
    """A snapshot that the table lists, or did before; none when no metadata that is kept has it.

    Raises
    ------
    LakehouseError: when one cannot be read.
    """
    found = table.snapshot_by_id(snapshot_id)
    for entry in reversed(table.metadata.metadata_log if found is None else ()):
        metadata = _read(table, entry.metadata_file)
        found = None if metadata is None else metadata.snapshot_by_id(snapshot_id)
        if metadata is None or found is not None:
            break
    return found


def led_past(table: Table, oldest: Snapshot, *, snapshot_id: int, sequence_number: int) -> bool:
    """Whether earlier metadata shows that history led past a snapshot: main was rolled back, written and expired since.
    The metadata that a commit wrote lists the parent of its snapshot.

    Where those metadata files are gone, nothing is known, and the snapshot counts as expired with its history.

    Parameters
    ----------
    oldest: the last snapshot on the way back that is listed.

    Raises
    ------
    LakehouseError: when one cannot be read.
    """
    nearest = sorted(table.metadata.metadata_log, key=lambda entry: abs(entry.timestamp_ms - oldest.timestamp_ms))
    known: dict[int, Snapshot] = {}
    for entry in nearest[:_NEAREST_FILES]:
        metadata = _read(table, entry.metadata_file)
        for one in () if metadata is None else metadata.snapshots:
            # pyiceberg's expiry removes the parent of what it keeps
            if one.snapshot_id not in known or known[one.snapshot_id].parent_snapshot_id is None:
                known[one.snapshot_id] = one
        reached = _first_at_or_below(sequence_number, known.get(oldest.snapshot_id, oldest), known)
        if reached is not None:
            return reached.snapshot_id != snapshot_id
    return False


def _first_at_or_below(number: int, newest: Snapshot, known: Mapping[int, Snapshot]) -> Snapshot | None:
    """The first ancestor with a sequence number or one before it; none as far as they are known."""
    step: Snapshot | None = newest
    while step is not None and (step.sequence_number or 0) > number:
        step = known.get(step.parent_snapshot_id) if step.parent_snapshot_id is not None else None
    return step


def _read(table: Table, metadata_file: str) -> TableMetadata | None:
    """A previous metadata file; none when it is gone: catalogs delete the oldest ones."""
    try:
        reading = f"read earlier metadata of {'.'.join(table.name())}"
        with catalog_refusals(reading, but_not=(FileNotFoundError,)):
            return FromInputFile.table_metadata(table.io.new_input(metadata_file))
    except FileNotFoundError:
        return None
