"""Moves the orphan files of a table to its trash, restores them from there, and deletes them after a second grace.

    find ─► some at a time: copy to the trash ─► look at the newest metadata ─► delete what is still an orphan
                                                         ─► look once more ─► copy back what a commit refers to since

A commit that refers to an old file, between the listing and the end of the move, gets it back. A crash between any two
steps leaves the file, its copy or both; the next run continues from there. The trash returns what a table refers to
again, as after the catalog was restored from a backup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TypeVar

from pyiceberg.catalog import Catalog

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.maintenance_declaration import OrphanRemovalDeclaration
from sluice.errors import LakehouseError, UsageError
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import checkpoint_folders
from sluice.ledger.unfinished_writes import longest_batch, unfinished_writes
from sluice.maintenance.orphan_search import (
    MOST_FILES,
    FoundOrphans,
    OrphanSearch,
    TrashedFile,
    grace_of,
    total_bytes,
    trash_of,
    trash_place,
    trashed_files,
)
from sluice.maintenance.referenced_files import References
from sluice.maintenance.stored_files import AnyFiles, Place, StoredFile, StoredFiles
from sluice.operations import OperationPlan, OperationVerb, Refusal, RefusalReason, Stake, steps_of
from sluice.settings import Settings
from sluice.tables.declared_tables import require_table

_TOGETHER = 200
"""How many files are moved between two looks at the metadata: a second of work, after which a look costs as much."""

_AT_ONCE = 8
"""How many requests to the store are under way: enough to hide its latency."""

_NAMED = 10

_Item = TypeVar("_Item")
_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedOrphans:
    """What a run did. moved, deleted, returned: how many files. spared: orphans that a commit referred to meanwhile."""

    moved: int = 0
    moved_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    returned: int = 0
    spared: int = 0

    def sentence(self) -> str:
        """The result for a person."""
        return (
            f"{self.moved} files ({self.moved_bytes} bytes) moved to the trash, {self.deleted} ({self.deleted_bytes} "
            f"bytes) deleted from it, {self.returned} returned, {self.spared} spared"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanRemoval:
    """Removes the orphan files of the tables of a deployment, one table at a time."""

    catalog: Catalog
    ledger: Ledger
    declarations: Declarations
    settings: Settings
    files: StoredFiles

    def plan(self, name: str, policy: OrphanRemovalDeclaration, *, now: datetime) -> OperationPlan[FoundOrphans]:
        """Find the orphans of a table and say what a run would do. Nothing is changed.

        Raises
        ------
        LakehouseError: when the table does not exist, or what is referenced is unknown.
        LedgerError: when the ledger cannot be asked who is at work.
        """
        cutoff, why = self._cutoff(name, policy, now)
        search = OrphanSearch(catalog=self.catalog, files=self.files)
        table = require_table(self.catalog, name)
        found = search.find(table, cutoff=cutoff, delete_before=now - policy.delete_after)
        found = replace(found, notes=(why, *found.notes))
        return _removal_plan(name, found, self._refusals(found))

    def carry_out(self, plan: OperationPlan[FoundOrphans], *, now: datetime) -> RemovedOrphans:
        """Move and delete what was planned, as far as it is still an orphan.

        Raises
        ------
        UnpublishableError: when the plan is refused.
        LakehouseError: when the catalog or the store fails. Running it again is safe.
        """
        plan.require_unrefused()
        mover = _Mover(search=OrphanSearch(catalog=self.catalog, files=self.files), found=plan.seen, now=now)
        return mover.carry_out()

    def _cutoff(self, name: str, policy: OrphanRemovalDeclaration, now: datetime) -> tuple[datetime, str]:
        """How old an orphan is at least, and why: the grace, and whoever is at work since longer."""
        writers = writers_of(self.declarations, name)
        longest = longest_batch(self.ledger, writers)
        grace = grace_of(older_than=policy.older_than, longest_batch=longest)
        cutoff = now - grace
        why = f"orphans are older than {cutoff:%Y-%m-%d %H:%M:%S} UTC, {grace} ago"
        known = frozenset(self.declarations.streams)
        for subject, write in unfinished_writes(self.ledger):
            may_write = subject in writers or subject == name or subject not in known
            if may_write and write.since < cutoff:
                cutoff = write.since
                why = f"orphans are older than {cutoff:%Y-%m-%d %H:%M:%S} UTC, since when {write.writer} is at work"
        return cutoff, why

    def _refusals(self, found: FoundOrphans) -> Iterator[Refusal]:
        table, ground = found.ground.table, found.ground
        if table.properties.get("gc.enabled", "true").lower() == "false":
            yield Refusal(
                reason=RefusalReason.FILES_OF_OTHERS,
                sentence=f"{ground.name} has gc.enabled=false: its files may belong to another table.",
                next_step="Unset the property when it has files of its own alone.",
            )
        others = list(found.neighbours.overlapping) if found.neighbours is not None else []
        others += [(f"the checkpoint {one}", Place.at(one)) for one in self._checkpoints()]
        for name, folder in others:
            for own in ground.searched:
                if own.overlaps(folder):
                    yield Refusal(
                        reason=RefusalReason.SHARED_FOLDER,
                        sentence=f"{own}, a folder of {ground.name}, and {folder} of {name} hold one another.",
                        next_step="Give each a folder of its own; until then no file is removed there.",
                    )

    def _checkpoints(self) -> Iterable[str]:
        return sorted({self.settings.checkpoints, *checkpoint_folders(self.ledger)})

    def plan_restore(self, name: str, *, moved_at: str | None = None) -> OperationPlan[tuple[TrashedFile, ...]]:
        """What the trash of a table holds, as far as one run restores it. Nothing is changed.

        Parameters
        ----------
        moved_at: only what one run has moved, by the name of its folder in the trash; unset: everything.

        Raises
        ------
        UsageError: when no run has moved anything then.
        LakehouseError: when the table does not exist, or the store cannot be asked.
        """
        table = require_table(self.catalog, name)
        every = trashed_files(self.files, table)
        found = tuple(islice((one for one in every if moved_at in (None, one.run)), MOST_FILES))
        if moved_at is not None and not found:
            raise UsageError(
                f"Nothing in {trash_of(table)} was moved there at {moved_at}.",
                next_step=f"See what it holds: `sluice table restore-orphans {name} --dry-run`.",
            )
        runs = Counter(one.run for one in found)
        sizes = f"{len(found)} files ({total_bytes(found)} bytes)"
        steps = [f"Move {sizes} from {trash_of(table)} to where they were."] if found else ["Do nothing: it is empty."]
        steps += [f"{count} files that were moved at {run}" for run, count in sorted(runs.items())]
        return OperationPlan(
            verb=OperationVerb.RESTORE_ORPHANS,
            subject=name,
            seen=found,
            steps=steps_of(*steps),
            at_stake=Stake.FILES if found else Stake.NOTHING,
            evidence={"files": len(found), "bytes": total_bytes(found), "moved_at": dict(sorted(runs.items()))},
        )

    def restore(self, plan: OperationPlan[tuple[TrashedFile, ...]]) -> int:
        """Move files back from the trash; how many. A file that is there already stays as it is, and loses its copy.

        A restored file counts as written now, so it is no orphan before another grace has passed.

        Raises
        ------
        LakehouseError: when the store fails. Running it again is safe.
        """
        return sum(_at_once(lambda one: _give_back(self.files, one), plan.seen))


def open_orphan_removal(
    settings: Settings, ledger: Ledger, declarations: Declarations, catalog: Catalog
) -> OrphanRemoval:
    """The removal of orphan files in a deployment."""
    return OrphanRemoval(
        catalog=catalog,
        ledger=ledger,
        declarations=declarations,
        settings=settings,
        files=AnyFiles(settings.object_store),
    )


def writers_of(declarations: Declarations, table: str) -> frozenset[str]:
    """The declared streams that write a table, or whose quarantine it is."""
    streams = (loaded.declaration for loaded in declarations.streams.values())
    return frozenset(
        stream.stream
        for stream in streams
        if table in stream.tables_written or (stream.quarantine and table == stream.quarantine_table)
    )


def _removal_plan(name: str, found: FoundOrphans, refusals: Iterable[Refusal]) -> OperationPlan[FoundOrphans]:
    orphans, trashed = found.orphans, found.trashed
    steps = []
    if orphans:
        steps.append(f"Move {len(orphans)} files ({total_bytes(orphans)} bytes) to {trash_of(found.ground.table)}.")
        steps += [f"{one.place}, {one.size_bytes} bytes" for one in orphans[:_NAMED]]
    if found.returning:
        steps.append(f"Move {len(found.returning)} files back from the trash: the table refers to them again.")
    if trashed:
        steps.append(f"Delete {len(trashed)} files ({total_bytes(trashed)} bytes) from the trash.")
    if not steps:
        steps.append("Do nothing: no file is an orphan, and none in the trash is old enough.")
    more = ("There is more than fits into one run; the next run does the rest.",) if found.is_more else ()
    young = (f"{found.young} files that nothing refers to are younger.",) if found.young else ()
    return OperationPlan(
        verb=OperationVerb.REMOVE_ORPHANS,
        subject=name,
        seen=found,
        steps=steps_of(*steps, *more, *young, *found.notes),
        refusals=tuple(refusals) if orphans or trashed else (),
        at_stake=Stake.FILES if orphans or trashed else Stake.NOTHING,
        evidence={
            "files": len(orphans),
            "bytes": total_bytes(orphans),
            "paths": [str(one.place) for one in orphans],
            "trashed_files": len(trashed),
            "trashed_bytes": total_bytes(trashed),
            "returning_files": len(found.returning),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mover:
    """Carries out one plan."""

    search: OrphanSearch
    found: FoundOrphans
    now: datetime

    def carry_out(self) -> RemovedOrphans:
        returned = sum(_at_once(lambda one: _give_back(self._files, one), self.found.returning))
        references = self.found.references
        done = RemovedOrphans(returned=returned)
        for some in _batches(self.found.orphans):
            done = self._move(some, references, done)
        for trashed in _batches(self.found.trashed):
            done = self._delete(trashed, references, done)
        return done

    @property
    def _files(self) -> StoredFiles:
        return self.search.files

    def _move(self, files: Sequence[StoredFile], references: References, done: RemovedOrphans) -> RemovedOrphans:
        copies = [one for one in _at_once(self._copy, files) if one is not None]
        self._look(references)
        spared = [one for one in copies if one.origin.name in references]
        _at_once(lambda one: self._files.delete(one.place), spared)
        gone = [one for one in copies if one.origin.name not in references]
        _at_once(lambda one: self._files.delete(one.origin), gone)
        self._look(references)
        late = [one for one in gone if one.origin.name in references]
        _at_once(lambda one: _give_back(self._files, one), late)
        moved = [one for one in gone if one.origin.name not in references]
        return replace(
            done,
            moved=done.moved + len(moved),
            moved_bytes=done.moved_bytes + total_bytes(moved),
            spared=done.spared + len(spared) + len(late),
        )

    def _copy(self, file: StoredFile) -> TrashedFile | None:
        place = trash_place(trash_of(self.found.ground.table), file.place, moved_at=self.now)
        if not self._files.copy(file.place, place):  # somebody else has removed it
            return None
        return TrashedFile(place=place, origin=file.place, size_bytes=file.size_bytes, moved_at=self.now)

    def _delete(self, trashed: Sequence[TrashedFile], references: References, done: RemovedOrphans) -> RemovedOrphans:
        self._look(references)
        returning = [one for one in trashed if one.origin.name in references]
        _at_once(lambda one: _give_back(self._files, one), returning)
        gone = [one for one in trashed if one.origin.name not in references]
        _at_once(lambda one: self._files.delete(one.place), gone)
        return replace(
            done,
            deleted=done.deleted + len(gone),
            deleted_bytes=done.deleted_bytes + total_bytes(gone),
            returned=done.returned + len(returning),
        )

    def _look(self, references: References) -> None:
        if self.search.look_again(self.found.ground, references) is None:
            raise LakehouseError(
                f"{self.found.ground.name} is another table now than the one whose orphans were found.",
                next_step="Look at the plan again; what was moved can be restored.",
            )


def _give_back(files: StoredFiles, one: TrashedFile) -> bool:
    """Move a file back, unless it is there; then only the copy goes. Whether it was moved."""
    moved = not files.exists(one.origin) and files.copy(one.place, one.origin)
    files.delete(one.place)
    return moved


def _batches(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for first in range(0, len(items), _TOGETHER):
        yield items[first : first + _TOGETHER]


def _at_once(work: Callable[[_Item], _Done], items: Sequence[_Item]) -> list[_Done]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(work, items))
