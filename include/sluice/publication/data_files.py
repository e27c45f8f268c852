"""The data files of tables: the folders into which Sluice writes them, one for each writer, so that what a dead one
left is known; and whether the files that a commit adds, and the lists of a staging table, are there.

    <data folder>/sluice_writes_<uuid of the table>/<kind>_<identity>/…
    <metadata folder>/<24 digits of the identity, 8 others>-m0.avro, snap-…-<the same>.avro

Engines give data files names of their own choice, so a name says nothing of who wrote it. A folder does: no other
program writes there, and its name is that of a writer that the ledger knows. A file is published where it lies, so the
live files of a table lie in these folders too. Manifests have no folders, so those of some writers are known by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID, uuid4

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from sluice.errors import LakehouseError, StagedFilesMissingError
from sluice.stored_keys import WRITES_FOLDER_PREFIX
from sluice.tables.catalog import catalog_refusals
from sluice.tables.manifest_reading import READERS


class WriterKind(StrEnum):
    """What writes.

    RUN: a run of a stream, by its fencing token. ATTEMPT: an attempt at a backfill or a replay. REFRESH: a refresh,
    by its label. REWRITE: a compaction without Spark.
    """

    RUN = "run"
    ATTEMPT = "attempt"
    REFRESH = "refresh"
    REWRITE = "rewrite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One writer. identity: by which the ledger knows it; it is never given twice."""

    kind: WriterKind
    identity: str

    @classmethod
    def of_run(cls, token: int) -> Writer:
        """A run of a stream, by its fencing token."""
        return cls(kind=WriterKind.RUN, identity=str(token))

    @classmethod
    def of_attempt(cls, key: str) -> Writer:
        """An attempt at a backfill or a replay, by its publication key `<stream>/<lane>/<what>/<identity>…`."""
        return cls(kind=WriterKind.ATTEMPT, identity=key.split("/")[3])

    def __str__(self) -> str:
        return f"{self.kind}_{self.identity}"


_WRITER = re.compile(rf"({'|'.join(WriterKind)})_([0-9a-zA-Z_-]+)/.+")


def data_folder(target: TableMetadata) -> str:
    """Where engines put the data files of a table.

    Source: https://iceberg.apache.org/docs/latest/configuration/#write-properties
    """
    properties = target.properties
    named = properties.get("write.data.path")
    if named is None and properties.get("write.object-storage.enabled", "false").lower() == "true":
        named = properties.get("write.object-storage.path")
    return (named or properties.get("write.folder-storage.path") or f"{target.location}/data").rstrip("/")


def writes_folder(target: TableMetadata) -> str:
    """Where all writers of Sluice put data files for a table; another table in the same place has another folder."""
    return f"{data_folder(target)}/{WRITES_FOLDER_PREFIX}{target.table_uuid}"


def folder_of(target: TableMetadata, writer: Writer) -> str:
    """Where one writer puts data files for a table."""
    return f"{writes_folder(target)}/{writer}"


def writer_of(place: str) -> Writer | None:
    """Who wrote a file; none when its folder is not one of a writer.

    Parameters
    ----------
    place: of the file, below `writes_folder`.
    """
    found = _WRITER.fullmatch(place)
    return None if found is None else Writer(kind=WriterKind(found[1]), identity=found[2])


_KNOWN_DIGITS = 24
_OF_COMMIT = re.compile(r"(?:snap-\d+-\d+-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-m\d+)?\.avro")


def commit_id(identity: str) -> UUID:
    """An id for one try at a commit, after which its manifests are named. Each try has another one: what became of the
    one before may be unknown, and its manifests needed.

    Parameters
    ----------
    identity: of the writer, 32 hexadecimal digits.
    """
    return UUID(hex=identity[:_KNOWN_DIGITS] + uuid4().hex[_KNOWN_DIGITS:])


def is_of_commit(name: str, identities: Collection[str]) -> bool:
    """Whether a file is a manifest, or a list of them, of a commit of some writers. name: without folders."""
    found, known = _OF_COMMIT.fullmatch(name), {one[:_KNOWN_DIGITS] for one in identities}
    return found is not None and found[1].replace("-", "")[:_KNOWN_DIGITS] in known


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
