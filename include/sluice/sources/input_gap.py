"""What main of an input table no longer leads to from the position of a reader: a gap, or another branch.

A reader of appended rows walks from its position to the newest snapshot. An expiry that knows of no reader can remove
snapshots in between; the position may still be listed, because a tag keeps it, and cannot be continued from. The
expired snapshots are named from earlier metadata files of the table: `metadata-log` lists them, and expiry leaves them
in place.

An expired position is one that main's history once led to. Where main was rolled back or replaced, it leads past the
position: it left the position's own history at a common ancestor, or began again without one (`CREATE OR REPLACE`).
What was read since the ancestor is withdrawn from the source and was published already; what main has appended since it
was never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table

from sluice.sources.iceberg_positions import BEGINNING, TableStep, history_of, step_of
from sluice.tables.catalog import catalog_refusals

_NAMED = 5
"""How many snapshots a message names; a long gap has hundreds."""

_NEAREST_FILES = 4
"""How many metadata files near a snapshot's commit are searched for its parent; clocks of writers differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputGap:
    """The snapshots between the position of a reader and the oldest one that can be reached from main.

    position: the snapshot from which the reader would continue.
    resumes_at: the oldest snapshot that main's history reaches.
    missing: the expired ones, oldest first, as far as they are known.
    read: the snapshot at the position itself, listed or not; none when it is unknown.
    is_named: whether `missing` is all of them: each is the parent of the next.
    """

    table: str
    position: int
    resumes_at: TableStep
    missing: tuple[TableStep, ...]
    is_named: bool
    read: TableStep | None = None

    @property
    def rows(self) -> int:
        """The rows that the missing snapshots appended, as far as they are known."""
        return sum(step.appended_rows for step in self.missing)

    def __str__(self) -> str:
        if self.is_named and not self.missing:
            return (
                f"snapshot {self.position} of {self.table} was expired; nothing is missing between it and the oldest "
                f"snapshot that can be reached, {self.resumes_at.snapshot_id}"
            )
        known = "" if self.is_named else "at least "
        named = ", ".join(str(step.snapshot_id) for step in self.missing[:_NAMED])
        more = f" and {len(self.missing) - _NAMED} more" if len(self.missing) > _NAMED else ""
        which = f": {named}{more}" if named else ""
        return (
            f"the history of {self.table} is cut behind snapshot {self.position}: {known}{len(self.missing)} snapshots "
            f"with {known}{self.rows:,} appended rows were expired before they were read{which}; the oldest snapshot "
            f"that can be reached is {self.resumes_at.snapshot_id}"
        )


def find_gap(table: Table, *, name: str, position: int) -> InputGap | None:
    """The gap behind a position; none while main's history reaches back to it, or when main has no history at all.

    Parameters
    ----------
    table: freshly loaded. name: `<namespace>.<table>`. position: the snapshot from which a reader continues.

    Raises
    ------
    LakehouseError: when earlier metadata cannot be read.
    """
    line = tuple(history_of(table))
    if not line or position == BEGINNING or any(step.snapshot_id == position for step in line):
        return None
    resumes_at = line[-1]
    with catalog_refusals(f"read earlier metadata of {name}"):
        expired = read_expired(table, resumes_at=resumes_at, position=position)
    missing = tuple(_missing(resumes_at, expired, position))
    oldest = missing[-1] if missing else expired.get(resumes_at.snapshot_id, resumes_at)
    at = table.snapshot_by_id(position)
    return InputGap(
        table=name,
        position=position,
        resumes_at=resumes_at,
        missing=tuple(reversed(missing)),
        is_named=oldest.parent_id == position,
        read=step_of(at) if at is not None else expired.get(position),
    )


def knows_snapshot(table: Table, snapshot_id: int, *, name: str) -> bool:
    """Whether a table lists a snapshot, or one of its earlier metadata files does.

    Parameters
    ----------
    table: freshly loaded. name: `<namespace>.<table>`.

    Raises
    ------
    LakehouseError: when earlier metadata cannot be read.
    """
    if table.snapshot_by_id(snapshot_id) is not None:
        return True
    line = tuple(history_of(table))
    if not line:
        return False
    with catalog_refusals(f"read earlier metadata of {name}"):
        return snapshot_id in read_expired(table, resumes_at=line[-1], position=snapshot_id)


def read_expired(table: Table, *, resumes_at: TableStep, position: int) -> Mapping[int, TableStep]:
    """The snapshots that earlier metadata files list, by id, until they lead from one snapshot back to a position.

    The position's own snapshot is among them, unless the table still lists it: it may have expired before those behind
    it, whose parent it stays by name.

    A snapshot's parent is listed by the metadata file that its commit wrote. So a few files are read for each expiry,
    from the times of the snapshots, and not one for each commit. Where none of those near its commit has the parent,
    as when they were removed, the search ends: then some of the gap stays unnamed.
    """
    found: dict[int, TableStep] = {}
    unread = list(table.metadata.metadata_log)
    is_listed = table.snapshot_by_id(position) is not None
    step, tries = resumes_at, 0
    while unread and tries < _NEAREST_FILES:
        nearest = min(unread, key=lambda entry: abs(entry.timestamp_ms - step.committed_at_ms))
        unread.remove(nearest)
        _add_listed(found, table, nearest.metadata_file)
        oldest = _oldest_connected(resumes_at, found, position)
        if oldest.parent_id == position and (is_listed or position in found):
            break
        tries = tries + 1 if oldest.snapshot_id == step.snapshot_id else 0
        step = oldest
    return found


def _add_listed(found: dict[int, TableStep], table: Table, metadata_file: str) -> None:
    """Add what a metadata file lists; nothing when it was removed."""
    try:
        earlier = FromInputFile.table_metadata(table.io.new_input(metadata_file))
    except FileNotFoundError:
        return
    for snapshot in earlier.snapshots:
        # pyiceberg's expiry removes the parent of what it keeps; a file from before that expiry has it.
        if snapshot.snapshot_id not in found or found[snapshot.snapshot_id].parent_id is None:
            found[snapshot.snapshot_id] = step_of(snapshot)


def _oldest_connected(resumes_at: TableStep, found: Mapping[int, TableStep], position: int) -> TableStep:
    """The last known snapshot on the way back to a position: its parent is the position, or unknown."""
    step = found.get(resumes_at.snapshot_id, resumes_at)
    while step.parent_id is not None and step.parent_id != position and step.parent_id in found:
        step = found[step.parent_id]
    return step


def _missing(resumes_at: TableStep, expired: Mapping[int, TableStep], position: int) -> Iterator[TableStep]:
    """The known expired snapshots before the oldest reachable one, newest first, up to the position."""
    step: TableStep | None = expired.get(resumes_at.snapshot_id, resumes_at)
    while step is not None and step.parent_id is not None and step.parent_id != position:
        step = expired.get(step.parent_id)
        if step is not None:
            yield step


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBranch:
    """How main left a position.

    common: the newest snapshot that is in the history of both; none when main has a new beginning.
    withdrawn: what leads from there to the position, oldest first, as far as it is listed.
    new: what leads from there to the newest snapshot, oldest first.
    """

    table: str
    position: int
    common: TableStep | None
    withdrawn: tuple[TableStep, ...]
    new: tuple[TableStep, ...]

    @property
    def withdrawn_rows(self) -> int:
        """The rows that the withdrawn snapshots had appended."""
        return sum(step.appended_rows for step in self.withdrawn)

    @property
    def new_rows(self) -> int:
        """The rows that were appended since, and that no reader at the position has read."""
        return sum(step.appended_rows for step in self.new)

    def __str__(self) -> str:
        what = "was replaced" if self.common is None else f"was rolled back to snapshot {self.common.snapshot_id}"
        return (
            f"{self.table} {what}: the position {self.position} is listed and is no ancestor of main. "
            f"{len(self.withdrawn)} snapshots with {self.withdrawn_rows:,} appended rows that were read are withdrawn, "
            f"and {len(self.new)} snapshots with {self.new_rows:,} appended rows came since"
        )


def find_branch(table: Table, *, name: str, position: int) -> InputBranch | None:
    """How main left a position; none while it is an ancestor of main, when it was expired, or main has no history.

    Parameters
    ----------
    table: freshly loaded. name: `<namespace>.<table>`. position: the snapshot from which a reader continues.
    """
    line = tuple(history_of(table))
    behind = tuple(_listed_behind(table, position))
    ids = {step.snapshot_id for step in behind}
    if not line or not behind or any(step.snapshot_id == position for step in line):
        return None
    common = next((step for step in line if step.snapshot_id in ids), None)
    if common is None and not _has_new_beginning(table, line):
        return None

    def since(steps: Sequence[TableStep]) -> tuple[TableStep, ...]:
        return tuple(takewhile(lambda step: common is None or step.snapshot_id != common.snapshot_id, steps))[::-1]

    return InputBranch(table=name, position=position, common=common, withdrawn=since(behind), new=since(line))


def _listed_behind(table: Table, position: int) -> Iterator[TableStep]:
    """The snapshot at a position and its ancestors, newest first, as far as they are listed."""
    snapshot = table.snapshot_by_id(position)
    while snapshot is not None:
        yield step_of(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None


def _has_new_beginning(table: Table, line: Sequence[TableStep]) -> bool:
    """Whether the oldest snapshot of main has no parent, and what came right before it is listed: main was replaced.

    The parent alone is no evidence: pyiceberg's expiry removes it from what it keeps; what came before is gone then.
    """
    oldest = table.snapshot_by_id(line[-1].snapshot_id)
    if oldest is None or oldest.parent_snapshot_id is not None or not oldest.sequence_number:
        return False
    return any(one.sequence_number == oldest.sequence_number - 1 for one in table.snapshots())
