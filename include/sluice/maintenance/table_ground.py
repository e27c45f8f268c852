"""Where the files of a table may lie, and which other tables have files or references there.

Staging tables, the copies of backfills and the shadows of refreshes write into the folder of their target: they are
*copies* of it, and what they refer to is referenced. Any other table in the same place, or a checkpoint, is a reason to
leave the place alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from sluice.maintenance.stored_files import Place, StoredFiles
from sluice.publication.staged_batch import STAGING_NAMESPACE
from sluice.publication.staging_layout import BACKFILL_NAMESPACE, REFRESH_NAMESPACE, data_folder
from sluice.stored_keys import STAGING_TARGET_UUID
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import load_table

_COPY_NAMESPACES = (STAGING_NAMESPACE, BACKFILL_NAMESPACE, REFRESH_NAMESPACE)
_SHADOW_QUARANTINES = "quarantine"

_AT_ONCE = 8
"""How many tables are loaded at the same time: enough to hide the catalog's latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGround:
    """A table with its folders and its copies, freshly loaded.

    folders: where its files lie; none of them holds another. dropped: the folders of copies that were dropped.
    """

    table: Table
    copies: tuple[Table, ...]
    folders: tuple[Place, ...]
    dropped: tuple[Place, ...] = ()

    @property
    def name(self) -> str:
        """The table's name."""
        return ".".join(self.table.name())

    @property
    def searched(self) -> tuple[Place, ...]:
        """All folders, those of the copies included."""
        return outermost((*self.folders, *(place_of(copy.metadata) for copy in self.copies), *self.dropped))


def place_of(metadata: TableMetadata) -> Place:
    """The folder of a table."""
    return Place.at(metadata.location)


def folders_of(metadata: TableMetadata) -> tuple[Place, ...]:
    """Where the files of a table lie: its folder, and those that properties name."""
    named = (metadata.properties.get(key) for key in ("write.metadata.path", "write.object-storage.path"))
    return outermost(
        (place_of(metadata), Place.at(data_folder(metadata)), *(Place.at(one) for one in named if one is not None))
    )


def outermost(places: Iterable[Place]) -> tuple[Place, ...]:
    """Some places without those that another one holds."""
    found = sorted(set(places))
    return tuple(one for one in found if not any(other != one and other.holds(one) for other in found))


def observe_ground(catalog: Catalog, files: StoredFiles, table: Table) -> TableGround:
    """Find the copies of a loaded table, those that were dropped included.

    Raises
    ------
    LakehouseError: when the catalog or the store cannot be asked.
    """
    folders = folders_of(table.metadata)
    every = _all_copies(catalog)
    dropped = _dropped(files, table, folders, [place_of(copy.metadata) for copy in every])
    return TableGround(
        table=table,
        copies=tuple(one for one in every if _is_copy(one.metadata, table, folders)),
        folders=folders,
        dropped=tuple(dropped),
    )


def refreshed(catalog: Catalog, ground: TableGround) -> TableGround | None:
    """The same ground, loaded again; none when the table is another one now.

    Raises
    ------
    LakehouseError: when the catalog cannot be asked.
    """
    table = load_table(catalog, ground.name)
    if table is None or table.metadata.table_uuid != ground.table.metadata.table_uuid:
        return None
    copies = tuple(one for one in _all_copies(catalog) if _is_copy(one.metadata, table, ground.folders))
    return replace(ground, table=table, copies=copies)


def _all_copies(catalog: Catalog) -> list[Table]:
    loaded = load_tables(catalog, _names_in(catalog, (*_COPY_NAMESPACES, _SHADOW_QUARANTINES)))
    return [one for one in loaded if STAGING_TARGET_UUID in one.properties]


def _is_copy(metadata: TableMetadata, table: Table, folders: Sequence[Place]) -> bool:
    """Whether a table is a copy of another one: by its id, or by where it writes, as the staging table of a shadow."""
    target = metadata.properties.get(STAGING_TARGET_UUID)
    if target is None or metadata.table_uuid == table.metadata.table_uuid:
        return False
    writes = Place.at(data_folder(metadata))
    return target == str(table.metadata.table_uuid) or any(folder.overlaps(writes) for folder in folders)


def _dropped(files: StoredFiles, table: Table, folders: Sequence[Place], kept: Sequence[Place]) -> Iterator[Place]:
    """The folders of copies that the catalog does not have any more. One without readable metadata is not listed."""
    home = place_of(table.metadata)
    namespace = table.name()[0]
    parent, _, folder = home.path.rpartition("/")
    above, _, own = parent.rpartition("/")
    if not folder or namespace not in own:
        return
    for copies in _COPY_NAMESPACES:
        beside = Place(home.scheme, home.bucket, f"{above}/{own.replace(namespace, copies)}".strip("/"))
        for found in files.folders_in(beside):
            if not any(found.overlaps(one) for one in (*kept, *folders)) and _was_copy(files, found, table, folders):
                yield found


def _was_copy(files: StoredFiles, folder: Place, table: Table, folders: Sequence[Place]) -> bool:
    names = (file.place for file in files.below(folder.below("metadata")))
    newest = max((one for one in names if one.name.endswith(".metadata.json")), default=None)
    if newest is None:
        return False
    with catalog_refusals(f"read {newest}"):
        try:
            metadata = FromInputFile.table_metadata(table.io.new_input(str(newest)))
        except ValueError:  # half of a file
            return False
    return _is_copy(metadata, table, folders)


def all_names(catalog: Catalog) -> list[tuple[str, ...]]:
    """The names of all tables of a catalog.

    Raises
    ------
    LakehouseError: when the catalog cannot be asked.
    """
    with catalog_refusals("list the tables of the catalog"):
        namespaces: list[tuple[str, ...]] = list(catalog.list_namespaces())
        for namespace in namespaces:  # it grows by those below
            with suppress(NotImplementedError):
                namespaces += [one for one in catalog.list_namespaces(namespace) if one not in namespaces]
        return [name for namespace in namespaces for name in catalog.list_tables(namespace)]


def _names_in(catalog: Catalog, namespaces: Iterable[str]) -> list[tuple[str, ...]]:
    names: list[tuple[str, ...]] = []
    for namespace in namespaces:
        with (
            suppress(NoSuchNamespaceError),
            catalog_refusals(f"list the tables of {namespace}", but_not=(NoSuchNamespaceError,)),
        ):
            names += catalog.list_tables(namespace)
    return names


def load_tables(catalog: Catalog, names: Iterable[tuple[str, ...]]) -> list[Table]:
    """Load tables; one that was dropped meanwhile is left out.

    Raises
    ------
    LakehouseError: when one cannot be loaded: what it refers to is unknown.
    """

    def load(name: tuple[str, ...]) -> Table | None:
        with (
            suppress(NoSuchTableError),
            catalog_refusals(f"load the table {'.'.join(name)}", but_not=(NoSuchTableError,)),
        ):
            return catalog.load_table(name)
        return None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [one for one in pool.map(load, names) if one is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Other tables that concern the ground of a table.

    overlapping: those with a folder there, each with it. referring: those whose files may be files of others.
    """

    overlapping: tuple[tuple[str, Place], ...]
    referring: tuple[Table, ...]


def observe_neighbours(catalog: Catalog, ground: TableGround) -> Neighbours:
    """Look at all other tables of the catalog.

    A table whose files may belong to others says `gc.enabled=false`: one that was made by Spark's procedure `snapshot`
    refers to the files of its source.

    Raises
    ------
    LakehouseError: when a table cannot be loaded.
    """
    ours = {ground.name, *(".".join(copy.name()) for copy in ground.copies)}
    others = load_tables(catalog, (name for name in all_names(catalog) if ".".join(name) not in ours))
    overlapping = (
        (".".join(other.name()), folder)
        for other in others
        for folder in folders_of(other.metadata)
        if any(folder.overlaps(one) for one in ground.searched)
    )
    return Neighbours(
        overlapping=tuple(overlapping),
        referring=tuple(one for one in others if one.properties.get("gc.enabled", "true").lower() == "false"),
    )
