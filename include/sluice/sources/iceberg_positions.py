"""Positions in Iceberg tables: the offsets of Iceberg's streaming source, and the snapshots that they refer to.

An offset is `{version, snapshot_id, position, scan_all_files}`. The source keeps its first one in the checkpoint, in
`sources/<number>/offsets/0`. Source: org.apache.iceberg.spark.source.StreamingOffset and SparkMicroBatchStream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from sluice.checkpoints.checkpoint_files import CheckpointFiles
from sluice.stored_keys import ERASED
from sluice.tables.table_observation import removed_rows

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_FIRST_OFFSET = re.compile(r"sources/(\d+)/offsets/0")
_FIELDS = frozenset({"version", "snapshot_id", "position", "scan_all_files"})

BEGINNING = -1
"""The snapshot id in the offset of a reader that found the table empty; the oldest listed snapshot takes its place.

Source: Iceberg's `StreamingOffset.START_OFFSET`.
"""

_APPEND = "append"
_REPLACE = "replace"
_CHANGES = frozenset({"overwrite", "delete"})
"""Operations of pyiceberg.table.snapshots.Operation. The fourth, `replace`, rewrites files and changes no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """An offset of Iceberg's source.

    position: how many files of the snapshot are read: of those that it added, or of all of them (`scan_all_files`).
    """

    snapshot_id: int
    position: int
    scan_all_files: bool

    def text(self) -> str:
        """The offset as Iceberg writes it."""
        return json.dumps(
            {
                "version": 1,
                "snapshot_id": self.snapshot_id,
                "position": self.position,
                "scan_all_files": self.scan_all_files,
            },
            separators=(",", ":"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStep:
    """One snapshot in the history of a table, as a reader of appended rows needs it.

    appended_rows, appended_files: what the snapshot appended; both zero when it only rewrote or removed files.
    changed_rows: the rows that it added or removed in another way; such a reader does not receive them. None are those
        that the table keeps no longer: they were removed after every reader had read them, or erased.
    committed_at_ms: milliseconds since 1970. parent_id: none for the first one. operation: in Iceberg's words.
    removes_old_rows: whether it removed rows alone that the table keeps no longer.
    is_of_erasure: whether it erased rows of a person, or is the empty one up to which readers have to come after that.
    appended_bytes: of the appended files.
    total_rows, total_files, total_bytes: of the whole table at the snapshot; none where its summary does not say.
    """

    snapshot_id: int
    appended_rows: int = 0
    appended_files: int = 0
    changed_rows: int = 0
    committed_at_ms: int = 0
    parent_id: int | None = None
    operation: str = _APPEND
    removes_old_rows: bool = False
    is_of_erasure: bool = False
    appended_bytes: int = 0
    total_rows: int | None = None
    total_files: int | None = None
    total_bytes: int | None = None

    @property
    def is_append(self) -> bool:
        """Whether it appended rows and did nothing else."""
        return self.operation == _APPEND

    @property
    def keeps_rows(self) -> bool:
        """Whether every row of the snapshot before it is still in the table: it appended, or rewrote files only."""
        return self.operation in (_APPEND, _REPLACE)

    def is_read_by(self, offset: StreamOffset) -> bool:
        """Whether a reader at an offset of this snapshot has read all that it reads of it."""
        files = self.total_files if offset.scan_all_files else self.appended_files
        return files is not None and offset.position >= files

    @property
    def committed_at(self) -> datetime:
        """When the snapshot was committed."""
        return datetime.fromtimestamp(self.committed_at_ms / 1000, UTC)

    def is_before(self, instant: datetime) -> bool:
        """Whether the snapshot was committed before a time."""
        return self.committed_at_ms < instant.timestamp() * 1000


def history_of(table: Table) -> Iterator[TableStep]:
    """The snapshots of a table, from the current one back to the oldest that has not expired."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield step_of(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = by_id.get(parent) if parent is not None else None


def history_read_by(history: Sequence[TableStep], end: StreamOffset) -> tuple[TableStep, ...] | None:
    """The history of a table as far as a stream has read it, newest first; none when the history does not have the
    snapshot of its offset.

    A snapshot of which the stream has read only a part is left out. Later ones that appended nothing belong to it: they
    corrected or rewrote what it has read.
    """
    place = next((number for number, step in enumerate(history) if step.snapshot_id == end.snapshot_id), None)
    if end.snapshot_id == BEGINNING:
        return ()
    if place is None:
        return None
    if not history[place].is_read_by(end):
        return tuple(history[place + 1 :])
    later = tuple(takewhile(lambda step: not step.appended_files, reversed(history[:place])))
    return (*reversed(later), *history[place:])


def step_of(snapshot: Snapshot) -> TableStep:
    """What a reader of appended rows needs of a snapshot."""
    summary = snapshot.summary
    operation = summary.operation.value if summary is not None else "unknown"
    counts: Mapping[str, Any] = summary.additional_properties if summary is not None else {}
    appended = counts if operation == _APPEND else {}
    removes_old_rows = operation in _CHANGES and removed_rows(counts) is not None
    is_explained = removes_old_rows or ERASED in counts
    changed = counts if operation in _CHANGES and not is_explained else {}
    return TableStep(
        snapshot_id=snapshot.snapshot_id,
        appended_rows=int(appended.get("added-records", 0)),
        appended_files=int(appended.get("added-data-files", 0)),
        changed_rows=int(changed.get("added-records", 0)) + int(changed.get("deleted-records", 0)),
        committed_at_ms=snapshot.timestamp_ms,
        parent_id=snapshot.parent_snapshot_id,
        operation=operation,
        removes_old_rows=removes_old_rows,
        is_of_erasure=ERASED in counts,
        appended_bytes=int(appended.get("added-files-size", 0)),
        total_rows=_number(counts, "total-records"),
        total_files=_number(counts, "total-data-files"),
        total_bytes=_number(counts, "total-files-size"),
    )


def _number(counts: Mapping[str, Any], key: str) -> int | None:
    return int(counts[key]) if key in counts else None


def snapshot_of(offset: object) -> int | None:
    """The snapshot id in an offset of Iceberg's source; None for an offset that another kind of source wrote.

    Parameters
    ----------
    offset: the JSON text, or the object parsed from it.
    """
    found = stream_offset_of(offset)
    return None if found is None else found.snapshot_id


def stream_offset_of(offset: object) -> StreamOffset | None:
    """An offset of Iceberg's source, read; None for an offset that another kind of source wrote.

    Parameters
    ----------
    offset: the JSON text, or the object parsed from it.
    """
    content = offset
    if isinstance(offset, str):
        try:
            content = json.loads(offset)
        except ValueError:  # the offset of a source that does not write JSON
            return None
    if not isinstance(content, Mapping) or not _FIELDS.issuperset(content) or "snapshot_id" not in content:
        return None
    return StreamOffset(
        snapshot_id=int(content["snapshot_id"]),
        position=int(content.get("position", 0)),
        scan_all_files=bool(content.get("scan_all_files", False)),
    )


def first_offsets(checkpoint: CheckpointFiles) -> Mapping[int, StreamOffset]:
    """The first offset of every Iceberg source, by the source's number.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    found = {}
    for seen in checkpoint.list_files("sources"):
        match = _FIRST_OFFSET.fullmatch(seen.path)
        offset = stream_offset_of(checkpoint.read_text(seen.path)) if match else None
        if match and offset is not None:
            found[int(match[1])] = offset
    return dict(sorted(found.items()))
