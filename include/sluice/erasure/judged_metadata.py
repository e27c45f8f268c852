"""Judges the metadata of a table and its staging tables: whether anything is left that names values of rows which are
meant, at which cut history ends, and what needs another cut. All of it is decided here, once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.erasure.cut_history import HistoryLook, live_files
from sluice.erasure.file_columns import key_of
from sluice.erasure.searched_files import (
    Found,
    PlacedFile,
    folders_of,
    lies_within,
    metadata_folders,
    names_of,
    with_origins,
)
from sluice.erasure.stale_metadata import Doubts, doubts_of, written_at
from sluice.maintenance.needed_files import OtherTable, other_tables
from sluice.publication.write_folders import data_folder
from sluice.stored_keys import STAGING_TARGET
from sluice.tables.declared_tables import require_table
from sluice.tables.stored_files import StoredFolder


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
