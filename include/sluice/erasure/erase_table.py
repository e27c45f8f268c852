"""`sluice table erase`: takes rows of a person out of everything that is kept for a table, and proves it.

    plan ─► event ─► rows out of the newest snapshot ─► cut ─► readers have passed ─► expire ─► delete ─► search again

Each step is found to be done by what lies there, so that the same command, repeated after a crash, does the rest. While
a reader has not passed the cut, the command ends after it, as failed, with what is left to do; nothing of what the
reader needs is touched until then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Any
from uuid import uuid4

from pyiceberg.table import Table

from sluice.erasure.cut_history import HistoryLook, commit_cut, erase_rows, expire_before_cut, is_cut, live_files
from sluice.erasure.erasure_plan import ErasureSeen, backfill_refusal, is_behind, plan_erasure
from sluice.erasure.judged_metadata import judge_metadata, listed_in, unneeded_data, unsearched_files
from sluice.erasure.observe_erasure import ErasureLook, ErasureObserver
from sluice.erasure.searched_files import (
    FileSearch,
    Found,
    PlacedFile,
    forget_trashed,
    listed_keys,
    names_of,
    spoken,
    with_origins,
)
from sluice.erasure.stale_metadata import needed_elsewhere, stale_metadata
from sluice.errors import LakehouseError, UnhealthyError
from sluice.ledger.connection import database_time
from sluice.ledger.events import REQUESTED, WRITE, Actor, Event, EventAction, EventSubject, record_event
from sluice.ledger.locks import maintenance_lock
from sluice.maintenance.file_rewrite import CommitConflictError
from sluice.maintenance.needed_files import other_tables
from sluice.operations import OperationPlan
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.mark_moves import settle_merges_of_table
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staging_table import newest_token
from sluice.stored_keys import ERASED, TOKEN
from sluice.tables.declared_tables import require_table

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
            f"{self.table}: rows erased: {rows}. {self.deleted_files} files with such rows are deleted. "
            f"{self.searched} Parquet files are left below its folders, were read, and hold no such row."
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
            keys=look.found.keys,
            test=self.search.test,
            identity=identity,
            now=database_time(ledger),
            reached=self.reached,
        )
        self.reached(CrashPoint.PUBLISHED)
        self.pause(_UNTIL_ANOTHER_DATE)
        listed = set(look.listed)
        for name in look.seen.to_cut:
            listed |= self._settle(name, identity, look)
        if not (look.seen.kept and self._kept(look)):
            commit_cut(committer, self.name, entries=lambda _: {ERASED: identity}, reached=self.reached)
        self.reached(CrashPoint.COMMITTED)
        own = listed_keys((require_table(catalog, self.name),))  # it reads all manifests, which takes long
        table, kept = self._require_passed(look)
        if held := self.observer.held_since(look, table, kept):
            raise CommitConflictError(
                f"Meanwhile {', '.join(held)} may need a snapshot of {self.name} that would go. None was expired.",
                next_step="Repeat the command: its plan says what can be done.",
            )
        expire_before_cut(catalog, table, kept)
        self.reached(CrashPoint.RECORDED)
        self._require_unneeded(look)
        self._delete_rows(look)
        for one in unneeded_data(catalog, self.name, own):
            self._delete(one)
        self._delete_metadata(look, listed | own)

    def _settle(self, name: str, identity: str, look: ErasureLook) -> frozenset[str]:
        """Let a staging table forget all snapshots but an empty one, which keeps its fencing token. Whatever a stream
        has staged since the look is left alone. Returns the keys of what it has listed."""
        catalog = self.observer.catalog
        seen = next(one for one in look.staging if ".".join(one.name()) == name)
        self.observer.require_writers_at_rest(self.name)

        def entries(now: Table) -> dict[str, str]:
            if now.metadata.current_snapshot_id != seen.metadata.current_snapshot_id or live_files(now):
                raise self._written(name)
            token = newest_token(now)
            return {ERASED: identity} | ({TOKEN: str(token)} if token >= 0 else {})

        commit_cut(PyIcebergCommitter(catalog), name, entries=entries, reached=self.reached)
        staging = require_table(catalog, name)
        newest = staging.current_snapshot()
        if newest is None or not is_cut(newest) or live_files(staging):
            raise self._written(name)
        listed = listed_keys((staging,))
        expire_before_cut(catalog, staging, (newest.snapshot_id,))
        return listed

    def _written(self, name: str) -> CommitConflictError:
        return CommitConflictError(f"{name} was written while its history was cut.", next_step="Repeat the command.")

    def _kept(self, look: ErasureLook) -> tuple[int, ...]:
        """The snapshots that may stay now: files that have come since the look are searched, too."""
        table = require_table(self.observer.catalog, self.name)
        found = self.search.look(table, look.staging)
        return HistoryLook(table, found.harmless - look.found.keys).kept()

    def _require_passed(self, look: ErasureLook) -> tuple[Table, tuple[int, ...]]:
        """The table and the snapshots of it that stay, once every reader stands at one of them. It is loaded last:
        the search takes long, and tags and branches that came meanwhile are seen."""
        catalog = self.observer.catalog
        settle_merges_of_table(catalog, require_table(catalog, self.name))  # a run may have merged since the first time
        table = require_table(catalog, self.name)
        found = self.search.look(table, look.staging)
        kept = HistoryLook(table, found.harmless - look.found.keys).kept()
        if not kept:
            raise self._written(self.name)
        for refusal in self.observer.refusals_of_writers(self.name, table):
            raise UnhealthyError(f"Meanwhile: {refusal.sentence}", next_step=refusal.next_step)
        for stream in self.observer.backfills_of(self.name):
            refusal = backfill_refusal(stream)
            raise UnhealthyError(refusal.sentence, next_step=refusal.next_step)
        if behind := [one for one in self.observer.readers_of(self.name, table) if is_behind(one, kept)]:
            streams = " and ".join(f"`sluice stream start {one.reader.stream}`" for one in behind)
            raise UnhealthyError(
                f"The rows are out of the newest snapshot of {self.name}, and not erased yet: files of earlier "
                f"snapshots stay until {' and '.join(map(str, behind))} has read up to snapshot {kept[-1]}.",
                next_step=f"Let it read: {streams}; of an incremental one, trigger its DAG in Airflow. Then repeat the "
                "command, with the same condition.",
            )
        now = require_table(catalog, self.name)
        if now.metadata.current_snapshot_id != table.metadata.current_snapshot_id:
            raise self._written(self.name)
        return now, kept

    def _require_unneeded(self, look: ErasureLook) -> None:
        """Look again, right before the first file is deleted."""
        kept, keys = self._kept(look), with_origins(look.table, look.found)
        for one in other_tables(self.observer.catalog, names_of(keys), target=self.name):
            if listed := one.listed and listed_in(one.table, keys):
                raise LakehouseError(
                    f"Meanwhile {'.'.join(one.table.name())} refers to {len(listed)} files with such rows.",
                    next_step="Look who added them. No file was deleted; repeat the command after that.",
                )
        table = require_table(self.observer.catalog, self.name)  # last: a file may come to it from another table
        if not kept or listed_in(table, keys):  # branches list files, too
            raise LakehouseError(
                f"Meanwhile {self.name} refers to a file with such rows again. No file was deleted.",
                next_step="Look who added it, and repeat the command.",
            )

    def _delete_rows(self, look: ErasureLook) -> None:
        """Delete every file with rows that are meant; those of the trash leave its lists before. Metadata goes after
        that: it shows the next erasure which files were listed, and that there is something to do."""
        forget_trashed(look.table, look.found)
        for one, _ in look.found.meant:
            self._delete(one)

    def _delete_metadata(self, look: ErasureLook, listed: Collection[str]) -> None:
        self.observer.require_writers_at_rest(self.name)
        table = require_table(self.observer.catalog, self.name)
        staging = look.staging_now(self.observer.catalog)
        found = self.search.look(table, staging)
        before, needed = self.observer.settled_before(), needed_elsewhere(self.observer.catalog, self.name)
        for one in stale_metadata((table, *staging), found.metadata, needed=needed, listed=listed, before=before):
            self._delete(one)
        known = {one.key for dropped in look.dropped if not dropped.is_foreign for one in dropped.files}
        for dropped in self.observer.dropped(table, found):
            for one in () if dropped.is_foreign else dropped.files:
                if one.key in known - needed:
                    self._delete(one)

    def _delete(self, one: PlacedFile) -> None:
        try:
            if one.folder.size_of(one.file.place) is not None:
                one.folder.delete(one.file.place)
                self.reached(CrashPoint.CLEARED)
        except LakehouseError:  # its message has the path, in which a value may stand
            raise LakehouseError(f"Cannot delete {one.spoken}.", next_step="Repeat the command.") from None

    def _proved(self, plan: ErasurePlan, look: ErasureLook) -> Erased:
        """Search every file again, as the object store lists them now."""
        table = require_table(self.observer.catalog, self.name)
        staging = look.staging_now(self.observer.catalog) if look.seen.is_due else look.staging
        found = self.search.look(table, staging, afresh=True)
        left = [(one.spoken, f"holds {rows} such rows") for one, rows in found.meant]
        left += [(one.spoken, f"cannot be searched: {why}") for one, why in found.unread]
        left += [(spoken(path), "lies where nothing was searched") for path in unsearched_files(table, found)]
        if look.seen.is_due:
            left += self._metadata_left(table, staging, found)
        if left:
            path, why = left[0]
            raise UnhealthyError(
                f"Not erased from {self.name}: {len(left)} files are left, such as {path}, which {why}.",
                next_step="Repeat the command with the same condition. When it stays so, look who writes them: what a "
                "commit under way may need does not go before it is a day old.",
            )
        return Erased(
            table=self.name,
            rows=plan.evidence["rows"],
            deleted_files=len(look.found.meant) if look.seen.is_due else 0,
            searched=found.searched,
        )

    def _metadata_left(self, table: Table, staging: Sequence[Table], found: Found) -> Iterator[tuple[str, str]]:
        listed, before = listed_keys((table, *staging)), self.observer.settled_before()
        needed = needed_elsewhere(self.observer.catalog, self.name)
        for one in stale_metadata((table, *staging), found.metadata, needed=needed, listed=listed, before=before):
            yield one.spoken, "is metadata of an earlier state"
        judged = judge_metadata(table, staging, found)
        if judged.doubtful:
            yield f"{judged.doubtful} manifests of {self.name}", "may name values of such rows"
        for path in judged.outside:
            yield spoken(path), "lies outside of the folders"
        for dropped in self.observer.dropped(table, found):
            if dropped.is_doubtful:
                yield dropped.place, "has metadata of a staging table that was dropped"

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
