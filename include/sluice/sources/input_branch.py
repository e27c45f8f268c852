"""An input table whose main left the position of a reader: it was rolled back, or replaced by another content.

An expired position is one that main's history once led to. Here main leads past it: it left the position's own history
at a common ancestor, or began again without one (`CREATE OR REPLACE`). What was read since the ancestor is withdrawn
from the source and was published already; what main has appended since it was never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from pyiceberg.table import Table

from sluice.sources.iceberg_positions import TableStep, history_of, step_of


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
