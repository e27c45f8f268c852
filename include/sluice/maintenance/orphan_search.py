"""Finds the files below a table's folders that nothing refers to, and what lies in the table's trash.

A file is an orphan when no table refers to it, when it is older than the grace, and when no run that may still commit
it is under way. Orphans are moved to the trash of the table, a folder in the table's own, and deleted after a second
grace:

    s3://lakehouse/silver/rows/data/_trash/20261126T201500-000000Z/lakehouse/silver/rows/data/….parquet
                                           when it was moved       bucket    where it was

So the trash needs no record: a file says itself when it was moved and where to. Iceberg's tools skip folders whose
name begins with an underscore. Buckets for tables, as SeaweedFS has them, take only `data` and `metadata` in the folder
of a table, and in `data` only names of data files: others have `.moved.avro` at the end of their name in the trash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.maintenance.referenced_files import References, add_unlisted_metadata
from sluice.maintenance.stored_files import Place, StoredFile, StoredFiles
from sluice.maintenance.table_ground import (
    Neighbours,
    TableGround,
    observe_ground,
    observe_neighbours,
    place_of,
    refreshed,
)

MOST_FILES = 10_000
"""How many files one run moves at most, and how many it deletes: what it holds in memory. The next run has the rest."""

TRASH = "data/_trash"
_TIME = "%Y%m%dT%H%M%S-%fZ"
_DATA_FILES = (".parquet", ".orc", ".avro")
_MOVED = ".moved.avro"
_NO_BUCKET = "_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashedFile:
    """A file in the trash. place: where it is. origin: where it was. moved_at: when it was moved."""

    place: Place
    origin: Place
    size_bytes: int
    moved_at: datetime

    @property
    def run(self) -> str:
        """The name of the folder of what was moved together with it."""
        return f"{self.moved_at.astimezone(UTC):{_TIME}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOrphans:
    """What was found below the folders of a table.

    orphans: the files to move, at most `MOST_FILES`. trashed: the files in the trash that are old enough to go, at most
    as many. returning: those that a table refers to again.
    young: how many files nothing refers to that are too young. is_more: whether there is more than fits into a run.
    neighbours: the other tables; unset when there is nothing to move or delete, so that they were not asked for.
    references: what the decisions rest on, for the looks that follow.
    notes: sentences for a person.
    """

    ground: TableGround
    cutoff: datetime
    orphans: tuple[StoredFile, ...]
    trashed: tuple[TrashedFile, ...]
    returning: tuple[TrashedFile, ...]
    young: int
    is_more: bool
    neighbours: Neighbours | None
    references: References
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanSearch:
    """Looks at the folders of one table."""

    catalog: Catalog
    files: StoredFiles

    def find(self, table: Table, *, cutoff: datetime, delete_before: datetime) -> FoundOrphans:
        """Find the orphans of a loaded table.

        Parameters
        ----------
        cutoff: a younger file is no orphan. delete_before: what was moved to the trash before that can be deleted.

        Raises
        ------
        LakehouseError: when the references are unknown, because the catalog, the store or a file cannot be read.
        """
        ground = observe_ground(self.catalog, self.files, table)
        references = References()
        notes = self._look(ground, references)
        listing = _Listing(files=self.files, ground=ground, references=references, cutoff=cutoff)
        orphans = list(islice(listing.orphans(), MOST_FILES + 1))
        trashed = list(self._trashed(table, references, delete_before))
        neighbours = observe_neighbours(self.catalog, ground) if orphans or trashed else None
        for other in neighbours.referring if neighbours is not None else ():
            references.add_table(other)
        returning = [one for one in trashed if one.origin.name in references]
        return FoundOrphans(
            ground=ground,
            cutoff=cutoff,
            orphans=tuple(one for one in orphans[:MOST_FILES] if one.place.name not in references),
            trashed=tuple(one for one in trashed[:MOST_FILES] if one.origin.name not in references),
            returning=tuple(returning),
            young=listing.young,
            is_more=len(orphans) > MOST_FILES or len(trashed) > MOST_FILES,
            neighbours=neighbours,
            references=references,
            notes=tuple(notes),
        )

    def _look(self, ground: TableGround, references: References) -> list[str]:
        for one in (ground.table, *ground.copies):
            references.add_table(one)
        found = (add_unlisted_metadata(references, one, self.files) for one in (ground.table, *ground.copies))
        return [note for notes in found for note in notes]

    def _trashed(self, table: Table, references: References, delete_before: datetime) -> Iterator[TrashedFile]:
        every = trashed_files(self.files, table)
        counted = (one for one in every if one.moved_at < delete_before or one.origin.name in references)
        yield from islice(counted, MOST_FILES + 1)

    def look_again(self, ground: TableGround, references: References) -> TableGround | None:
        """Add what the table, its copies and their unanswered commits refer to now; none when it is another table now.

        Raises
        ------
        LakehouseError: when that is unknown.
        """
        newest = refreshed(self.catalog, ground)
        if newest is not None:
            self._look(newest, references)
        return newest


@dataclass(slots=True, kw_only=True)
class _Listing:
    """The files below the folders of a table. young: how many unreferenced files were too young, as far as it got."""

    files: StoredFiles
    ground: TableGround
    references: References
    cutoff: datetime
    young: int = 0

    def orphans(self) -> Iterator[StoredFile]:
        """The orphans as they arrive."""
        parts = {f"{field.name}=" for spec in self.ground.table.specs().values() for field in spec.fields}
        for folder in self.ground.searched:
            for file in self.files.below(folder):
                if is_hidden(folder.relative(file.place), parts) or file.place.name in self.references:
                    continue
                if file.modified_at >= self.cutoff:
                    self.young += 1
                else:
                    yield file


def is_hidden(path: str, parts: Iterable[str]) -> bool:
    """Whether a file is not of a table: a part of its path begins with `_` or `.`, and is no partition of the table; or
    it is the hint by which catalogs in folders find the newest metadata.

    Source: org.apache.iceberg.hadoop.HiddenPathFilter, by which Iceberg's own removal of orphan files skips files.
    """
    names = path.split("/")
    allowed = tuple(part for part in parts if part.startswith(("_", ".")))
    hidden = (name for name in names if name.startswith(("_", ".")))
    return names[-1].startswith("version-hint") or any(not (allowed and name.startswith(allowed)) for name in hidden)


def trash_of(table: Table) -> Place:
    """The folder of a table's trash."""
    return place_of(table.metadata).below(TRASH)


def trash_place(trash: Place, origin: Place, *, moved_at: datetime) -> Place:
    """Where a file lies in the trash."""
    suffix = "" if origin.name.endswith(_DATA_FILES) else _MOVED
    return trash.below(f"{moved_at.astimezone(UTC):{_TIME}}/{origin.bucket or _NO_BUCKET}/{origin.path}{suffix}")


def trashed_files(files: StoredFiles, table: Table) -> Iterator[TrashedFile]:
    """The files in the trash of a table as they arrive. A file that was not moved there by `trash_place` is left out.

    Raises
    ------
    LakehouseError: when the store cannot be asked.
    """
    trash = trash_of(table)
    for file in files.below(trash):
        time, _, rest = trash.relative(file.place).partition("/")
        bucket, _, path = rest.partition("/")
        moved_at = _time(time)
        if moved_at is not None and path and not file.place.name.startswith("."):
            origin = Place(trash.scheme, "" if bucket == _NO_BUCKET else bucket, path.removesuffix(_MOVED))
            yield TrashedFile(place=file.place, origin=origin, size_bytes=file.size_bytes, moved_at=moved_at)


def _time(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def total_bytes(files: Sequence[StoredFile | TrashedFile]) -> int:
    """The size of some files together."""
    return sum(file.size_bytes for file in files)


def grace_of(*, older_than: timedelta, longest_batch: timedelta) -> timedelta:
    """How old an orphan is at least: as declared, and two of the longest batches of the table's writers."""
    return max(older_than, 2 * longest_batch)
