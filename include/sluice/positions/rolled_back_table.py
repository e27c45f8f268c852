"""A table whose main was rolled back behind the mark of a stream: where main would have to stand, and what that hides.

Nothing is changed here. Whether a mark may stand on some snapshot is asked of the very check that publication makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot

from sluice.publication.marks import RolledBackMark, batch_of, entries_of, history_of_main, rolled_back_marks
from sluice.publication.staged_batch import read_summary
from sluice.stored_keys import PUBLICATION_KEY
from sluice.tables.table_observation import RemovedRows, removed_rows

_REMOVED = ("deleted-records", "added-position-deletes", "added-equality-deletes")
"""The entries of a summary that count rows which a commit took out of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenCommit:
    """A commit that an undo takes out of main, or that a rollback took out of it.

    added, removed: its rows; 0 of a rewrite, which changes none. A row that is marked as deleted counts as removed.
    by: the batch that it published, or that another one wrote it.
    """

    snapshot_id: int
    operation: str
    added: int
    removed: int
    by: str

    @property
    def rows(self) -> int:
        """How many rows it changed: added ones are gone with it, removed ones come back."""
        return self.added + self.removed

    def __str__(self) -> str:
        rows = f"{self.added:,} rows" if not self.removed else f"{self.added:,} rows added, {self.removed:,} removed"
        return f"snapshot {self.snapshot_id} ({self.operation}, {rows}, {self.by})"


def find_goal(table: Table) -> Snapshot | None:
    """The newest snapshot that main was at, or that set a mark, and that holds every mark of the table; none when there
    is no such one: it was expired, or a stream has published into the rolled back table since."""
    listed = {one.snapshot_id: one for one in table.snapshots()}
    known = {entry.snapshot_id for entry in table.history()}
    known |= {one.mark.snapshot_id for one in rolled_back_marks(table)}
    known -= {one.snapshot_id for one in history_of_main(table)}
    candidates = sorted(
        (listed[one] for one in known if one in listed), key=lambda one: one.sequence_number or 0, reverse=True
    )
    return next((one for one in candidates if not rolled_back_marks(with_main_at(table, one))), None)


def hidden_commits(table: Table, goal: Snapshot) -> tuple[HiddenCommit, ...]:
    """What main holds now, and would not hold at another snapshot, oldest first."""
    kept = {one.snapshot_id for one in history_of_main(with_main_at(table, goal))}
    return tuple(_hidden(one) for one in reversed([*_until(table, kept)]))


def missing_commits(table: Table) -> tuple[HiddenCommit, ...] | None:
    """What others had committed where the marks of a table stand, and that main does not hold any more, oldest first;
    none when not all snapshots are listed that lead to the marks. Removals of old rows are not among them: what comes
    back goes again with the next maintenance."""
    marks = [_taken_out(table, one.mark.snapshot_id) for one in rolled_back_marks(table)]
    forks = {one.fork for one in marks}
    if _UNKNOWN in forks:
        return None
    others = (_taken_out(table, entry.snapshot_id) for entry in table.history())
    found = {one.snapshot_id: one for path in (*marks, *others) if path.fork in forks for one in path.snapshots}
    in_order = sorted(found.values(), key=lambda one: one.sequence_number or 0)
    entries = ((one, entries_of(one)) for one in in_order)
    commits = (_hidden(one) for one, said in entries if read_summary(said) is None and removed_rows(said) is None)
    return tuple(one for one in commits if one.rows)


def rows_taken_out(table: Table, found: RolledBackMark) -> int | None:
    """The rows of an output in the snapshots between its mark and main; none when not all of them are listed. The
    batches of which a person accepted that they are gone are not among them."""
    path = _taken_out(table, found.mark.snapshot_id)
    if path.fork == _UNKNOWN:
        return None
    batches = (batch_of(one, found.output) for one in path.snapshots)
    return sum(one.rows or 0 for one in batches if one is not None)


_UNKNOWN = -1
"""In place of the snapshot of main from which a path leads: one of the path is not listed any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TakenOut:
    """The snapshots between one and main. fork: the newest one in main before them; unset where none is."""

    fork: int | None
    snapshots: tuple[Snapshot, ...]


def _taken_out(table: Table, snapshot_id: int) -> _TakenOut:
    kept = {one.snapshot_id for one in history_of_main(table)}
    place: int | None = snapshot_id
    path: list[Snapshot] = []
    while place is not None and place not in kept:
        snapshot = table.snapshot_by_id(place)
        if snapshot is None:
            return _TakenOut(fork=_UNKNOWN, snapshots=())
        path.append(snapshot)
        place = snapshot.parent_snapshot_id
    return _TakenOut(fork=place, snapshots=tuple(path))


def _until(table: Table, kept: set[int]) -> Iterator[Snapshot]:
    for one in history_of_main(table):
        if one.snapshot_id in kept:
            return
        yield one


def _hidden(snapshot: Snapshot) -> HiddenCommit:
    entries = entries_of(snapshot)
    operation = snapshot.summary.operation if snapshot.summary is not None else Operation.APPEND
    return HiddenCommit(
        snapshot_id=snapshot.snapshot_id,
        operation=operation.value,
        added=0 if operation == Operation.REPLACE else int(entries.get("added-records", 0)),
        removed=0 if operation == Operation.REPLACE else sum(int(entries.get(one, 0)) for one in _REMOVED),
        by=entries.get(PUBLICATION_KEY) or ("of another writer" if removed_rows(entries) is None else "of old rows"),
    )


def removal_shown_at(table: Table, goal: Snapshot) -> RemovedRows | None:
    """The newest removal of old rows of which a table has to say that its rows are gone, once main is at a snapshot;
    what it says now where no removal is hidden or shown again by that, or where that is not known: the history that
    would show an earlier one has expired."""
    now = {one.snapshot_id: one for one in history_of_main(table)}
    then = {one.snapshot_id: one for one in history_of_main(with_main_at(table, goal))}
    moved = [one for number, one in {**now, **then}.items() if (number in now) != (number in then)]
    held, shown = removed_rows(table.properties), [removed_rows(entries_of(one)) for one in then.values()]
    if all(removed_rows(entries_of(one)) is None for one in moved):
        return held
    newest = max((one for one in shown if one is not None), key=lambda one: one.before, default=None)
    is_whole = any(one.parent_snapshot_id is None for one in then.values())
    return newest if newest is not None or is_whole else held


def with_main_at(table: Table, snapshot: Snapshot) -> Table:
    """The same table as if main stood at another snapshot."""
    main = table.metadata.refs[MAIN_BRANCH].model_copy(update={"snapshot_id": snapshot.snapshot_id})
    changed = {"current_snapshot_id": snapshot.snapshot_id, "refs": {**table.metadata.refs, MAIN_BRANCH: main}}
    return Table(
        identifier=table.name(),
        metadata=table.metadata.model_copy(update=changed),
        metadata_location=table.metadata_location,
        io=table.io,
        catalog=table.catalog,
    )
