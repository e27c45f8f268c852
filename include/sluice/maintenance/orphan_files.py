"""The files that writers of Sluice left behind: which they are, why every other file stays, and the trash beside a
table into which such files are moved, from which they are brought back, and in which they are deleted for good.

A file is a leftover only when all of this is known of it:

    where     it lies in the folder of a writer of Sluice, and the ledger knows that writer
    ended     that writer has ended, and the file was written before that: a copy that somebody brought back was not
    when      it is older than the grace
    never     the history of its table is whole since before the file was written, and no snapshot of it had the file
    nowhere   no other table of the catalog refers to it

A commit of a file is younger than the file. So a history that lists every commit since proves that there was none.

    <data folder>/_sluice_trash_<uuid of the table>/<removal>/list.parquet, 000000-<name>, …

The list is Parquet, because a store that knows Iceberg's layout refuses other files there. It is written before the
first file is moved, and deleted after the last copy. A file is deleted only where a whole copy exists, and what is
there shows how far a killed process came: repeating a step continues it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from sluice.errors import LakehouseError
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.data_files import Writer
from sluice.tables.stored_files import StoredFile, StoredFolder

CLOCK_MARGIN = timedelta(hours=1)
"""So much the clock of the object store, which dates files, and those of writers, which date snapshots, may differ.
More than that is a machine whose certificates and tokens fail, too."""

_SETTLED_AFTER = 2 * CLOCK_MARGIN
"""Files are moved so long after the end of their writer: a copy that is brought back then is younger than that end by
any clock, so that no later removal takes it."""


class FileFate(StrEnum):
    """LEFT: it is a leftover. Every other word is why a file stays."""

    LEFT = "left"
    NEEDED = "needed"
    YOUNG = "young"
    WRITER_LIVES = "writer_lives"
    WRITER_UNKNOWN = "writer_unknown"
    BROUGHT_BACK = "brought_back"
    HISTORY_EXPIRED = "history_expired"
    FOREIGN = "foreign"


SENTENCES: Mapping[FileFate, str] = {
    FileFate.LEFT: "left behind by writers that have ended",
    FileFate.NEEDED: "referred to by a table of the catalog",
    FileFate.YOUNG: "younger than the grace",
    FileFate.WRITER_LIVES: "of writers that live or ended within two hours; they are looked at again after that",
    FileFate.WRITER_UNKNOWN: "in folders of writers that the ledger does not know; look which deployment wrote them",
    FileFate.BROUGHT_BACK: "brought back since their writers ended; whoever did that may delete them",
    FileFate.HISTORY_EXPIRED: "older than the history of the table, so nothing shows whether they were visible; "
    "let `expiry.older_than` be longer than the grace",
    FileFate.FOREIGN: "not written by Sluice, or by Spark's MERGE or compaction under names of its own; Iceberg's "
    "`remove_orphan_files` removes them, with `older_than` of three days at least and while no batch is held",
}
"""What is said of the files of each fate, after their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedFile:
    """A file, who wrote it, and what becomes of it. writer: unset when it lies in no folder of a writer."""

    file: StoredFile
    writer: Writer | None
    fate: FileFate


def decide_fates(
    files: Iterable[tuple[StoredFile, Writer | None]],
    *,
    needed: Collection[str],
    writers: Mapping[Writer, datetime | None],
    whole_since: datetime | None,
    now: datetime,
    grace: timedelta,
) -> tuple[JudgedFile, ...]:
    """Decide what becomes of each file.

    Parameters
    ----------
    files: each with who wrote it. needed: the names of files that a table refers to. A name is enough: engines put a
        random number into it, and the same file has many addresses (`s3`, `s3a`, another endpoint).
    writers: those that the ledger knows, and when each ended; unset while it may write.
    whole_since: every snapshot that was committed to the table since then is listed; unset when nothing is known.
    grace: a younger file stays. A writer that is not over keeps its files however old they are.
    """

    def fate_of(file: StoredFile, writer: Writer | None) -> FileFate:
        if file.name in needed:
            return FileFate.NEEDED
        if writer is None:
            return FileFate.FOREIGN
        if file.modified_at > now - grace:
            return FileFate.YOUNG
        if writer not in writers:
            return FileFate.WRITER_UNKNOWN
        ended_at = writers[writer]
        if ended_at is None or now <= ended_at + _SETTLED_AFTER:
            return FileFate.WRITER_LIVES
        if file.modified_at > ended_at + CLOCK_MARGIN:
            return FileFate.BROUGHT_BACK
        if whole_since is None or file.modified_at < whole_since + CLOCK_MARGIN:
            return FileFate.HISTORY_EXPIRED
        return FileFate.LEFT

    return tuple(JudgedFile(file=file, writer=writer, fate=fate_of(file, writer)) for file, writer in files)


def sentences_of(judged: Sequence[JudgedFile]) -> tuple[str, ...]:
    """How many files of each fate there are, a sentence each, without those that tables refer to."""
    count, size = Counter(one.fate for one in judged), Counter[FileFate]()
    for one in judged:
        size[one.fate] += one.file.size
    return tuple(
        f"{count[fate]} files, {size[fate] / 1024**2:.1f} MiB, {SENTENCES[fate]}."
        for fate in FileFate
        if count[fate] and fate is not FileFate.NEEDED
    )


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
