"""Finds the metadata files of a table that nothing needs any more, and those that may name values of meant rows.

Manifests hold the bounds of the values in files, and lists of manifests those of partitions. A commit that is under way
has written manifests to which nothing refers yet, and keeps them while it is tried again: they may be older than the
newest snapshot. So a file counts that is older than the oldest snapshot which stays and that some state of the table
has listed, or that is older than any commit which may still be under way; and a metadata file of a lower number than
the newest. Object stores date files by seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.table import Table

from sluice.erasure.cut_history import HistoryLook, is_cut
from sluice.erasure.file_columns import key_of
from sluice.erasure.searched_files import (
    PlacedFile,
    UnreadableMetadataError,
    earlier_metadata,
    is_within,
    metadata_folders,
)
from sluice.errors import LakehouseError
from sluice.maintenance.needed_files import number_of_metadata, other_tables
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import load_table
from sluice.tables.manifest_reading import READERS


def stale_metadata(
    tables: Iterable[Table],
    files: Sequence[PlacedFile],
    *,
    needed: Collection[str],
    listed: Collection[str],
    before: datetime,
) -> tuple[PlacedFile, ...]:
    """Those of some metadata files that nothing needs, in the order in which they may go: whatever ends a deletion,
    what shows that the others were listed is left.

    Parameters
    ----------
    tables: freshly loaded; what one of them needs may lie in the folder of another. files: as the object store lists
    them. needed: the keys of what other tables need, which may lie there, too.
    listed: the keys of files that states of the tables have listed. before: what was written then, and is not listed,
    is of no commit that may still land.

    Raises
    ------
    LakehouseError: when a list of manifests cannot be read.
    """
    every = tuple(tables)
    kept = frozenset(needed).union(*map(needed_by, every))
    found = [one for table in every for one in _of_table(table, files, listed, before)]
    return tuple(sorted((one for one in found if one.key not in kept), key=deletion_order))


def deletion_order(one: PlacedFile) -> tuple[bool, bool]:
    """Manifests first, then their lists, then the metadata files that name these."""
    return not one.name.endswith(".avro"), one.name.startswith("snap-")


def _of_table(
    table: Table, files: Sequence[PlacedFile], listed: Collection[str], before: datetime
) -> Iterator[PlacedFile]:
    earlier = {key_of(one.metadata_file) for one in table.metadata.metadata_log}
    newest = number_of_metadata(table.metadata_location.rpartition("/")[2])
    oldest = min(table.snapshots(), key=lambda one: one.sequence_number or 0, default=None)
    since = None if oldest is None else written_at(files, oldest.manifest_list)
    for one in unneeded_files((table,), files):
        number = number_of_metadata(one.name)
        is_earlier = number is not None and newest is not None and number < newest
        is_known = one.key in listed or one.file.modified_at < before
        if one.key in earlier or is_earlier or (is_known and since is not None and one.file.modified_at < since):
            yield one


def unneeded_files(tables: Iterable[Table], files: Sequence[PlacedFile]) -> Iterator[PlacedFile]:
    """Those of some files that lie in the metadata folder of a table, and to which nothing in it refers. tables: some
    states of it."""
    states = tuple(tables)
    needed = frozenset[str]().union(*map(needed_by, states))
    folders = {key_of(place) for one in states for place in metadata_folders(one)}
    yield from (one for one in files if one.key not in needed and any(is_within(one.key, place) for place in folders))


def written_at(files: Sequence[PlacedFile], path: str) -> datetime | None:
    """When a file was written, as the object store says."""
    return next((one.file.modified_at for one in files if one.key == key_of(path)), None)


def needed_by(table: Table) -> frozenset[str]:
    """The keys of the metadata files that a table needs.

    Raises
    ------
    LakehouseError: when a list of manifests cannot be read.
    """
    statistics = (*table.metadata.statistics, *table.metadata.partition_statistics)
    paths = [table.metadata_location, *(one.statistics_path for one in statistics)]
    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        for snapshot in table.snapshots():
            paths += [snapshot.manifest_list or "", *(one.manifest_path for one in snapshot.manifests(table.io))]
    return frozenset(map(key_of, paths))


def needed_elsewhere(catalog: Catalog, target: str) -> frozenset[str]:
    """The keys of the metadata of all tables of a catalog but one: what of it lies in a folder of that one stays.

    Raises
    ------
    LakehouseError: when a table or a list of manifests cannot be read.
    """
    others = other_tables(catalog, (), target=target)
    return frozenset[str]().union(*(_needed_now(catalog, one.table) for one in others))


_MOST_LOOKS = 5


def _needed_now(catalog: Catalog, table: Table) -> frozenset[str]:
    """What a table needs; of one whose metadata went meanwhile, as it is now: streams clear their staging tables every
    second."""
    for left in reversed(range(_MOST_LOOKS)):
        try:
            return needed_by(table)
        except LakehouseError as error:
            if not left or not isinstance(error.__cause__, FileNotFoundError):
                raise
        now = load_table(catalog, table.name())
        if now is None:
            break
        table = now
    return frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """What of the metadata of a table may name values of rows that are meant, because it lists a file of which it is
    unknown that it holds none.

    listed: how many manifests of its snapshots. unneeded: files to which nothing refers. outside: files that any of
    them names, and that exist outside of its folders. earlier: metadata files that name snapshots before the cut with
    which history begins, as an erasure leaves them that was ended before its end.
    """

    listed: int = 0
    unneeded: tuple[PlacedFile, ...] = ()
    outside: tuple[str, ...] = ()
    earlier: tuple[PlacedFile, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.listed or self.unneeded or self.earlier)


def doubts_of(
    states: Sequence[Table], files: Sequence[PlacedFile], harmless: Collection[str], *, folders: Sequence[str]
) -> Doubts:
    """Judge the metadata of a table.

    Parameters
    ----------
    states: of the table, one as it was before the files were listed, and maybe one after that. files: its metadata, as
    the object store lists it. harmless: the keys of the files that were searched and hold no row that is meant.
    folders: that were searched.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    table, history = states[0], HistoryLook(states[0], harmless)
    doubtful = history.doubtful()
    every = tuple(unneeded_files(states, files))
    left = [one for one in every if number_of_metadata(one.name) is None]
    with ThreadPoolExecutor(READERS) as pool:
        read = dict(zip((one.key for one in left), pool.map(lambda one: paths_in(table.io, one), left), strict=True))
    unneeded = doubtful_of(read, harmless, clean=history.read_keys() - doubtful)
    named = {path for found in read.values() if isinstance(found, frozenset) for path in found}
    return Doubts(
        listed=len(doubtful),
        unneeded=tuple(one for one in left if one.key in unneeded),
        outside=_outside(table, named | history.named(), folders),
        earlier=tuple(_earlier(states[-1], every)),
    )


def _earlier(table: Table, files: Iterable[PlacedFile]) -> Iterator[PlacedFile]:
    oldest = min(table.snapshots(), key=lambda one: one.sequence_number or 0, default=None)
    if oldest is None or not is_cut(oldest):
        return
    newest = number_of_metadata(table.metadata_location.rpartition("/")[2]) or 0
    numbered = [one for one in files if (number := number_of_metadata(one.name)) is not None and number < newest]
    with ThreadPoolExecutor(READERS) as pool, catalog_refusals(f"read the metadata of {'.'.join(table.name())}"):
        numbers = pool.map(lambda one: _sequence_numbers(table.io, one), numbered)
        for one, found in zip(numbered, numbers, strict=True):
            if found is None or any(number < (oldest.sequence_number or 0) for number in found):
                yield one


def _sequence_numbers(io: FileIO, one: PlacedFile) -> tuple[int, ...] | None:
    """Those of the snapshots that a metadata file names; unset when it cannot be read, and may name any."""
    try:
        state = earlier_metadata(io, one.path)
    except UnreadableMetadataError:
        return None
    return () if state is None else tuple(seen.sequence_number or 0 for seen in state.snapshots)


def doubtful_of(
    read: Mapping[str, frozenset[str] | ListOfManifests | None],
    harmless: Collection[str],
    *,
    clean: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """The keys of those of some files that may name values of rows that are meant.

    Parameters
    ----------
    read: what each of them says, from `paths_in`. clean: the keys of other manifests that name none.
    """
    manifests = {key: found for key, found in read.items() if not isinstance(found, ListOfManifests)}
    doubtful = {
        key for key, found in manifests.items() if found is None or not all(key_of(path) in harmless for path in found)
    }
    known = clean | (manifests.keys() - doubtful)
    lists = {
        key for key, found in read.items() if isinstance(found, ListOfManifests) and not found.with_bounds <= known
    }
    return frozenset(doubtful | lists)


@dataclass(frozen=True, slots=True)
class ListOfManifests:
    """What a list of manifests says. with_bounds: the keys of those of which it has bounds of partitions."""

    with_bounds: frozenset[str]


def paths_in(io: FileIO, one: PlacedFile) -> frozenset[str] | ListOfManifests | None:
    """The files that a manifest lists, or what a list of manifests says; none when it is neither. What was deleted
    meanwhile says nothing."""
    try:
        source = io.new_input(one.path)
        with AvroFile[ManifestFile](source) as reader:
            is_list = "manifest_path" in reader.schema.column_names
        if is_list:
            found = read_manifest_list(source)
            return ListOfManifests(frozenset(key_of(entry.manifest_path) for entry in found if entry.partitions))
        alone = ManifestFile.from_args(manifest_path=one.path, manifest_length=one.file.size, partition_spec_id=0)
        entries = alone.fetch_manifest_entry(io, discard_deleted=False)
        return frozenset(entry.data_file.file_path for entry in entries)
    except FileNotFoundError:
        return frozenset()
    except OSError as error:  # of the store, which says nothing of the file
        raise LakehouseError(f"{one.spoken} cannot be read: {error}") from error
    except Exception:  # noqa: BLE001  # what is no file of Iceberg fails in ways that its readers do not list
        return None


def _outside(table: Table, named: Iterable[str], folders: Sequence[str]) -> tuple[str, ...]:
    """Those of some files that exist, and lie outside of all folders."""
    places = tuple(map(key_of, folders))
    statistics = (*table.metadata.statistics, *table.metadata.partition_statistics)
    named = {*named, *(one.metadata_file for one in table.metadata.metadata_log)}
    named |= {one.statistics_path for one in statistics}
    away = sorted(path for path in named if not any(is_within(key_of(path), place) for place in places))
    with ThreadPoolExecutor(READERS) as pool:
        exist = pool.map(lambda path: _may_exist(table.io, path), away)
        return tuple(path for path, is_there in zip(away, exist, strict=True) if is_there)


def _may_exist(io: FileIO, path: str) -> bool:
    """A store that denies access to another place says nothing of what is there."""
    try:
        return io.new_input(path).exists()
    except OSError:
        return True
