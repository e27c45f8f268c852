"""Moves files of a table into a trash beside them, brings them back, and deletes them for good.

    <data folder>/_sluice_trash_<uuid of the table>/<removal>/list.parquet, 000000-<name>, …

The list is Parquet, because a store that knows Iceberg's layout refuses other files there. It is written before the
first file is moved, and deleted after the last copy. A file is deleted only where a whole copy exists, and what is
there shows how far a killed process came: repeating a step continues it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from sluice.errors import LakehouseError
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.tables.stored_files import StoredFile, StoredFolder

_LIST = "list.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedFile:
    """A file that was moved. place: where it lay, below the data folder. copy: its name in the trash."""

    place: str
    copy: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Files that were moved together. identity: drawn by chance. folder: of the trash, below the data folder."""

    identity: str
    folder: str
    removed_at: datetime
    files: tuple[RemovedFile, ...]

    @property
    def size(self) -> int:
        """How many bytes the files have together."""
        return sum(file.size for file in self.files)

    def copy_of(self, file: RemovedFile) -> str:
        """Where the copy of a file lies, below the data folder."""
        return f"{self.folder}/{file.copy}"


_REMOVAL = TypeAdapter(Removal)


def _list_of(removal: Removal) -> bytes:
    written = pa.BufferOutputStream()
    pq.write_table(pa.table({"removal": [_REMOVAL.dump_json(removal).decode()]}), written)
    return bytes(written.getvalue())


def _removal_in(content: bytes) -> Removal:
    return _REMOVAL.validate_json(pq.read_table(pa.BufferReader(content)).column("removal")[0].as_py())


def removal_of(files: Sequence[StoredFile], *, identity: str, trash: str, now: datetime) -> Removal:
    """The removal of some files, before anything is moved. trash: the folder of the table's trash."""
    named = (
        RemovedFile(place=file.place, copy=f"{number:06d}-{file.name}", size=file.size)
        for number, file in enumerate(files)
    )
    return Removal(identity=identity, folder=f"{trash}/{identity}", removed_at=now, files=tuple(named))


def removals_in(folder: StoredFolder, trash: str) -> Iterator[Removal]:
    """The removals in the trash of a table, oldest first.

    A list that was not written to its end belongs to a removal that moved nothing.
    """
    found = []
    for file in folder.below(trash):
        if file.name == _LIST:
            try:
                found.append(_removal_in(folder.read(file.place)))
            except ValueError:
                continue
    yield from sorted(found, key=lambda one: one.removed_at)


def move_files(folder: StoredFolder, removal: Removal, *, reached: Reached = unnoticed) -> None:
    """Move files into the trash.

    Raises
    ------
    LakehouseError: when a file cannot be copied or deleted. Those that were moved before stay in the trash.
    """
    folder.write(f"{removal.folder}/{_LIST}", _list_of(removal))
    reached(CrashPoint.BEGUN)
    for file in removal.files:
        folder.copy(file.place, removal.copy_of(file))
        reached(CrashPoint.COPIED)
        folder.delete(file.place)
        reached(CrashPoint.CLEARED)


def restore_files(folder: StoredFolder, removals: Sequence[Removal], *, reached: Reached = unnoticed) -> int:
    """Bring all files of some removals back to where they lay.

    The copies and the lists stay until their time in the trash is over: a removal that is still at work, because it has
    lost its lock, deletes a file after another process saw it in its place. A removal that was killed lists files that
    a later one has moved, so that a file may be in the trash of any of them.

    Returns
    -------
    How many files were brought back; the others are in their place.

    Raises
    ------
    LakehouseError: when a file is neither in its place nor in the trash, or cannot be copied. The removals stay, and
        the other files are back.
    """
    files = {file.place: file.size for one in removals for file in one.files}
    missing = {place for place, size in files.items() if folder.size_of(place) != size}
    copies = {
        file.place: one.copy_of(file)
        for one in removals
        for file in one.files
        if file.place in missing and folder.size_of(one.copy_of(file)) == file.size
    }
    for place, copy in copies.items():
        folder.copy(copy, place)
        reached(CrashPoint.COPIED)
    if lost := sorted(missing - copies.keys()):
        raise LakehouseError(
            f"{len(lost)} removed files are not in the trash of {folder.location} any more, such as {lost[0]}: a "
            f"deletion was interrupted, or somebody else deleted them. {len(copies)} others are back. The trash stays "
            "as it is.",
            next_step="If one of them is needed, look for it in the versions or a backup of the object store. The next "
            "`sluice table remove-orphans` after their time in the trash forgets them.",
        )
    return len(copies)


def forget_files(folder: StoredFolder, removal: Removal, places: Collection[str]) -> None:
    """Take files off the list of a removal, before they are deleted for good. places: of the copies, or where the files
    lay: a removal that was killed lists files that it has not moved.

    Raises
    ------
    LakehouseError: when the object store refuses.
    """
    kept = tuple(file for file in removal.files if {removal.copy_of(file), file.place}.isdisjoint(places))
    if len(kept) < len(removal.files):
        folder.write(f"{removal.folder}/{_LIST}", _list_of(replace(removal, files=kept)))


def delete_removal(folder: StoredFolder, removal: Removal, *, reached: Reached = unnoticed) -> None:
    """Delete the copies of a removal for good, and then its list.

    Raises
    ------
    LakehouseError: when the object store refuses.
    """
    for file in removal.files:
        if folder.size_of(removal.copy_of(file)) is not None:
            folder.delete(removal.copy_of(file))
            reached(CrashPoint.CLEARED)
    folder.delete(f"{removal.folder}/{_LIST}")
