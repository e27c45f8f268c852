"""`sluice table erase`: takes rows of a person out of everything that is kept for a table, and proves it.

    plan ─► event ─► rows out of the newest snapshot ─► cut ─► readers have passed ─► expire ─► delete ─► search again

Each step is found to be done by what lies there, so that the same command, repeated after a crash, does the rest. While
a reader has not passed the cut, the command ends after it, as failed, with what is left to do; nothing of what the
reader needs is touched until then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from time import sleep
from typing import Any
from uuid import uuid4

from pyiceberg.table import Table

from sluice.erasure.cut_history import (
    HistoryLook,
    commit_cut,
    erase_rows,
    expire_before_cut,
)
from sluice.erasure.erasure_plan import ErasureSeen, is_behind, plan_erasure
from sluice.erasure.observe_erasure import ErasureLook, ErasureObserver, is_settled
from sluice.erasure.searched_files import FileSearch, Found, PlacedFile
from sluice.erasure.stale_metadata import stale_metadata
from sluice.errors import LakehouseError, UnhealthyError
from sluice.ledger.connection import database_time
from sluice.ledger.events import REQUESTED, WRITE, Actor, Event, EventAction, EventSubject, record_event
from sluice.ledger.locks import maintenance_lock
from sluice.maintenance.file_trash import forget_files, removals_in
from sluice.maintenance.needed_files import other_tables
from sluice.operations import OperationPlan
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.mark_moves import settle_merges_of_table
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staging_table import newest_token
from sluice.publication.write_folders import data_folder
from sluice.stored_keys import ERASED, STAGING_TARGET, TOKEN, TRASH_FOLDER_PREFIX
from sluice.tables.declared_tables import require_table
from sluice.tables.stored_files import StoredFolder

ErasurePlan = OperationPlan[ErasureSeen]

_UNTIL_ANOTHER_DATE = 1.1
"""Seconds before the cut, so that its files have another date than all that is to go: object stores date by seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What an erasure did. rows: by where they were. files: how many files the last search has read."""

    table: str
    rows: Mapping[str, int]
    deleted_files: int
    searched: int

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return {
            "table": self.table,
            "rows": dict(self.rows),
            "deleted_files": self.deleted_files,
            "searched": self.searched,
            "found": 0,
        }

    def __str__(self) -> str:
        rows = ", ".join(f"{count:,} {place}" for place, count in self.rows.items())
        return (
            f"{self.table}: rows erased: {rows}. {self.deleted_files} files are deleted. {self.searched} Parquet files "
            "are left below its folders, were read, and hold no such row."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableErasure:
    """The erasure of rows from one table.

    search: of its files, by what is meant. actor: who asks. every_row: whether all rows may go.
    searched_quarantines: those from which records are erased beside it. pause: waits for so many seconds.
    """

    observer: ErasureObserver
    name: str
    search: FileSearch
    actor: Actor
    every_row: bool = False
    searched_quarantines: Collection[str] = ()
    reached: Reached = unnoticed
    pause: Callable[[float], None] = sleep

    def plan(self) -> ErasurePlan:
        """What an erasure would do now. Nothing is changed.

        Raises
        ------
        LakehouseError, LedgerError: when something cannot be read.
        """
        return plan_erasure(self._look().seen)

    def erase(self, *, planned: str | None = None) -> Erased:
        """Erase, and search again.

        Parameters
        ----------
        planned: the digest of the plan that a person agreed to; unset: what is found now.

        Raises
        ------
        UnpublishableError: when it is refused. UsageError: when the plan is another one.
        UnhealthyError: when readers have to come past the cut first, or a file still holds such a row.
        LedgerError: when the table is under maintenance. LakehouseError: when something cannot be read or changed.
        """
        with maintenance_lock(self.observer.ledger, self.name):
            look = self._look()
            plan = plan_erasure(look.seen)
            plan.require_same(planned)
            plan.require_unrefused()
            if look.seen.is_due:
                self._carry_out(plan, look)
            return self._proved(plan, look)

    def _look(self) -> ErasureLook:
        return self.observer.look(
            self.name, self.search, every_row=self.every_row, searched_quarantines=self.searched_quarantines
        )

    def _carry_out(self, plan: ErasurePlan, look: ErasureLook) -> None:
        identity, ledger = uuid4().hex, self.observer.ledger
        record_event(ledger, self._event(plan, identity))
        self.reached(CrashPoint.BEGUN)
        catalog, committer = self.observer.catalog, PyIcebergCommitter(self.observer.catalog)
        settle_merges_of_table(catalog, require_table(catalog, self.name))  # expiry removes what shows such a batch
        erase_rows(
            committer,
            self.name,
            names=look.found.names,
            test=self.search.test,
            identity=identity,
            now=database_time(ledger),
            reached=self.reached,
        )
        self.reached(CrashPoint.PUBLISHED)
        self.pause(_UNTIL_ANOTHER_DATE)
        for staging in look.staging:
            self._settle(".".join(staging.name()), identity)
        if not HistoryLook(require_table(catalog, self.name), look.found.names, look.found.harmless).kept():
            commit_cut(committer, self.name, entries={ERASED: identity}, reached=self.reached)
        self.reached(CrashPoint.COMMITTED)
        table = require_table(catalog, self.name)
        kept = self._require_passed(table, look.found)
        expire_before_cut(catalog, table, kept)
        self.reached(CrashPoint.RECORDED)
        self._require_unneeded(look.found)
        self._delete_rows(look)
        self._delete_metadata(look)

    def _settle(self, name: str, identity: str) -> None:
        """Let a staging table forget all snapshots but an empty one, which keeps its fencing token."""
        catalog = self.observer.catalog
        staging = require_table(catalog, name)
        if is_settled(staging):
            return
        token = newest_token(staging)
        if not HistoryLook(staging).kept():
            entries = {ERASED: identity} | ({TOKEN: str(token)} if token >= 0 else {})
            commit_cut(PyIcebergCommitter(catalog), name, entries=entries, reached=self.reached)
            staging = require_table(catalog, name)
        newest = staging.current_snapshot()
        expire_before_cut(catalog, staging, () if newest is None else (newest.snapshot_id,))

    def _require_passed(self, table: Table, found: Found) -> tuple[int, ...]:
        """The snapshots that stay, once every reader stands at one of them."""
        kept = HistoryLook(table, found.names, found.harmless).kept()
        if not kept:
            raise LakehouseError(f"{self.name} was written while its history was cut.", next_step="Repeat the command.")
        if behind := [one for one in self.observer.readers_of(self.name, table) if is_behind(one.reader, kept)]:
            streams = " and ".join(f"`sluice stream start {one.reader.stream}`" for one in behind)
            raise UnhealthyError(
                f"The rows are out of the newest snapshot of {self.name}, and not erased yet: files of earlier "
                f"snapshots stay until {' and '.join(map(str, behind))} has read up to snapshot {kept[-1]}.",
                next_step=f"Let it read: {streams}. Then repeat the command, with the same condition.",
            )
        return kept

    def _require_unneeded(self, found: Found) -> None:
        """Look again, right before the first file is deleted."""
        now = require_table(self.observer.catalog, self.name)
        if not HistoryLook(now, found.names, found.harmless).kept():
            raise LakehouseError(
                f"Meanwhile {self.name} refers to a file with such rows again. No file was deleted.",
                next_step="Look who added it, and repeat the command.",
            )
        for one in other_tables(self.observer.catalog, found.names, target=self.name):
            if one.listed and one.table.properties.get(STAGING_TARGET) != self.name:
                raise LakehouseError(
                    f"Meanwhile {'.'.join(one.table.name())} refers to {len(one.listed)} files with such rows.",
                    next_step="Look who added them. No file was deleted; repeat the command after that.",
                )

    def _delete_rows(self, look: ErasureLook) -> None:
        """Delete every file with rows that are meant; those of the trash leave its lists before."""
        metadata = look.table.metadata
        folder = StoredFolder.at(look.table.io, data_folder(metadata))
        gone = {one.path.removeprefix(f"{folder.location}/") for one, _ in look.found.meant if one.is_in_trash}
        for removal in removals_in(folder, f"{TRASH_FOLDER_PREFIX}{metadata.table_uuid}"):
            forget_files(folder, removal, gone)
        for one, _ in look.found.meant:
            self._delete(one)

    def _delete_metadata(self, look: ErasureLook) -> None:
        table = require_table(self.observer.catalog, self.name)
        staging = look.staging_now(self.observer.catalog)
        for one in stale_metadata((table, *staging), self.search.look(table, staging).metadata):
            self._delete(one)

    def _delete(self, one: PlacedFile) -> None:
        if one.folder.size_of(one.file.place) is not None:
            one.folder.delete(one.file.place)
            self.reached(CrashPoint.CLEARED)

    def _proved(self, plan: ErasurePlan, look: ErasureLook) -> Erased:
        """Search every file again, as the object store lists them now."""
        table = require_table(self.observer.catalog, self.name)
        found = self.search.look(table, look.staging, afresh=True)
        left = [(one.path, f"holds {rows} such rows") for one, rows in found.meant]
        left += [(one.path, f"cannot be searched: {why}") for one, why in found.unread]
        if look.seen.is_due:
            stale = stale_metadata((table, *look.staging_now(self.observer.catalog)), found.metadata)
            left += [(one.path, "is metadata of an earlier state") for one in stale]
        if left:
            path, why = left[0]
            raise UnhealthyError(
                f"Not erased from {self.name}: {len(left)} files are left, such as {path}, which {why}.",
                next_step="Repeat the command with the same condition. When it stays so, look who writes them.",
            )
        return Erased(
            table=self.name,
            rows=plan.evidence["rows"],
            deleted_files=len(look.found.meant) if look.seen.is_due else 0,
            searched=found.searched,
        )

    def _event(self, plan: ErasurePlan, identity: str) -> Event:
        return Event(
            subject=EventSubject.TABLE,
            name=self.name,
            actor=self.actor,
            action=EventAction.ERASE_ROWS,
            reason=REQUESTED,
            explanation=" ".join(plan.sentences()),
            evidence={**plan.evidence, WRITE: identity},
        )
