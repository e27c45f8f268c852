"""The files that tables refer to, by their names.

A file counts as referenced when one of its name is, wherever that lies: names contain random parts, so the names alone
distinguish files, and no spelling of a path (`s3a:`, a doubled slash) can hide a reference. A name is kept as a hash of
64 bits: two that collide keep a file that could go.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from sluice.maintenance.stored_files import Place, StoredFile, StoredFiles
from sluice.tables.catalog import catalog_refusals
from sluice.tables.inspection import READERS

CLOCKS_DIFFER_BY = timedelta(hours=1)
"""By how much the clocks of the store and of the writers may differ."""

_VERSION = re.compile(r"v?(\d+)[^/]*\.metadata\.json")


class References:
    """The names of the files that some tables refer to, and the manifests in which they were read.

    Names are only ever added. Manifests never change, so a second look at a table reads the new ones alone.
    """

    def __init__(self) -> None:
        self._hashes: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._read: set[int] = set()

    def __contains__(self, name: object) -> bool:
        wanted = _hash(str(name))
        place = int(np.searchsorted(self._hashes, wanted))
        return place < len(self._hashes) and int(self._hashes[place]) == int(wanted)

    def add_names(self, paths: Iterable[str]) -> None:
        """Add the files of some paths."""
        added = np.fromiter((_hash(path.rpartition("/")[2]) for path in paths), np.uint64)
        if len(added):
            self._hashes = np.union1d(self._hashes, added)

    def add_table(self, table: Table) -> None:
        """Add every file that a loaded table refers to, by any snapshot, branch or tag, or beside them.

        Raises
        ------
        LakehouseError: when a manifest cannot be read, so that the references are unknown.
        """
        self.add_names([table.metadata_location])
        self.add_metadata(table.metadata, table.io, of=".".join(table.name()))

    def add_metadata(self, metadata: TableMetadata, io: FileIO, *, of: str) -> None:
        """Add what one state of a table refers to. of: its name, for messages.

        Raises
        ------
        LakehouseError: when a manifest cannot be read.
        """
        with catalog_refusals(f"read the manifests of {of}"):
            self.add_names(entry.metadata_file for entry in metadata.metadata_log)
            self.add_names(one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics))
            self.add_names(snapshot.manifest_list for snapshot in metadata.snapshots)
            lists = self._unread(snapshot.manifest_list for snapshot in metadata.snapshots)
            self._add_manifests(io, _manifests(io, metadata.snapshots, lists))

    def add_list(self, io: FileIO, path: str) -> None:
        """Add a manifest list and what it leads to, as far as its manifests are there."""
        self.add_names([path])
        found = list(read_manifest_list(io.new_input(path)))
        self.add_names(manifest.manifest_path for manifest in found)
        self._add_manifests(io, [one for one in found if io.new_input(one.manifest_path).exists()])

    def _add_manifests(self, io: FileIO, manifests: Iterable[ManifestFile]) -> None:
        by_path = {manifest.manifest_path: manifest for manifest in manifests}
        self.add_names(by_path)
        unread = self._unread(by_path)

        def names(path: str) -> list[str]:
            entries = by_path[path].fetch_manifest_entry(io, discard_deleted=True)
            return [entry.data_file.file_path for entry in entries]

        with ThreadPoolExecutor(READERS) as pool:
            for found in _some_at_a_time(pool.map(names, unread)):
                self.add_names(found)
        self._read |= {int(_hash(path)) for path in unread}

    def _unread(self, paths: Iterable[str]) -> list[str]:
        return [path for path in dict.fromkeys(paths) if int(_hash(path)) not in self._read]


def _some_at_a_time(lists: Iterable[list[str]], most: int = 100_000) -> Iterator[list[str]]:
    """The same names in longer lists: each addition sorts all names."""
    some: list[str] = []
    for one in lists:
        some += one
        if len(some) >= most:
            yield some
            some = []
    yield some


def _manifests(io: FileIO, snapshots: Sequence[Snapshot], lists: Iterable[str]) -> list[ManifestFile]:
    wanted = set(lists)
    with ThreadPoolExecutor(READERS) as pool:
        found = pool.map(
            lambda snapshot: snapshot.manifests(io), (one for one in snapshots if one.manifest_list in wanted)
        )
        return list({manifest.manifest_path: manifest for some in found for manifest in some}.values())


def _hash(text: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big"))


def add_unlisted_metadata(references: References, table: Table, files: StoredFiles) -> tuple[str, ...]:
    """Add what metadata refers to that the catalog does not list, and that may count again.

    Metadata that is newer than the catalog's: the catalog was restored from a backup, and its newer state may return.
    The manifest list of a commit that can still land, because its answer was lost: its sequence number is not reached.

    Returns
    -------
    A sentence for each kind that was found.

    Raises
    ------
    LakehouseError: when a file cannot be listed or read.
    """
    name = ".".join(table.name())
    newer: list[StoredFile] = []
    lists: list[StoredFile] = []
    for folder in _metadata_folders(table):
        for file in files.below(folder):
            if file.place.name in references:
                continue
            if _is_newer(file, table):
                newer.append(file)
            elif file.place.name.startswith("snap-") and file.place.name.endswith(".avro") and _is_late(file, table):
                lists.append(file)
    with catalog_refusals(f"read the metadata files of {name}"):
        pending = [file for file in lists if _can_land(table, str(file.place))]
        for file in pending:
            references.add_list(table.io, str(file.place))
        for file in _newest(newer):
            references.add_metadata(
                FromInputFile.table_metadata(table.io.new_input(str(file.place))), table.io, of=str(file.place)
            )
    references.add_names(file.place.name for file in newer)
    notes = []
    if newer:
        notes.append(f"{len(newer)} metadata files of {name} are newer than the catalog's: what they refer to stays")
    if pending:
        notes.append(f"{len(pending)} commits to {name} may still land: what they refer to stays")
    return tuple(notes)


def _metadata_folders(table: Table) -> set[Place]:
    declared = table.properties.get("write.metadata.path") or f"{table.location()}/metadata"
    return {Place.at(table.metadata_location.rpartition("/")[0]), Place.at(declared)}


def _is_newer(file: StoredFile, table: Table) -> bool:
    found = _VERSION.fullmatch(file.place.name)
    current = _VERSION.fullmatch(table.metadata_location.rpartition("/")[2])
    if found is None or current is None:
        is_metadata = ".metadata.json" in file.place.name
        return is_metadata and file.modified_at > _time(table.metadata.last_updated_ms) + CLOCKS_DIFFER_BY
    return int(found[1]) > int(current[1])


def _newest(newer: Sequence[StoredFile]) -> list[StoredFile]:
    """The last ones: each refers to all that the ones before it did, apart from what was expired."""

    def version(file: StoredFile) -> int:
        found = _VERSION.fullmatch(file.place.name)
        return int(found[1]) if found is not None else 0

    last = max(map(version, newer), default=0)
    return [file for file in newer if version(file) == last]


def _is_late(file: StoredFile, table: Table) -> bool:
    """Whether a commit may have been prepared on the newest snapshot: later ones were refused when that landed."""
    newest = max((snapshot.timestamp_ms for snapshot in table.metadata.snapshots), default=0)
    return file.modified_at >= _time(newest) - CLOCKS_DIFFER_BY


def _can_land(table: Table, path: str) -> bool:
    """Whether the commit of a manifest list can land: catalogs accept a snapshot with a higher number alone. Lists of
    format version 1 have none, and a commit on a parent that is no head any more is refused.

    Source: https://iceberg.apache.org/spec/#manifest-lists; Iceberg's writers put both into the head of the file.
    """
    opened: AvroFile[ManifestFile]
    with AvroFile(table.io.new_input(path)) as opened:
        head = opened.header.meta
    if (number := head.get("sequence-number")) is not None:
        return int(number) >= table.metadata.next_sequence_number()
    heads = {str(reference.snapshot_id) for reference in table.metadata.refs.values()}
    return head.get("parent-snapshot-id", "null") in {*heads, "null"}


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
