"""Lists every file below the folders of a table and in its trash, and searches all Parquet among them.

What metadata says does not count here: a file that nothing refers to may be brought back, and is read by whoever lists
the folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.table import Table

from sluice.erasure.file_columns import TableColumns, UnreadableFileError, columns_of, key_of, partition_values
from sluice.erasure.parquet_rows import SearchedFile, search
from sluice.erasure.row_test import RowTest
from sluice.maintenance.file_trash import Removal, forget_files, removals_in
from sluice.publication.write_folders import data_folder
from sluice.stored_keys import TRASH_FOLDER_PREFIX
from sluice.tables.manifest_reading import READERS
from sluice.tables.stored_files import StoredFile, StoredFolder

_METADATA = (".avro", ".metadata.json", ".metadata.json.gz", ".gz.metadata.json", ".stats", ".puffin")
"""How the names of manifests, lists of manifests, metadata files and statistics of columns end."""

_STATISTICS = "partition-stats"
"""How the names of statistics of partitions begin, which are Parquet. Statistics belong to one snapshot, and go with
it."""

_WITHOUT_ROWS = ("version-hint.text", "_SUCCESS")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFile:
    """A file and the folder in which it was listed."""

    folder: StoredFolder
    file: StoredFile

    @property
    def path(self) -> str:
        """With its scheme, for messages."""
        return f"{self.folder.location}/{self.file.place}"

    @property
    def name(self) -> str:
        """Without its folders. Other programs give one name to files of several folders."""
        return self.file.name

    @property
    def key(self) -> str:
        """By which it is known, as manifests name it."""
        return key_of(self.path)

    @property
    def spoken(self) -> str:
        """Where it is, for messages: a folder of a partition is named by a value, which may be a person's."""
        return spoken(self.path)

    def is_metadata_in(self, folders: Sequence[str]) -> bool:
        """Whether it is one of Iceberg's own. A data file may be Avro, too, and has rows."""
        is_ours = self.name.endswith(_METADATA) or self.name.startswith(_STATISTICS)
        return is_ours and any(is_within(self.key, key_of(one)) for one in folders)

    @property
    def is_in_trash(self) -> bool:
        """Whether it was moved into the trash of a table."""
        return any(part.startswith(TRASH_FOLDER_PREFIX) for part in self.file.place.split("/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is below the folders of a table.

    harmless: the keys of the Parquet files that were read and hold no row that is to be erased. meant: those with such
    rows, and how many. unread: files that could not be searched, each with the reason. metadata: Iceberg's own.
    unwritable: those that cannot be written again without rows, each with the reason.
    """

    harmless: frozenset[str]
    meant: tuple[tuple[PlacedFile, int], ...]
    unread: tuple[tuple[PlacedFile, str], ...]
    metadata: tuple[PlacedFile, ...]
    unwritable: tuple[tuple[PlacedFile, str], ...] = ()

    @property
    def searched(self) -> int:
        """How many Parquet files were read."""
        return len(self.harmless) + len(self.meant)

    @property
    def keys(self) -> frozenset[str]:
        """The keys of the files with rows that are to be erased."""
        return frozenset(file.key for file, _ in self.meant)


@dataclass(slots=True, kw_only=True)
class FileSearch:
    """Searches the folders of a table. known: what files held that were searched before, for `look` alone."""

    test: RowTest
    known: dict[tuple[str, int, str], SearchedFile | str] = field(default_factory=dict)

    def look(self, table: Table, others: Iterable[Table] = (), *, afresh: bool = False) -> Found:
        """Search all files of a table.

        Parameters
        ----------
        others: its staging tables, whose metadata lies elsewhere.
        afresh: read files again that were searched before.

        Raises
        ------
        LakehouseError: when the object store does not answer.
        """
        if afresh:
            self.known.clear()
        others = tuple(others)
        files = list(_files_below(folders_of(table, others)))
        places = [place for one in (table, *others) for place in metadata_folders(one)]
        metadata = [one for one in files if one.is_metadata_in(places)]
        ours = {one.path for one in metadata}
        parquet = [one for one in files if one.path not in ours and not _has_no_rows(one)]
        tested = {one.field_id for one in self.test.columns_in(table.schema())}
        values = partition_values((table,), tested)  # staging tables may have been cut meanwhile
        columns = columns_of(table.metadata, [one.metadata for one in others], values=values)
        with ThreadPoolExecutor(READERS) as pool:
            seen = list(pool.map(lambda one: self._searched(one, columns), parquet))
        return Found(
            harmless=frozenset(one.key for one, rows in _read_of(parquet, seen) if not rows.meant),
            meant=tuple((one, rows.meant) for one, rows in _read_of(parquet, seen) if rows.meant),
            unread=tuple((one, why) for one, why in zip(parquet, seen, strict=True) if isinstance(why, str) and why),
            metadata=tuple(metadata),
            unwritable=tuple((one, rows.unwritable) for one, rows in _read_of(parquet, seen) if rows.unwritable),
        )

    def _searched(self, one: PlacedFile, columns: TableColumns) -> SearchedFile | str:
        """What a file holds, or why it cannot be read; an empty reason where it went meanwhile, or is the list of the
        trash."""
        key = (one.path, one.file.size, one.file.modified_at.isoformat())
        if key not in self.known:
            self.known[key] = self._read(one, columns)
        return self.known[key]

    def _read(self, one: PlacedFile, columns: TableColumns) -> SearchedFile | str:
        if one.is_in_trash and one.name == "list.parquet":
            return ""
        try:
            with one.folder.open(one.file.place) as source:
                return search(source, self.test, columns, path=one.path)
        except FileNotFoundError:
            return ""
        except UnreadableFileError as error:
            return error.message
        except OSError as error:
            return f"The object store does not give it: {type(error).__name__}."


def _has_no_rows(one: PlacedFile) -> bool:
    """Hadoop writes the checksums of a local file beside it, as `.NAME.crc`."""
    is_checksum = one.name.startswith(".") and one.name.endswith(".crc")
    return is_checksum or one.name.endswith(_WITHOUT_ROWS)


def _read_of(
    files: Sequence[PlacedFile], seen: Sequence[SearchedFile | str]
) -> Iterator[tuple[PlacedFile, SearchedFile]]:
    return ((one, found) for one, found in zip(files, seen, strict=True) if isinstance(found, SearchedFile))


def folders_of(table: Table, others: Iterable[Table] = ()) -> tuple[StoredFolder, ...]:
    """The folders of a table, and those of the metadata of its staging tables; none lies within another."""
    metadata = table.metadata
    named = [(place, table.io) for place in (metadata.location, data_folder(metadata), metadata_folder(table))]
    named += [(place, other.io) for other in others for place in (other.location(), metadata_folder(other))]
    places: dict[str, tuple[str, FileIO]] = {}  # engines spell one in several ways
    for place, io in named:  # a catalog may give credentials for the folder of a table alone
        places.setdefault(key_of(place.rstrip("/")), (place.rstrip("/"), io))
    kept: list[str] = []
    for key in sorted(places, key=len):
        if not any(is_within(key, one) for one in kept):
            kept.append(key)
    return tuple(StoredFolder.at(io, place) for place, io in map(places.__getitem__, kept))


def metadata_folder(table: Table) -> str:
    """Where the metadata of a table lies."""
    return table.properties.get("write.metadata.path", f"{table.location()}/metadata").rstrip("/")


def metadata_folders(table: Table) -> tuple[str, str]:
    """Where metadata of a table lies, and where it lay if another folder was declared later."""
    return metadata_folder(table), f"{table.location().rstrip('/')}/metadata"


def lies_within(table: Table, folders: Iterable[str]) -> bool:
    """Whether a table has a place for files in some folders: its own, that of its data or of its metadata, as declared
    and as it is."""
    newest = table.metadata_location.rpartition("/")[0]
    named = (table.location(), data_folder(table.metadata), metadata_folder(table), newest)
    places, around = [key_of(one.rstrip("/")) for one in named], [key_of(one.rstrip("/")) for one in folders]
    return any(is_within(place, folder) for place in places for folder in around)


def is_within(place: str, folder: str) -> bool:
    """Whether a folder is another one, or lies below it."""
    return place == folder or place.startswith(f"{folder}/")


def spoken(path: str) -> str:
    """A path without its folders of partitions."""
    return "/".join(part for part in path.split("/") if "=" not in part)


def _files_below(folders: Sequence[StoredFolder]) -> Iterator[PlacedFile]:
    for folder in folders:
        for file in folder.below():
            yield PlacedFile(folder=folder, file=file)


def with_origins(table: Table, found: Found) -> frozenset[str]:
    """The keys of the files with rows that are meant, and those by which tables know the ones in the trash: such a
    table lacks the file, and can get it back from there alone.

    Raises
    ------
    LakehouseError: when the object store does not answer.
    """
    folder = StoredFolder.at(table.io, data_folder(table.metadata))
    places = _places(folder, [one.key for one, _ in found.meant if one.is_in_trash])
    origins = (
        key_of(f"{folder.location}/{file.place}")
        for removal in (_removals(folder) if places else ())
        for file in removal.files
        if removal.copy_of(file) in places
    )
    return found.keys.union(origins)


def names_of(keys: Collection[str]) -> frozenset[str]:
    """The names of files without folders, by which other tables are asked: too many are found rather than too few."""
    return frozenset(key.rpartition("/")[2] for key in keys)


def forget_trashed(table: Table, found: Found) -> None:
    """Take every file with rows that are meant off the lists of the trash, where its name has values of partitions.

    An earlier table of the name had a trash of its own.

    Raises
    ------
    LakehouseError: when the object store does not answer.
    """
    folder = StoredFolder.at(table.io, data_folder(table.metadata))
    places = _places(folder, found.keys)
    for removal in _removals(folder) if places else ():
        forget_files(folder, removal, places)


def _places(folder: StoredFolder, keys: Collection[str]) -> frozenset[str]:
    within = f"{key_of(folder.location)}/"
    return frozenset(key.removeprefix(within) for key in keys if key.startswith(within))


def _removals(folder: StoredFolder) -> Iterator[Removal]:
    tops = {file.place.partition("/")[0] for file in folder.below()}
    for trash in sorted(one for one in tops if one.startswith(TRASH_FOLDER_PREFIX)):
        yield from removals_in(folder, trash)
