"""`sluice table remove-orphans | restore-orphans`: plans and carries out the removal of what dead writers left behind.

Nothing is deleted at once: leftovers go to a trash in the table's data folder, from where they can be brought back, and
a later removal deletes what has been there for `KEPT_IN_TRASH`. What is judged is in `orphan_files`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.maintenance_declaration import OrphanRemovalDeclaration
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import LakehouseError
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import REQUESTED, Actor, ActorKind, Event, EventAction, EventSubject, record_event
from sluice.ledger.locks import maintenance_lock
from sluice.ledger.table_writers import (
    LONGEST_WRITE,
    is_number,
    known_refreshes,
    known_runs,
    known_writes,
    recorded_snapshots,
)
from sluice.maintenance.maintained_tables import find_declaration
from sluice.maintenance.needed_files import find_needed_files, whole_since
from sluice.maintenance.orphan_files import (
    CLOCK_MARGIN,
    FileFate,
    JudgedFile,
    Removal,
    decide_fates,
    delete_removal,
    move_files,
    removal_of,
    removals_in,
    restore_files,
    sentences_of,
)
from sluice.operations import OperationPlan, OperationVerb, Refusal, RefusalReason, Stake, steps_of
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.data_files import Writer, WriterKind, data_folder, writer_of
from sluice.publication.staged_batch import staged_outputs
from sluice.stored_keys import TRASH_FOLDER_PREFIX, WRITES_FOLDER_PREFIX
from sluice.tables.declared_tables import require_table
from sluice.tables.stored_files import StoredFile, StoredFolder

KEPT_IN_TRASH = timedelta(days=7)
"""How long a removed file can be brought back: a mistake is noticed after a weekend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOrphans:
    """What was seen of a table.

    folder: its data folder. judged: its files, each with its fate. expired: the removals whose time in the trash is
    over, and that hold no missing file. kept: all other removals. missing: the names of files in the trash to which a
    table refers, and which are not in their place.
    unknown_snapshots: those that the ledger saw on the table and the catalog does not list.
    """

    folder: StoredFolder
    trash: str
    judged: tuple[JudgedFile, ...]
    expired: tuple[Removal, ...]
    kept: tuple[Removal, ...]
    missing: frozenset[str]
    unknown_snapshots: tuple[int, ...]

    @property
    def left(self) -> tuple[StoredFile, ...]:
        """The leftovers."""
        return tuple(one.file for one in self.judged if one.fate is FileFate.LEFT)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanRemoval:
    """The removal of leftovers of declared tables.

    actor: who asks. clock: the time of the ledger.
    """

    catalog: Catalog
    ledger: Ledger
    declarations: Declarations
    actor: Actor
    reached: Reached = unnoticed
    clock: Callable[[Ledger], datetime] = database_time

    def plan(self, name: str) -> OperationPlan[FoundOrphans]:
        """What a removal would move and delete now, and what stays for which reason. Nothing is changed.

        Raises
        ------
        UsageError: when the table is not declared.
        LakehouseError: when a table of the catalog or the store cannot be read.
        """
        found = self._find(name)
        steps = (
            *sentences_of(found.judged),
            *((f"Move the {len(found.left)} files left behind to {found.trash}/.",) if found.left else ()),
            *(_sentence(one, "Delete for good") for one in found.expired),
            *(_sentence(one, "Keep in the trash") for one in found.kept),
        )
        return OperationPlan(
            verb=OperationVerb.REMOVE_ORPHANS,
            subject=name,
            seen=found,
            steps=steps_of(*(steps or ("There is nothing to remove.",))),
            refusals=tuple(_refusals(name, found)),
            at_stake=Stake.ROWS if found.left or found.expired else Stake.NOTHING,
            evidence={
                "files": len(found.left),
                "bytes": sum(file.size for file in found.left),
                "places": sha256("\n".join(file.place for file in found.left).encode()).hexdigest(),
                "deletes": [one.identity for one in found.expired],
            },
        )

    def remove(self, name: str, *, planned: str | None = None) -> OperationPlan[FoundOrphans]:
        """Move the leftovers of a table to its trash, and delete what has been there for long enough.

        Parameters
        ----------
        planned: the digest of the plan that a person agreed to; unset: what is found now.

        Raises
        ------
        UnpublishableError: when it is refused. UsageError: when the plan is another one, or the table is not declared.
        LedgerError: when the table is under maintenance. LakehouseError: as `plan` raises it, or when a file stays.
        """
        with maintenance_lock(self.ledger, name):
            return self.remove_locked(name, planned=planned)

    def remove_locked(self, name: str, *, planned: str | None = None) -> OperationPlan[FoundOrphans]:
        """The same as `remove`, by a caller that holds the lock of the table's maintenance."""
        plan = self.plan(name)
        plan.require_same(planned)
        plan.require_unrefused()
        found = plan.seen
        now = self.clock(self.ledger)
        removal = removal_of(found.left, identity=uuid4().hex, trash=found.trash, now=now)
        if self.actor.kind is ActorKind.PERSON or removal.files or found.expired:
            record_event(self.ledger, self._event(EventAction.REMOVE_ORPHANS, name, plan, removal.identity))
        if removal.files:
            move_files(found.folder, removal, reached=self.reached)
            self._require_unneeded(name, found.folder, removal)
        for old in found.expired:
            delete_removal(found.folder, old, reached=self.reached)
        return plan

    def plan_restore(self, name: str) -> OperationPlan[tuple[StoredFolder, tuple[Removal, ...]]]:
        """What is in the trash of a table, to be brought back. Nothing is changed."""
        find_declaration(self.declarations, name)
        target = require_table(self.catalog, name)
        folder = StoredFolder.at(target.io, data_folder(target.metadata))
        removals = tuple(removals_in(folder, _trash_of(target)))
        return OperationPlan(
            verb=OperationVerb.RESTORE_ORPHANS,
            subject=name,
            seen=(folder, removals),
            steps=steps_of(*[_sentence(one, "Bring back") for one in removals] or ["There is nothing in the trash."]),
            evidence={"removals": [one.identity for one in removals]},
        )

    def restore(self, name: str) -> int:
        """Bring everything in the trash of a table back to where it lay. No later removal takes these files.

        Their copies stay in the trash until its time is over.

        Returns
        -------
        How many files were brought back.

        Raises
        ------
        LakehouseError: when a file is gone from the trash; what was brought back before stays.
        """
        with maintenance_lock(self.ledger, name):
            plan = self.plan_restore(name)
            folder, removals = plan.seen
            record_event(self.ledger, self._event(EventAction.RESTORE_ORPHANS, name, plan))
            return restore_files(folder, removals, reached=self.reached)

    def _find(self, name: str) -> FoundOrphans:
        policy = find_declaration(self.declarations, name).maintenance.orphan_removal or OrphanRemovalDeclaration()
        target = require_table(self.catalog, name)
        folder, trash = StoredFolder.at(target.io, data_folder(target.metadata)), _trash_of(target)
        ours = f"{WRITES_FOLDER_PREFIX}{target.metadata.table_uuid}/"
        files = [
            (file, writer_of(file.place.removeprefix(ours)) if file.place.startswith(ours) else None)
            for file in folder.below()
            if not file.place.startswith(TRASH_FOLDER_PREFIX)
        ]
        removals = tuple(removals_in(folder, trash))
        names = {file.name for file, _ in files} | {_name(one.place) for some in removals for one in some.files}
        needed = find_needed_files(self.catalog, names, target=name)  # after the files were listed
        now, since = self.clock(self.ledger), whole_since(needed.target.metadata)
        judged = decide_fates(
            files,
            needed=needed.names,
            writers=self._writers({writer for _, writer in files if writer is not None}, files),
            whole_since=since if needed.target.metadata.table_uuid == target.metadata.table_uuid else None,
            now=now,
            grace=policy.older_than,
        )
        missing = _missing(removals, files=[file for file, _ in files], needed=needed.names)
        over = [one for one in removals if _is_over(one, now) and missing.isdisjoint(_name(f.place) for f in one.files)]
        return FoundOrphans(
            folder=folder,
            trash=trash,
            judged=judged,
            expired=tuple(over),
            kept=tuple(one for one in removals if one not in over),
            missing=missing,
            unknown_snapshots=self._unknown(name, needed.target, since) if since is not None else (),
        )

    def _writers(
        self, writers: set[Writer], files: list[tuple[StoredFile, Writer | None]]
    ) -> Mapping[Writer, datetime | None]:
        """Those that the ledger knows, and when they ended."""
        if not writers:
            return {}
        first = min(file.modified_at for file, writer in files if writer is not None)
        by_kind = {kind: {one.identity for one in writers if one.kind is kind} for kind in WriterKind}
        runs = known_runs(self.ledger, [int(one) for one in by_kind[WriterKind.RUN] if is_number(one)])
        refreshes = known_refreshes(self.ledger, by_kind[WriterKind.REFRESH])
        announced = by_kind[WriterKind.ATTEMPT] | by_kind[WriterKind.REWRITE]
        writes = known_writes(self.ledger, announced, since=first - LONGEST_WRITE - CLOCK_MARGIN)
        known = {
            WriterKind.RUN: {str(token): ended for token, ended in runs.items()},
            WriterKind.REFRESH: refreshes,
            WriterKind.ATTEMPT: writes,
            WriterKind.REWRITE: writes,
        }
        return {one: known[one.kind][one.identity] for one in writers if one.identity in known[one.kind]}

    def _unknown(self, name: str, target: Table, since: datetime) -> tuple[int, ...]:
        outputs = [
            (one.stream, one.output)
            for stream in self.declarations.streams.values()
            for one in staged_outputs(stream.declaration)
            if one.target == name
        ]
        backfilled = {stream for stream, output in outputs if output != QUARANTINE_OUTPUT}
        recorded = recorded_snapshots(
            self.ledger, name, outputs=outputs, streams=backfilled, since=since + CLOCK_MARGIN
        )
        return tuple(sorted(recorded - {snapshot.snapshot_id for snapshot in target.metadata.snapshots}))

    def _require_unneeded(self, name: str, folder: StoredFolder, removal: Removal) -> None:
        """Look again after the move: what a table began to refer to meanwhile is brought back."""
        needed = find_needed_files(self.catalog, {_name(file.place) for file in removal.files}, target=name).names
        if needed:
            restore_files(folder, (removal,), reached=self.reached)
            raise LakehouseError(
                f"Nothing of {name} was removed: meanwhile a table began to refer to {len(needed)} of the files, such "
                f"as {min(needed)}. All files are where they were.",
                next_step="Look who added them; a file that Sluice did not publish is no part of a table.",
            )

    def _event(self, action: EventAction, name: str, plan: OperationPlan[object], removal: str = "") -> Event:
        return Event(
            subject=EventSubject.TABLE,
            name=name,
            actor=self.actor,
            action=action,
            reason=REQUESTED,
            explanation=" ".join(plan.sentences()),
            evidence={**plan.evidence, **({"removal": removal} if removal else {})},
        )


def _refusals(name: str, found: FoundOrphans) -> Iterator[Refusal]:
    if found.missing:
        yield Refusal(
            reason=RefusalReason.OTHER_REMEDY,
            sentence=f"A table refers to {len(found.missing)} files in the trash, such as {min(found.missing)}: it "
            "took them when they were moved, or a removal was interrupted.",
            next_step=f"Bring them back: `sluice table restore-orphans {name}`.",
        )
    if found.unknown_snapshots:
        some = ", ".join(str(one) for one in found.unknown_snapshots[:3])
        yield Refusal(
            reason=RefusalReason.CATALOG_BEHIND,
            sentence=f"The ledger knows {len(found.unknown_snapshots)} snapshots of the table that the catalog does "
            f"not list, such as {some}: the catalog was restored, or somebody removed them, and files that look left "
            "behind may belong to them.",
            next_step="Bring the newer metadata of the table back, or wait until its history begins after them.",
        )


def _missing(removals: Sequence[Removal], *, files: Sequence[StoredFile], needed: Collection[str]) -> frozenset[str]:
    present = {(file.place, file.size) for file in files}
    removed = (file for one in removals for file in one.files if (file.place, file.size) not in present)
    return frozenset(_name(file.place) for file in removed) & frozenset(needed)


def _sentence(removal: Removal, verb: str) -> str:
    when = f"{removal.removed_at:%Y-%m-%d %H:%M} UTC"
    return f"{verb}: {len(removal.files)} files, {removal.size / 1024**2:.1f} MiB, removed {when}."


def _is_over(removal: Removal, now: datetime) -> bool:
    return now - removal.removed_at >= KEPT_IN_TRASH


def _trash_of(target: Table) -> str:
    return f"{TRASH_FOLDER_PREFIX}{target.metadata.table_uuid}"


def _name(place: str) -> str:
    return place.rpartition("/")[2]
