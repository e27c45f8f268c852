"""The port through which publication loads and changes a table: load, check, prepare, send once.

The caller loads a table, decides on exactly that metadata what to change, and lets the committer prepare and send the
change. A committer never repeats anything by itself: a repetition without the check published a batch twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from sluice.publication.chain import MarkPosition
from sluice.publication.staged_batch import StagedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTag:
    """A tag that keeps the head which a commit replaces. keeps: for how long, from the commit on."""

    name: str
    keeps: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """One new snapshot of main, and what the same commit changes beside it.

    operation: APPEND adds files, OVERWRITE removes and adds files, DELETE removes files. Without files the snapshot is
        empty.
    added: data files that are written. The `spec_id` of each is the table's.
    removed: data files that are live in the table.
    summary: the entries of the snapshot's summary.
    output, mark: the position to which the commit moves the mark of the output; none for commits on staging tables.
    properties: the table properties that the commit sets.
    expired: the ids of the snapshots that the commit removes from the metadata.
    tag: kept on the head that the commit replaces; unset for none.
    """

    operation: Operation
    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    summary: Mapping[str, str]
    output: StagedOutput | None = None
    mark: MarkPosition | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    expired: tuple[int, ...] = ()
    tag: HeadTag | None = None


class Answer(StrEnum):
    """The catalog's answer to a commit. None but LANDED is certain about the table.

    LANDED: the table has the snapshot.
    REFUSED: the catalog answered that the table had changed. A gateway that repeats a request gets this answer to the
        repetition of a commit that has landed.
    UNKNOWN: the answer was lost, or the catalog failed: the commit may have landed, or land later.
    """

    LANDED = "landed"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class PreparedCommit(Protocol):
    """One commit, ready to be sent once. Its manifests are written; no metadata refers to them before it lands."""

    @property
    def snapshot_id(self) -> int:
        """The id of the new snapshot."""
        ...

    @property
    def sequence_number(self) -> int:
        """The sequence number of the new snapshot."""
        ...

    def send(self) -> Answer:
        """Send the commit once.

        Raises
        ------
        LakehouseError: when the catalog refuses it for another reason than a changed table.
        """
        ...

    def discard(self) -> None:
        """Delete the manifests of the commit. Only for a commit whose fate is `NEVER`."""
        ...


class TableCommitter(Protocol):
    """Loads tables and changes them by single commits."""

    def load(self, identifier: str) -> Table:
        """Load a table freshly.

        Parameters
        ----------
        identifier: `<namespace>.<table>`.

        Raises
        ------
        LakehouseError: when the table does not exist or cannot be loaded.
        """
        ...

    def prepare(self, table: Table, change: TableChange) -> PreparedCommit:
        """Write the manifests of a change on exactly this metadata.

        The catalog lands the commit only while the table has this UUID and main is at this snapshot.

        Raises
        ------
        LakehouseError: when the object store refuses.
        """
        ...


class Fate(StrEnum):
    """What became of a commit, as a table that was loaded after the answer shows it.

    LANDED: main has its snapshot. NEVER: it has not landed and cannot land any more. OPEN: the table shows neither,
    because the commit may still land, or because the history that would show it has expired.
    """

    LANDED = "landed"
    NEVER = "never"
    OPEN = "open"


def decide_fate(*, snapshot_id: int, sequence_number: int, parent_id: int | None, now: TableMetadata) -> Fate:
    """Decide what became of a commit that was sent and not answered with LANDED.

    A snapshot that is only missing proves nothing: it may have landed and expired, while later snapshots use its
    manifests. It has never landed when the history of main leads to its parent without it. It can land no more when the
    table has reached its sequence number, because catalogs accept a snapshot only with a higher one.

    Parameters
    ----------
    snapshot_id, sequence_number: of the snapshot that the commit adds.
    parent_id: the snapshot of main on which the commit was prepared; none for an empty table.
    now: the metadata of the table, loaded after the answer.
    """
    by_id = {snapshot.snapshot_id: snapshot for snapshot in now.snapshots}
    place = now.current_snapshot_id
    while place is not None and place in by_id and place != parent_id:
        if place == snapshot_id:
            return Fate.LANDED
        place = by_id[place].parent_snapshot_id
    has_whole_history = place is not None and place == parent_id
    can_land = now.next_sequence_number() <= sequence_number
    return Fate.NEVER if has_whole_history and not can_land and snapshot_id not in by_id else Fate.OPEN
