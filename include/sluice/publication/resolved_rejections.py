"""Marks rejected rows in a quarantine as resolved, in one commit that leaves the marks of streams alone.

That a row is resolved stands in the row itself (decision 0083). The files that hold such rows are exchanged for files
with the same rows. The commit is an overwrite: a stream which reads a quarantine does not take them for new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
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
from sluice.publication.checked_commit import DEFAULT_POLICY, NothingToCommit, RacePolicy, TableChange, commit_checked
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.file_preparation import write_files
from sluice.publication.marks import refuse_unpublishable
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.stored_keys import PUBLICATION_KEY
from sluice.tables.catalog import catalog_refusals

PAYLOAD_PLACE = "payload "
"""Begins the place of a row without a position: its payload follows."""

_KNOWN_BY = ["stream", "generation", "batch", "position", "payload", "resolved_at", "resolved_by"]


class Resolution(StrEnum):
    """How a rejected row was resolved.

    CORRECTED: a backfill has published its record. REPLAYED: its record was published from the quarantine.
    DISCARDED: a person gives it up. It stays resolved when its record is rejected again; the others do not.
    """

    CORRECTED = "corrected"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRows:
    """Rows of a quarantine that are resolved.

    stream: the stream that rejected them.
    places: where their records stood, each the `position` of a row, or `PAYLOAD_PLACE` and its payload when it has
        none. Every open row of such a place is marked.
    by: what resolved them, for example the publication key of a backfill or a person; at: when.
    """

    stream: str
    places: Set[str]
    resolution: Resolution
    by: str
    at: datetime


def mark_resolved(
    catalog: Catalog,
    quarantine: str,
    resolved: ResolvedRows,
    *,
    reached: Reached = unnoticed,
    policy: RacePolicy = DEFAULT_POLICY,
) -> int:
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
    if not resolved.places:
        return 0
    values = {"resolved_at": resolved.at, "resolution": str(resolved.resolution), "resolved_by": resolved.by}
    marking = _Marking(
        stream=resolved.stream, chooses=lambda row: place_of(row) in resolved.places, values=values, reached=reached
    )
    return marking.commit(catalog, quarantine, policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedAt:
    """What a row of a quarantine is known by for as long as it is there: a source that was created again has other
    records at the same places.

    place: as in `ResolvedRows`. generation, batch: that rejected its record.
    """

    place: str
    generation: int
    batch: int


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
        place = place_of(row)
        if place is None or (row["resolved_by"] or "") >= key:
            return False
        return RejectedAt(place=place, generation=row["generation"], batch=row["batch"]) in claimed

    return _Marking(stream=stream, chooses=chooses, values={"resolved_by": key}).commit(catalog, quarantine)


def mark_replayed(catalog: Catalog, quarantine: str, *, stream: str, key: str, at: datetime) -> int:
    """Mark the open rows that a replay has claimed, once its commit is visible. Returns how many.

    Raises
    ------
    UnpublishableError, DeliveryError, LakehouseError: as `mark_resolved` raises them.
    """
    values = {"resolved_at": at, "resolution": str(Resolution.REPLAYED)}
    marking = _Marking(stream=stream, chooses=lambda row: row["resolved_by"] == key, values=values)
    return marking.commit(catalog, quarantine)


def place_of(row: Mapping[str, Any]) -> str | None:
    """Where the record of a row stood, as `ResolvedRows.places` has it; none when nothing says it."""
    if row["position"] is None and row["payload"] is not None:
        return f"{PAYLOAD_PLACE}{row['payload']}"
    return str(row["position"]) if row["position"] is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The files in the place of one, and how many of their rows were marked."""

    files: tuple[DataFile, ...]
    rows: int


@dataclass(slots=True, kw_only=True)
class _Marking:
    """The marking of one call.

    chooses: which open rows of the stream. values: what they get, by column.
    written: by the path of the file they replace; an attempt after a conflict uses them again, because a file never
        changes.
    """

    stream: str
    chooses: Callable[[Mapping[str, Any]], bool]
    values: Mapping[str, Any]
    reached: Reached = unnoticed
    written: dict[str, _Written] = field(default_factory=dict)

    def commit(self, catalog: Catalog, quarantine: str, policy: RacePolicy = DEFAULT_POLICY) -> int:
        """Mark the rows in one commit. Returns how many."""
        committer, what = (
            PyIcebergCommitter(catalog),
            f"marks of rows that {self.stream} rejected into {quarantine}",
        )
        landed = commit_checked(committer, quarantine, self.plan, what=what, reached=self.reached, policy=policy)
        return 0 if isinstance(landed, NothingToCommit) else self.rows_in(landed.change.removed)

    def plan(self, table: Table) -> TableChange | NothingToCommit:
        """The exchange of the files that hold such rows."""
        refuse_unpublishable(table)
        require_resolution(table)
        is_open = And(EqualTo(term="stream", value=self.stream), IsNull(term="resolved_at"))
        with catalog_refusals(f"read and write the rows of {'.'.join(table.name())}"):
            tasks = list(table.scan(row_filter=is_open).plan_files())
            _refuse_delete_files(table, tasks)
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
            summary={PUBLICATION_KEY: f"{self.stream}/{self.values.get('resolution', 'claimed')}"},
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
        return row["resolved_at"] is None and row["stream"] == self.stream and self.chooses(row)


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


def _refuse_delete_files(table: Table, tasks: Collection[FileScanTask]) -> None:
    if any(task.delete_files for task in tasks):
        name = ".".join(table.name())
        raise UnpublishableError(
            f"{name} has delete files, so its files hold rows that are deleted.",
            next_step=f"Compact it first: `sluice table maintain {name}`.",
        )
