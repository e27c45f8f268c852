"""Finds where files in the trash of a table lay, and takes files with such rows off its lists."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pyiceberg.table import Table

from sluice.erasure.file_columns import key_of
from sluice.erasure.searched_files import Found
from sluice.maintenance.file_trash import Removal, forget_files, removals_in
from sluice.publication.write_folders import data_folder
from sluice.stored_keys import TRASH_FOLDER_PREFIX
from sluice.tables.stored_files import StoredFolder


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
