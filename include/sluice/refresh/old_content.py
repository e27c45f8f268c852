"""Copies the files of a tagged snapshot, so that its content can come back.

The files themselves must not be added to the table again: the swap has removed them. Iceberg's Java library, when it
expires the snapshot of the swap, deletes the files that this snapshot removed without a look at later ones, once no tag
is left on the table (measured with Iceberg 1.12). Sluice's own expiry compares with what is still reachable.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath

from pyiceberg.io import FileIO
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, ManifestContent
from pyiceberg.table import Table

from sluice.errors import UsageError
from sluice.ledger.refreshes import RefreshObservation
from sluice.publication.write_folders import data_folder
from sluice.tables.catalog import catalog_refusals

_AT_ONCE = 4
"""How many files are copied at the same time: enough to hide an object store's latency."""

_CHUNK_BYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOfFile:
    """A file of the old content, and where its copy lies."""

    original: DataFile
    copy: str

    def as_data_file(self) -> DataFile:
        """The entry of the copy in the same table."""
        original = self.original
        values = {field.name: original[place] for place, field in enumerate(DATA_FILE_TYPE[2].fields)}
        copied = DataFile.from_args(_table_format_version=2, **{**values, "file_path": self.copy})
        copied.spec_id = original.spec_id
        return copied


def plan_copies(target: Table, refresh: RefreshObservation) -> tuple[CopyOfFile, ...]:
    """The files of the content before a refresh, each with the place of its copy, which is the same each time.

    Raises
    ------
    UsageError: when the tag is gone: the earlier content is not kept any more.
    LakehouseError: when a manifest cannot be read.
    """
    tagged = target.refs().get(refresh.tag)
    snapshot = target.snapshot_by_id(tagged.snapshot_id) if tagged is not None else None
    if snapshot is None:
        raise UsageError(
            f"{'.'.join(target.name())} has no tag {refresh.tag}: the content before refresh {refresh.number} is "
            "not kept any more.",
            next_step=f"Rebuild the table instead: `sluice stream refresh {refresh.stream}`.",
        )
    folder = f"{data_folder(target.metadata)}/taken_back_{refresh.label}"
    with catalog_refusals(f"read the manifests of {'.'.join(target.name())}"):
        files = sorted(
            (
                entry.data_file
                for manifest in snapshot.manifests(target.io)
                if manifest.content == ManifestContent.DATA
                for entry in manifest.fetch_manifest_entry(target.io, discard_deleted=True)
            ),
            key=lambda file: file.file_path,
        )
    places = _places(files, folder)
    return tuple(CopyOfFile(original=file, copy=place) for file, place in zip(files, places, strict=True))


def copy_files(io: FileIO, copies: Sequence[CopyOfFile]) -> None:
    """Copy files; a copy that is whole already stays, so that a second try continues.

    Raises
    ------
    LakehouseError: when the object store refuses.
    """

    def copy(one: CopyOfFile) -> None:
        place = io.new_output(one.copy)
        if place.exists() and len(place) == one.original.file_size_in_bytes:
            return
        with io.new_input(one.original.file_path).open() as source, place.create(overwrite=True) as written:
            shutil.copyfileobj(source, written, _CHUNK_BYTES)

    with catalog_refusals("copy the files of the earlier content"), ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(copy, copies))


def _places(files: Sequence[DataFile], folder: str) -> Iterator[str]:
    """Two writers may have given two files one name."""
    for number, file in enumerate(files):
        yield f"{folder}/{number:06d}-{PurePosixPath(file.file_path).name}"
