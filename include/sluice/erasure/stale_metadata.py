"""Finds the metadata files of a table that nothing needs any more: manifests hold the bounds of the values in files.

A commit that is under way has written manifests to which nothing refers yet. None of those is older than the snapshot
on which it is made, and it can land only on the newest one. So a file counts that is older than the oldest snapshot
which stays, and one of the metadata files that the newest names as earlier ones. Object stores date files by seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyiceberg.table import Table

from sluice.erasure.searched_files import PlacedFile, is_within, metadata_folder
from sluice.tables.catalog import catalog_refusals


def stale_metadata(tables: Iterable[Table], files: Sequence[PlacedFile]) -> tuple[PlacedFile, ...]:
    """Those of some metadata files that nothing needs.

    Parameters
    ----------
    tables: freshly loaded, each with metadata in a folder of its own. files: as the object store lists them.

    Raises
    ------
    LakehouseError: when a list of manifests cannot be read.
    """
    return tuple(one for table in tables for one in _of_table(table, files))


def _of_table(table: Table, files: Sequence[PlacedFile]) -> Iterator[PlacedFile]:
    ours = [one for one in files if is_within(one.path, metadata_folder(table))]
    needed, earlier = _needed(table), {_name(one.metadata_file) for one in table.metadata.metadata_log}
    oldest = min(table.snapshots(), key=lambda one: one.sequence_number or 0, default=None)
    lists = {one.name: one.file.modified_at for one in ours}
    since = None if oldest is None else lists.get(_name(oldest.manifest_list or ""))
    for one in ours:
        if one.name not in needed and (one.name in earlier or (since is not None and one.file.modified_at < since)):
            yield one


def _needed(table: Table) -> frozenset[str]:
    statistics = (*table.metadata.statistics, *table.metadata.partition_statistics)
    paths = [table.metadata_location, *(one.statistics_path for one in statistics)]
    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        for snapshot in table.snapshots():
            paths += [snapshot.manifest_list or "", *(one.manifest_path for one in snapshot.manifests(table.io))]
    return frozenset(map(_name, paths))


def _name(path: str) -> str:
    return path.rpartition("/")[2]
