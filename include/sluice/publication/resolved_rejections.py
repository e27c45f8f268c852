"""Marks rejected rows in a quarantine as resolved, in one commit that leaves the marks of streams alone.

That a row is resolved stands in the row itself (decision 0083). The files that hold such rows are exchanged for files
with the same rows. The commit is an overwrite: a stream which reads a quarantine does not take them for new ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, And, EqualTo, IsNull
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation

from sluice.errors import UnpublishableError
from sluice.publication.checked_commit import NothingToCommit, TableChange, commit_checked
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.file_preparation import write_files
from sluice.publication.marks import refuse_unpublishable
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.stored_keys import PUBLICATION_KEY
from sluice.tables.catalog import catalog_refusals

PAYLOAD_PLACE = "payload "
"""Begins the place of a row without a position: its payload follows."""

TOPIC_PLACE = frozenset({"topic", "partition", "offset"})
SHARD_PLACE = frozenset({"stream", "shard", "sequence_number"})
"""What a position consists of that a decoder has written, of a record of Kafka and of Kinesis."""

_KNOWN_BY = ["stream", "generation", "batch", "position", "payload", "resolution", "resolved_by"]


class Resolution(StrEnum):
    """How a rejected row was resolved.

    CORRECTED: a backfill has published its record. REPLAYED: its record was published from the quarantine.
    DISCARDED: a person gives it up. It stays resolved when its record is rejected again; the others do not.
    """

    CORRECTED = "corrected"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedAt:
    """What a row of a quarantine is known by for as long as it is there: a source that was created again has other
    records at the same places.

    place: where its record stood, the `position` of the row, or `PAYLOAD_PLACE` and its payload when it has none.
    generation, batch: that rejected its record.
    payload: what came, where several records may stand at one place: lines of a file, values of a table whose other
        columns are equal. Unset where the place is of one record.
    """

    place: str
    generation: int
    batch: int
    payload: str | None = None

    @property
    def fields(self) -> Mapping[str, Any]:
        """Its position as an object; empty when it is none."""
        try:
            found = json.loads(self.place)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRows:
    """Rows of a quarantine that are resolved.

    stream: the stream that rejected them. rows: those of them that are open are marked.
    by: what resolved them, for example the publication key of a backfill or a person; at: when.
    """

    stream: str
    rows: Set[RejectedAt]
    resolution: Resolution
    by: str
    at: datetime


def mark_resolved(catalog: Catalog, quarantine: str, resolved: ResolvedRows, *, reached: Reached = unnoticed) -> int:
    """Mark open rows as resolved. Rows that are marked already stay as they are, so that a repetition changes nothing.

    Call it after what resolves the rows is visible: a crash between the two leaves rows open that a repetition marks.

    Parameters
    ----------
    quarantine: `<namespace>.<table>`.
    reached: called with `CHECKED` before each commit is sent.

    Returns
    -------
    How many rows were marked.

    Raises
    ------
    UnpublishableError: when the table has no column for it yet, or has delete files.
    DeliveryError, LakehouseError: as `commit_checked` raises them.
    """
    if not resolved.rows:
        return 0
    values = {"resolved_at": resolved.at, "resolution": str(resolved.resolution), "resolved_by": resolved.by}
    marking = _Marking(
        stream=resolved.stream, chooses=lambda row: known_as(row) in resolved.rows, values=values, reached=reached
    )
    return marking.commit(catalog, quarantine)


def claim_rows(catalog: Catalog, quarantine: str, *, stream: str, claimed: Set[RejectedAt], key: str) -> int:
    """Note in open rows which replay is about to publish their records: after a crash it shows which rows the commit
    in the target was about. They stay open. What a younger replay has claimed stays its own.

    Parameters
    ----------
    key: of the replay; keys sort by their time.

    Raises
    ------
    UnpublishableError, DeliveryError, LakehouseError: as `mark_resolved` raises them.
    """

    def chooses(row: Mapping[str, Any]) -> bool:
        return (row["resolved_by"] or "") < key and known_as(row) in claimed

    return _Marking(stream=stream, chooses=chooses, values={"resolved_by": key}).commit(catalog, quarantine)


def mark_replayed(
    catalog: Catalog, quarantine: str, *, stream: str, is_visible: Callable[[str], bool], at: datetime
) -> int:
    """Mark the open rows that replays have claimed whose commits are visible. Returns how many.

    Parameters
    ----------
    is_visible: whether the target shows what the replay of a key has published.

    Raises
    ------
    UnpublishableError, DeliveryError, LakehouseError: as `mark_resolved` raises them.
    """
    asked, values = cache(is_visible), {"resolved_at": at, "resolution": str(Resolution.REPLAYED)}

    def chooses(row: Mapping[str, Any]) -> bool:
        return row["resolved_by"] is not None and asked(row["resolved_by"])

    return _Marking(stream=stream, chooses=chooses, values=values).commit(catalog, quarantine)


def reopen_replayed(catalog: Catalog, quarantine: str, *, stream: str, is_taken_back: Callable[[str], bool]) -> int:
    """Open rows again whose records a replay has published, where somebody took that back. Returns how many.

    They stay claimed: when the rows become visible again, `mark_replayed` finds them.

    Parameters
    ----------
    is_taken_back: whether the target does not show any more what the replay of a key has published.

    Raises
    ------
    UnpublishableError, DeliveryError, LakehouseError: as `mark_resolved` raises them.
    """
    asked, nothing = cache(is_taken_back), dict.fromkeys(("resolved_at", "resolution"))
    marking = _Marking(
        stream=stream,
        chooses=lambda row: asked(str(row["resolved_by"])),
        values=nothing,
        among=Resolution.REPLAYED,
    )
    return marking.commit(catalog, quarantine)


def place_of(row: Mapping[str, Any]) -> str | None:
    """Where the record of a row stood, as `RejectedAt.place` has it; none when nothing says it."""
    if row["position"] is None and row["payload"] is not None:
        return f"{PAYLOAD_PLACE}{row['payload']}"
    return str(row["position"]) if row["position"] is not None else None


def known_as(row: Mapping[str, Any]) -> RejectedAt | None:
    """What a row of a quarantine is known by; none when nothing says where its record stood."""
    place = place_of(row)
    if place is None:
        return None
    at = RejectedAt(place=place, generation=row["generation"], batch=row["batch"])
    is_of_one = row["position"] is None or at.fields.keys() in (TOPIC_PLACE, SHARD_PLACE)
    return at if is_of_one else replace(at, payload=row["payload"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The files in the place of one, and how many of their rows were marked."""

    files: tuple[DataFile, ...]
    rows: int


@dataclass(slots=True, kw_only=True)
class _Marking:
    """The marking of one call.

    among: how the rows of the stream are resolved that may be marked; unset for open ones. chooses: which of them.
    values: what they get, by column.
    written: by the path of the file they replace; an attempt after a conflict uses them again, because a file never
        changes.
    """

    stream: str
    chooses: Callable[[Mapping[str, Any]], bool]
    values: Mapping[str, Any]
    among: Resolution | None = None
    reached: Reached = unnoticed
    written: dict[str, _Written] = field(default_factory=dict)

    def commit(self, catalog: Catalog, quarantine: str) -> int:
        """Mark the rows in one commit. Returns how many."""
        committer, what = (
            PyIcebergCommitter(catalog),
            f"marks of rows that {self.stream} rejected into {quarantine}",
        )
        landed = commit_checked(committer, quarantine, self.plan, what=what, reached=self.reached)
        return 0 if isinstance(landed, NothingToCommit) else self.rows_in(landed.change.removed)

    def plan(self, table: Table) -> TableChange | NothingToCommit:
        """The exchange of the files that hold such rows."""
        refuse_unpublishable(table)
        require_resolution(table)
        is_so = IsNull(term="resolution") if self.among is None else EqualTo(term="resolution", value=self.among)
        is_meant = And(EqualTo(term="stream", value=self.stream), is_so)
        with catalog_refusals(f"read and write the rows of {'.'.join(table.name())}"):
            tasks = list(table.scan(row_filter=is_meant).plan_files())
            refuse_delete_files(table, tasks)
            for task in tasks:
                if task.file.file_path not in self.written:
                    self.written[task.file.file_path] = self._write(table, task)
        removed = tuple(task.file for task in tasks if self.written[task.file.file_path].rows)
        if not removed:
            return NothingToCommit(snapshot_id=None)
        return TableChange(
            operation=Operation.OVERWRITE,
            removed=removed,
            added=tuple(added for file in removed for added in self.written[file.file_path].files),
            summary={PUBLICATION_KEY: f"{self.stream}/{self.values.get('resolution', 'claimed') or 'open'}"},
        )

    def rows_in(self, removed: Collection[DataFile]) -> int:
        """How many rows of some files were marked."""
        return sum(self.written[file.file_path].rows for file in removed)

    def _write(self, table: Table, task: FileScanTask) -> _Written:
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        rows = scan.to_table([FileScanTask(task.file)])
        chosen = [self._is_chosen(row) for row in rows.select(_KNOWN_BY).to_pylist()]
        if not any(chosen):
            return _Written(files=(), rows=0)
        for name, value in self.values.items():
            column = rows.schema.field(name)
            marked = pc.if_else(pa.array(chosen), pa.scalar(value, column.type), rows[name])
            rows = rows.set_column(rows.schema.get_field_index(name), column, marked)
        return _Written(files=tuple(write_files(table.metadata, table.io, rows)), rows=sum(chosen))

    def _is_chosen(self, row: Mapping[str, Any]) -> bool:
        return row["resolution"] == self.among and row["stream"] == self.stream and self.chooses(row)


def require_resolution(table: Table) -> None:
    """Refuse a quarantine without the columns that say what was resolved.

    Raises
    ------
    UnpublishableError: with the command that adds them.
    """
    if "resolved_at" not in table.schema().column_names:
        name = ".".join(table.name())
        raise UnpublishableError(
            f"{name} has no column resolved_at, which says that a rejected row is resolved.",
            next_step=f"Run `sluice table create {name}`: it adds the columns that are new in this version.",
        )


def refuse_delete_files(table: Table, tasks: Collection[FileScanTask]) -> None:
    """Refuse to exchange files whose rows may be deleted by delete files.

    Raises
    ------
    UnpublishableError: when there are any, with the command that applies them.
    """
    if any(task.delete_files for task in tasks):
        name = ".".join(table.name())
        raise UnpublishableError(
            f"{name} has delete files, so its files hold rows that are deleted.",
            next_step=f"Compact it first: `sluice table maintain {name}`.",
        )
