"""Says which files a table is known to have listed, so that none of them belongs to a commit that is under way.

What such a commit has written is of no state of the table yet. It may be older than the newest snapshot: a commit of
Iceberg that has lost a race keeps its manifests, and is tried again with them on what came first.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from gzip import BadGzipFile
from typing import TypeVar

from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from sluice.erasure.file_columns import key_of
from sluice.erasure.searched_files import PlacedFile
from sluice.errors import LakehouseError
from sluice.ledger.connection import Ledger
from sluice.ledger.table_writers import ended_writes, exited_runs, is_number
from sluice.maintenance.orphan_plan import CLOCK_MARGIN
from sluice.publication.write_folders import WriterKind, is_of_commit, writer_of, writes_folder
from sluice.tables.catalog import catalog_refusals
from sluice.tables.manifest_reading import READERS

Read = TypeVar("Read")


def listed_keys(tables: Iterable[Table]) -> frozenset[str]:
    """The keys of all files that some tables list, or that an earlier state of one does whose metadata is still there:
    data files, manifests, lists of manifests and statistics.

    Raises
    ------
    LakehouseError: when one of them cannot be read.
    """
    return frozenset(key_of(path) for table in tables for path in _listed(table))


def keys_of_ended_runs(ledger: Ledger, table: Table, files: Iterable[PlacedFile]) -> frozenset[str]:
    """The keys of those files that runs of streams have written for a table whose process was seen to end: a merge
    leaves the rows of its batch behind, and nothing of such a run lands any more. Of a run that is counted as lost, the
    driver may live on; and what is younger than the end of its run was not written by that."""
    ours, found = f"{key_of(writes_folder(table.metadata))}/", dict[str, tuple[int, datetime]]()
    for one in files:
        writer = writer_of(one.key.removeprefix(ours)) if one.key.startswith(ours) else None
        if writer is not None and writer.kind is WriterKind.RUN and is_number(writer.identity):
            found[one.key] = int(writer.identity), one.file.modified_at
    ended = exited_runs(ledger, {token for token, _ in found.values()})
    return frozenset(key for key, (token, at) in found.items() if token in ended and at <= ended[token] + CLOCK_MARGIN)


def keys_of_ended_commits(ledger: Ledger, name: str, files: Iterable[PlacedFile]) -> frozenset[str]:
    """The keys of those metadata files that earlier erasures of a table have written for their commits, for whoever
    holds its `maintenance_lock`. Such a commit is sent once, on one state of the table: whatever is committed next
    refuses it, and what has landed is listed."""
    ended = ended_writes(ledger, name)
    return frozenset(one.key for one in files if is_of_commit(one.name, ended))


class UnreadableMetadataError(LakehouseError):
    """A metadata file that is there says nothing: it is not whole, or of a version that is not known here."""


def earlier_metadata(io: FileIO, path: str) -> TableMetadata | None:
    """What an earlier metadata file of a table says; none when it is gone.

    Raises
    ------
    UnreadableMetadataError: when it is there, and cannot be read as metadata.
    LakehouseError: when the object store does not answer.
    """
    try:
        with catalog_refusals(f"read {path}", but_not=_SAYS_NOTHING):
            return FromInputFile.table_metadata(io.new_input(path))
    except FileNotFoundError:
        return None
    except _SAYS_NOTHING as error:
        raise UnreadableMetadataError(f"{path} is no metadata of a table that can be read here.") from error


_SAYS_NOTHING = (FileNotFoundError, ValueError, ValidationError, EOFError, BadGzipFile, zlib.error)
"""What the readers of a metadata file raise for what it is, and not for how it was reached."""


def _listed(table: Table) -> Iterator[str]:
    io, log = table.io, [one.metadata_file for one in table.metadata.metadata_log]

    def state_in(path: str) -> TableMetadata | None:
        with suppress(UnreadableMetadataError):  # what it lists is not known
            return earlier_metadata(io, path)
        return None

    def lists_in(path: str) -> list[ManifestFile]:
        return _unless_gone(lambda: list(read_manifest_list(io.new_input(path))))

    def files_in(manifest: ManifestFile) -> list[str]:
        entries = _unless_gone(lambda: manifest.fetch_manifest_entry(io, discard_deleted=False))
        return [one.data_file.file_path for one in entries]

    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"), ThreadPoolExecutor(READERS) as pool:
        earlier = pool.map(state_in, log)
        states = [table.metadata, *(one for one in earlier if one is not None)]
        yield from (one.statistics_path for state in states for one in (*state.statistics, *state.partition_statistics))
        lists = {one.manifest_list for state in states for one in state.snapshots if one.manifest_list}
        manifests = {one.manifest_path: one for some in pool.map(lists_in, lists) for one in some}
        yield from (*lists, *manifests)
        for some in pool.map(files_in, manifests.values()):
            yield from some


def _unless_gone(read: Callable[[], list[Read]]) -> list[Read]:
    """What a file holds; nothing when it is gone."""
    try:
        return read()
    except FileNotFoundError:
        return []
