"""Whether what a staging table refers to is still there: of one whose files are gone nothing can be read.

Clearing a staging table removes what it does not list any more, so that a catalog which was set back to before that
refers to files that are gone. Others may remove them, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from pyiceberg.table import Table

from sluice.errors import LakehouseError
from sluice.tables.catalog import catalog_refusals
from sluice.tables.manifest_reading import READERS


def missing_list(staging: Table | None, *, is_whole: bool = False) -> str:
    """A file that a staging table refers to and that is gone: the manifest list of a snapshot. Empty while it can be
    read, or there is no table. Files are published from the newest list, and merged from that of their own batch.

    Parameters
    ----------
    is_whole: whether the manifests in the lists are looked for as well.

    Raises
    ------
    LakehouseError: when the object store or the catalog does not answer, or is another one than the catalog's.
    """
    if staging is None:
        return ""
    with catalog_refusals(f"look for the manifests of {'.'.join(staging.name())}"):
        while missing := _missing(staging, is_whole=is_whole):
            before, staging = staging.metadata_location, _refreshed(staging)
            if staging.metadata_location == before:  # whoever clears it meanwhile moves it on first
                if not staging.io.new_input(before).exists():
                    raise _of_another_storage(staging)
                return missing
    return ""


def _missing(staging: Table, *, is_whole: bool) -> str:
    lists = [snapshot.manifest_list for snapshot in reversed(staging.metadata.snapshots)]
    with ThreadPoolExecutor(READERS) as pool:
        missing = _first_missing(pool, staging, lists)
        if is_whole and not missing:
            read = pool.map(lambda snapshot: snapshot.manifests(staging.io), staging.metadata.snapshots)
            manifests = dict.fromkeys(one.manifest_path for manifests in read for one in manifests)
            missing = _first_missing(pool, staging, tuple(manifests))
    return missing


def _first_missing(pool: Executor, staging: Table, paths: Sequence[str]) -> str:
    exist = pool.map(lambda path: staging.io.new_input(path).exists(), paths)
    return next((path for path, exists in zip(paths, exist, strict=True) if not exists), "")


def _refreshed(staging: Table) -> Table:
    try:
        return staging.refresh()
    except FileNotFoundError as error:  # a catalog of SQL reads the metadata from the storage
        raise _of_another_storage(staging) from error


def _of_another_storage(staging: Table) -> LakehouseError:
    """A storage that is not there, or not the one of the catalog, has not even the metadata."""
    return LakehouseError(
        f"The metadata that the catalog knows of {'.'.join(staging.name())} is not in the storage, so nothing is said "
        "of what else is not there.",
        next_step="See that the storage that is configured is the one of the catalog.",
    )
