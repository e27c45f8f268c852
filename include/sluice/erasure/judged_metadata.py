"""Judges the metadata of a table and its staging tables: whether anything is left that names values of rows which are
meant, at which cut history ends, and what needs another cut. All of it is decided here, once.

Backfills, replays and refreshes drop their staging tables once the target has the files. Their manifests still have the
bounds of these. No table of the catalog refers to them, so that they are looked for where the catalog puts such tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from sluice.erasure.cut_history import HistoryLook, live_files
from sluice.erasure.file_columns import key_of
from sluice.erasure.searched_files import (
    Found,
    PlacedFile,
    UnreadableMetadataError,
    earlier_metadata,
    folders_of,
    is_within,
    lies_within,
    metadata_folders,
    names_of,
    with_origins,
)
from sluice.erasure.stale_metadata import Doubts, doubtful_of, doubts_of, paths_in, written_at
from sluice.errors import LakehouseError
from sluice.maintenance.needed_files import OtherTable, number_of_metadata, other_tables
from sluice.publication.data_files import data_folder
from sluice.publication.staged_batch import STAGING_NAMESPACE
from sluice.publication.staging_layout import BACKFILL_NAMESPACE, REFRESH_NAMESPACE
from sluice.stored_keys import STAGING_TARGET, STAGING_TARGET_UUID
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import require_table
from sluice.tables.manifest_reading import READERS
from sluice.tables.stored_files import StoredFolder

_NAMESPACES = (STAGING_NAMESPACE, BACKFILL_NAMESPACE, REFRESH_NAMESPACE, "quarantine")

_BEING_CREATED = timedelta(minutes=15)
"""A table that is being created has metadata before the catalog knows it. That takes seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedStaging:
    """The metadata of a dropped staging table of a target.

    place: its folder. files: in the order in which they may go. is_doubtful: whether a manifest lists a file that is
    not known to hold no row that is meant. is_foreign: whether metadata files there are of a table that is not known as
    a staging table of the target: another catalog may have it. is_denied: whether the store denies a look at it.
    """

    place: str
    files: tuple[PlacedFile, ...]
    is_doubtful: bool
    is_foreign: bool = False
    is_denied: bool = False

    def is_young(self, now: datetime) -> bool:
        """Whether it may belong to a table that is being created."""
        return any(one.file.modified_at > now - _BEING_CREATED for one in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedMetadata:
    """kept: the snapshots that stay, newest first, from the cut on; none when there is none that counts. doubtful: how
    many manifests may name values of such rows. unneeded: those of them to which nothing refers. to_cut: the staging
    tables that need a cut. outside: files that are named, and lie outside of the folders."""

    kept: tuple[int, ...]
    doubtful: int
    unneeded: tuple[PlacedFile, ...]
    to_cut: tuple[str, ...]
    outside: tuple[str, ...]


def judge_metadata(
    table: Table, staging: Sequence[Table], found: Found, *, after: Table | None = None
) -> JudgedMetadata:
    """Judge what a search has found.

    Parameters
    ----------
    table, staging: as they were before the files were listed. after: the table after that; it may have been written.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    folders = [one.location for one in folders_of(table, staging)]
    states = (table,) if after is None else (table, after)
    ours = doubts_of(states, found.metadata, found.harmless, folders=folders)
    theirs = [(one, doubts_of((one,), found.metadata, found.harmless, folders=folders)) for one in staging]
    every = (ours, *(doubts for _, doubts in theirs))
    return JudgedMetadata(
        kept=_kept(states[-1], found, ours),
        doubtful=sum(one.listed + len(one.unneeded) + len(one.earlier) for one in every),
        unneeded=tuple(file for one in every for file in one.unneeded),
        to_cut=tuple(".".join(one.name()) for one, doubts in theirs if _needs_cut(one, found, doubts)),
        outside=tuple(sorted({path for one in every for path in one.outside})),
    )


def unsearched_files(table: Table, found: Found) -> tuple[str, ...]:
    """The live files of a table that no search has read: they lie elsewhere. table: as it was before
    the files were listed."""
    return tuple(one.file_path for one in live_files(table) if key_of(one.file_path) not in found.harmless | found.keys)


def unwritable_files(table: Table, found: Found) -> Iterator[tuple[str, str]]:
    """The live files with such rows that cannot be written again, each with the reason."""
    live = {key_of(one.file_path) for one in live_files(table)}
    for one, why in found.unwritable:
        if one.key in live and one.key in found.keys:
            yield one.spoken, why


def needed_of_unread(found: Found, states: Iterable[Table], around: Iterable[OtherTable]) -> frozenset[str]:
    """The keys of the files that could not be searched and to which a snapshot refers, also one of another table.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    keys, every = {one.key for one, _ in found.unread}, (*states, *(one.table for one in around if one.listed))
    return frozenset[str]().union(*(listed_in(one, keys) for one in every)) if keys else frozenset[str]()


def referring_tables(
    name: str, table: Table, staging: Collection[Table], found: Found, around: Iterable[OtherTable]
) -> Iterator[str]:
    """The tables that list a file with such rows in a newest state that stays, or lie in a folder of this one or of its
    staging tables, maybe with metadata alone.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    folders, keys = [one.location for one in folders_of(table, staging)], with_origins(table, found)
    for one in around:
        if one.table.properties.get(STAGING_TARGET) == name:
            continue
        refers = one.listed and listed_in(one.table, keys)  # other files may have these names
        if refers or lies_within(one.table, folders):
            yield ".".join(one.table.name())


def listed_in(table: Table, keys: Collection[str]) -> frozenset[str]:
    """Those of some files to which any snapshot of a table refers, by their keys.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    history = HistoryLook(table)
    history.doubtful()
    return frozenset(map(key_of, history.named())).intersection(keys)


def _kept(table: Table, found: Found, doubts: Doubts) -> tuple[int, ...]:
    """A cut counts while nothing doubtful is younger: what is not older than it may be of a commit that is under way,
    and would stay."""
    kept = HistoryLook(table, found.harmless).kept()
    return () if kept and any(_younger(table, kept[-1], found, doubts)) else kept


def _younger(table: Table, cut: int, found: Found, doubts: Doubts) -> Iterator[PlacedFile]:
    snapshot = table.snapshot_by_id(cut)
    since = None if snapshot is None else written_at(found.metadata, snapshot.manifest_list)
    yield from (one for one in doubts.unneeded if since is None or one.file.modified_at >= since)


def _needs_cut(staging: Table, found: Found, doubts: Doubts) -> bool:
    """Whether a staging table has more than one snapshot alone, an empty one behind which all is older."""
    if not staging.snapshots():
        return bool(doubts)
    return len(staging.snapshots()) > 1 or not _kept(staging, found, doubts)


def unneeded_data(catalog: Catalog, name: str, listed: Collection[str]) -> tuple[PlacedFile, ...]:
    """The data files of a table to which nothing refers any more, of those that a state of it has listed. Every other
    program that expires snapshots deletes them, unless the table says that its files are not to be collected.

    Parameters
    ----------
    listed: the keys of the files that states of the table have listed, before its snapshots were expired.

    Raises
    ------
    LakehouseError: when the object store does not answer, or a table of the catalog cannot be read.
    """
    table = require_table(catalog, name)
    if table.properties.get("gc.enabled", "true").lower() == "false":
        return ()
    folder, places = StoredFolder.at(table.io, data_folder(table.metadata)), metadata_folders(table)
    files = (PlacedFile(folder=folder, file=one) for one in folder.below())
    found = [one for one in files if one.key in listed and not (one.is_in_trash or one.is_metadata_in(places))]
    keys = frozenset(one.key for one in found)
    needed: set[str] = set()
    for one in other_tables(catalog, names_of(keys), target=name):
        needed |= listed_in(one.table, keys) if one.listed else frozenset()
    needed |= listed_in(require_table(catalog, name), keys)  # last: a file may come to it from another table
    return tuple(one for one in found if one.key not in needed)


def dropped_staging(
    catalog: Catalog, table: Table, harmless: Collection[str], *, warehouse: str
) -> tuple[DroppedStaging, ...]:
    """The metadata that dropped staging tables of a table have left.

    Parameters
    ----------
    harmless: the keys of the files that were searched and hold no row that is meant. warehouse: of the catalog.

    Raises
    ------
    LakehouseError: when the catalog or the object store does not answer.
    """
    target = ".".join(table.name())
    denied: list[str] = []
    listed = tuple(_listed(catalog, table, warehouse, denied))  # before the catalog is asked whose they are
    living = (table, *(one.table for one in other_tables(catalog, (), target=target)))
    owned = {key_of(place) for one in living for place in metadata_folders(one)}
    folders = tuple(key_of(one.location) for one in folders_of(table))
    found = [DroppedStaging(place=one, files=(), is_doubtful=False, is_denied=True) for one in denied]
    for place, grouped in groupby(sorted(listed, key=_place), key=_place):
        files = tuple(grouped)
        if key_of(place) in owned:
            continue
        with ThreadPoolExecutor(READERS) as pool:
            manifests = [one for one in files if number_of_metadata(one.name) is None]
            said = pool.map(lambda one: paths_in(table.io, one), manifests)
            read = dict(zip((one.key for one in manifests), said, strict=True))
        named = {key_of(path) for some in read.values() if isinstance(some, frozenset) for path in some}
        lies_there = any(is_within(path, folder) for path in named for folder in folders)
        states = _states(table.io, files)
        ours = {one.table_uuid for one in states if one and _is_staging_of(one, table, lies_there=lies_there)}
        if lies_there or ours:
            found.append(
                DroppedStaging(
                    place=place,
                    files=tuple(sorted(files, key=_order)),
                    is_doubtful=bool(doubtful_of(read, harmless)),
                    is_foreign=not all(one is not None and one.table_uuid in ours for one in states),
                )
            )
    return tuple(found)


def _is_staging_of(state: TableMetadata, table: Table, *, lies_there: bool) -> bool:
    """Whether it is a state of a staging table of a target, by the id of that; of an older one, which names none, by
    its name or its files."""
    target, known = state.properties.get(STAGING_TARGET), state.properties.get(STAGING_TARGET_UUID)
    if known is not None:
        return known == str(table.metadata.table_uuid)
    return target is not None and (lies_there or target == ".".join(table.name()))


def _order(one: PlacedFile) -> tuple[bool, bool]:
    return one.name.endswith(".avro"), not one.name.startswith("snap-")


def _place(one: PlacedFile) -> str:
    return one.path.rpartition("/")[0]


def _listed(catalog: Catalog, table: Table, warehouse: str, denied: list[str]) -> Iterator[PlacedFile]:
    """The metadata in the folders of the namespaces. denied: gets those that may not be looked at: credentials may be
    for the folder of the table alone."""
    for namespace in _NAMESPACES:
        for place in sorted(_folders_of_namespace(catalog, table, namespace, warehouse)):
            folder = StoredFolder.at(table.io, place)
            try:
                files = tuple(folder.below())
            except LakehouseError as error:
                if not is_denied(error):
                    raise
                denied.append(place)
                continue
            for file in files:
                one = PlacedFile(folder=folder, file=file)
                if one.is_metadata_in([_place(one)]) and "metadata" in _place(one).split("/"):
                    yield one


def is_denied(error: LakehouseError) -> bool:
    """Whether the store has denied access, and not failed to answer."""
    cause = error.__cause__
    return isinstance(cause, PermissionError) or (isinstance(cause, OSError) and "ACCESS_DENIED" in str(cause))


def _folders_of_namespace(catalog: Catalog, table: Table, namespace: str, warehouse: str) -> set[str]:
    """Where a catalog puts the tables of a namespace: beside the target's namespace, in the warehouse, or where it
    says."""
    *_, own, _ = table.name()
    found = set[str]()
    if warehouse.partition(":")[0][:2] == table.location().partition(":")[0][:2]:  # s3a is s3
        found |= {f"{warehouse.rstrip('/')}/{namespace}", f"{warehouse.rstrip('/')}/{namespace}.db"}
    root, _, last = table.location().rstrip("/").rpartition("/")[0].rpartition("/")
    if last in (own, f"{own}.db"):
        found.add(f"{root}/{namespace}{last.removeprefix(own)}")
    with catalog_refusals(f"look at the namespace {namespace}", but_not=(NoSuchNamespaceError,)):
        try:
            properties: Mapping[str, str] = catalog.load_namespace_properties(namespace)
        except NoSuchNamespaceError:
            properties = {}
    if location := properties.get("location"):
        found.add(location.rstrip("/"))
    return found


def _states(io: FileIO, files: Sequence[PlacedFile]) -> tuple[TableMetadata | None, ...]:
    """What the metadata files among some files say that are still there; none for one that cannot be read: another
    program may read it, and have that table."""

    def states_in(one: PlacedFile) -> tuple[TableMetadata | None, ...]:
        try:
            found = earlier_metadata(io, one.path)
        except UnreadableMetadataError:
            return (None,)
        return () if found is None else (found,)

    named = [one for one in files if number_of_metadata(one.name) is not None]
    with ThreadPoolExecutor(READERS) as pool:
        return tuple(state for some in pool.map(states_in, named) for state in some)
