"""Looks for the files that a commit adds: a table that refers to a missing file cannot be read.

Files that are written and not in a table yet lie in the target's folder, where an orphan removal deletes them once they
are old enough for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from sluice.errors import StagedFilesMissingError
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
