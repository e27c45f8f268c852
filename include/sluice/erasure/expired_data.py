"""Finds the data files that only expired snapshots have listed: rows that were deleted, or written again, before."""

from __future__ import annotations

from collections.abc import Collection

from pyiceberg.catalog import Catalog

from sluice.erasure.judged_metadata import listed_in
from sluice.erasure.searched_files import PlacedFile, metadata_folders
from sluice.erasure.trashed_files import names_of
from sluice.maintenance.needed_files import other_tables
from sluice.publication.write_folders import data_folder
from sluice.tables.declared_tables import require_table
from sluice.tables.stored_files import StoredFolder


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
