"""Lists every file below the folders of a table and in its trash, searches all Parquet among them, and says which of
them the table is known to have listed, so that none of those belongs to a commit that is under way.

What metadata says does not count for the search: a file that nothing refers to may be brought back, and is read by
whoever lists the folder.

What a commit under way has written is of no state of the table yet. It may be older than the newest snapshot: a commit
of Iceberg that has lost a race keeps its manifests, and is tried again with them on what came first.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from gzip import BadGzipFile
from typing import TypeVar

from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from sluice.erasure.file_columns import TableColumns, UnreadableFileError, columns_of, key_of, partition_values
from sluice.erasure.parquet_rows import SearchedFile, search
from sluice.erasure.row_test import RowTest
from sluice.errors import LakehouseError
from sluice.ledger.connection import Ledger
from sluice.ledger.table_writers import ended_writes, exited_runs, is_number
from sluice.maintenance.orphan_files import CLOCK_MARGIN, Removal, forget_files, removals_in
from sluice.publication.data_files import WriterKind, data_folder, is_of_commit, writer_of, writes_folder
from sluice.stored_keys import TRASH_FOLDER_PREFIX
from sluice.tables.catalog import catalog_refusals
from sluice.tables.manifest_reading import READERS
from sluice.tables.stored_files import StoredFile, StoredFolder

Read = TypeVar("Read")


def listed_keys(tables: Iterable[Table]) -> frozenset[str]:
    """The keys of all files that some tables list, or that an earlier state of one does whose metadata is still there:
    data files, manifests, lists of manifests and statistics.

    Raises
    ------
    LakehouseError: when one of them cannot be read.
    """
    return frozenset(key_of(path) for table in tables for path in _listed(table))


def keys_of_ended_runs(ledger: Ledger, table: Table, files: Iterable[PlacedFile]) -> frozenset[str]:
    """The keys of those files that runs of streams have written for a table whose process was seen to end: a merge
    leaves the rows of its batch behind, and nothing of such a run lands any more. Of a run that is counted as lost, the
    driver may live on; and what is younger than the end of its run was not written by that."""
    ours, found = f"{key_of(writes_folder(table.metadata))}/", dict[str, tuple[int, datetime]]()
    for one in files:
        writer = writer_of(one.key.removeprefix(ours)) if one.key.startswith(ours) else None
        if writer is not None and writer.kind is WriterKind.RUN and is_number(writer.identity):
            found[one.key] = int(writer.identity), one.file.modified_at
    ended = exited_runs(ledger, {token for token, _ in found.values()})
    return frozenset(key for key, (token, at) in found.items() if token in ended and at <= ended[token] + CLOCK_MARGIN)


def keys_of_ended_commits(ledger: Ledger, name: str, files: Iterable[PlacedFile]) -> frozenset[str]:
    """The keys of those metadata files that earlier erasures of a table have written for their commits, for whoever
    holds its `maintenance_lock`. Such a commit is sent once, on one state of the table: whatever is committed next
    refuses it, and what has landed is listed."""
    ended = ended_writes(ledger, name)
    return frozenset(one.key for one in files if is_of_commit(one.name, ended))


class UnreadableMetadataError(LakehouseError):
    """A metadata file that is there says nothing: it is not whole, or of a version that is not known here."""


def earlier_metadata(io: FileIO, path: str) -> TableMetadata | None:
    """What an earlier metadata file of a table says; none when it is gone.

    Raises
    ------
    UnreadableMetadataError: when it is there, and cannot be read as metadata.
    LakehouseError: when the object store does not answer.
    """
    try:
        with catalog_refusals(f"read {path}", but_not=_SAYS_NOTHING):
            return FromInputFile.table_metadata(io.new_input(path))
    except FileNotFoundError:
        return None
    except _SAYS_NOTHING as error:
        raise UnreadableMetadataError(f"{path} is no metadata of a table that can be read here.") from error


_SAYS_NOTHING = (FileNotFoundError, ValueError, ValidationError, EOFError, BadGzipFile, zlib.error)
"""What the readers of a metadata file raise for what it is, and not for how it was reached."""


def _listed(table: Table) -> Iterator[str]:
    io, log = table.io, [one.metadata_file for one in table.metadata.metadata_log]

    def state_in(path: str) -> TableMetadata | None:
        with suppress(UnreadableMetadataError):  # what it lists is not known
            return earlier_metadata(io, path)
        return None

    def lists_in(path: str) -> list[ManifestFile]:
        return _unless_gone(lambda: list(read_manifest_list(io.new_input(path))))

    def files_in(manifest: ManifestFile) -> list[str]:
        entries = _unless_gone(lambda: manifest.fetch_manifest_entry(io, discard_deleted=False))
        return [one.data_file.file_path for one in entries]

    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"), ThreadPoolExecutor(READERS) as pool:
        earlier = pool.map(state_in, log)
        states = [table.metadata, *(one for one in earlier if one is not None)]
        yield from (one.statistics_path for state in states for one in (*state.statistics, *state.partition_statistics))
        lists = {one.manifest_list for state in states for one in state.snapshots if one.manifest_list}
        manifests = {one.manifest_path: one for some in pool.map(lists_in, lists) for one in some}
        yield from (*lists, *manifests)
        for some in pool.map(files_in, manifests.values()):
            yield from some


def _unless_gone(read: Callable[[], list[Read]]) -> list[Read]:
    """What a file holds; nothing when it is gone."""
    try:
        return read()
    except FileNotFoundError:
        return []


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
