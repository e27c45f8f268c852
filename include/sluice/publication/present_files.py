"""Looks for the files that tables refer to: the data files that a commit adds, and the lists of a staging table."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import datetime, timedelta

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from sluice.errors import LakehouseError, StagedFilesMissingError
from sluice.tables.catalog import catalog_refusals
from sluice.tables.manifest_reading import READERS

ORPHAN_AGE = timedelta(hours=12)
"""A younger file that this run has written is assumed to exist: orphan removals spare the files of a day, most of them
those of three days. About the files of earlier runs nothing is assumed."""

_NAMED_FILES = 3

_WAY_OUT = (
    "Bring the files back, by `sluice table restore-orphans TABLE` or from the versions or a backup of the object "
    "store, and repeat it; or have them written again."
)


def is_fresh(written_at: datetime | None, *, now: datetime) -> bool:
    """Whether files that were written at a time need not be looked for; unset: the time is unknown."""
    return written_at is not None and now - written_at <= ORPHAN_AGE


def absent_files(io: FileIO, files: Sequence[DataFile], *, table: str) -> tuple[DataFile, ...]:
    """Those of some files that are gone. The store is asked for every one, with one request for each.

    Parameters
    ----------
    table: whose files they are, for messages.

    Raises
    ------
    LakehouseError: when the object store does not answer.
    """
    with catalog_refusals(f"look for the files of {table}"), ThreadPoolExecutor(READERS) as pool:
        exist = list(pool.map(lambda file: io.new_input(file.file_path).exists(), files))
    return tuple(file for file, exists in zip(files, exist, strict=True) if not exists)


def named(files: Sequence[DataFile]) -> str:
    """The paths of some files, for a message: the first ones, and how many more there are."""
    paths = sorted(file.file_path for file in files)
    rest = f" and {len(paths) - _NAMED_FILES} more" if len(paths) > _NAMED_FILES else ""
    return f"{', '.join(paths[:_NAMED_FILES])}{rest}"


def require_present(io: FileIO, files: Sequence[DataFile], *, table: str, way_out: str = "") -> None:
    """Require that the files exist that a commit is to add to a table.

    Parameters
    ----------
    way_out: what can be done otherwise; empty: to write the files again.

    Raises
    ------
    StagedFilesMissingError: with the names of those that are gone, and the number of their rows.
    LakehouseError: when the object store does not answer.
    """
    if gone := absent_files(io, files, table=table):
        rows = sum(file.record_count for file in gone)
        raise StagedFilesMissingError(
            f"{table} stays as it is: {len(gone)} of the {len(files)} files that would be added, with {rows:,} rows, "
            f"are gone: {named(gone)}. An orphan removal on the table deletes files that it does not refer to yet.",
            next_step=way_out or _WAY_OUT,
        )


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
