"""Reads and writes small files with one request for their content, and keeps the manifests that were read.

A reader of a Parquet or Avro file asks an object store for its size, its end and its blocks; a writer begins an upload,
sends its parts and ends it. For a file of some kilobytes each of those requests costs more than the file does, on this
side and on the store's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import cast

import pyarrow as pa
from cachetools import LRUCache, cached
from pyarrow.fs import FileSystem
from pyiceberg.io import S3_RETRY_STRATEGY_IMPL, FileIO, InputFile, InputStream, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.typedef import EMPTY_DICT, Properties

MOST_WHOLE_BYTES = 8 << 20
"""A larger file is not read whole: of its rows and its bytes, one would be in memory beside the other."""

MOST_KEPT_BYTES = 64 << 20
"""Of the manifests of all tables, in a process; the one goes first that was not read for the longest time."""


class WholeFiles(FileIO):
    """Access to files, of which small ones are read whole.

    Parameters
    ----------
    io: how all of them are reached. files: those that are read whole, unless they are larger than `MOST_WHOLE_BYTES`.
    """

    def __init__(self, io: FileIO, files: Iterable[DataFile]) -> None:
        super().__init__(io.properties)
        self._io = io
        self._whole = {file.file_path for file in files if file.file_size_in_bytes <= MOST_WHOLE_BYTES}

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        file = self._io.new_input(location)
        return _WholeFile(file) if location in self._whole else file

    def new_output(self, location: str) -> OutputFile:
        """A file to write."""
        return self._io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        self._io.delete(location)


class WholeWrites(PyArrowFileIO):
    """Access to the files of tables that writes a small file with one request, when it is closed. That a file cannot be
    written is raised then.

    Only new files are written so: of a large one whose upload could not begin, its close may leave a part at its place.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._writes = _DelayedOpen(properties)

    def new_output(self, location: str) -> PyArrowFile:
        """A new file to write."""
        return self._writes.new_output(location)


class _DelayedOpen(PyArrowFileIO):
    """Source: https://arrow.apache.org/docs/python/generated/pyarrow.fs.S3FileSystem.html (`allow_delayed_open`)"""

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        """The access to a bucket, copied with an option for which pyiceberg has no property.

        A copy has the retry strategy of pyarrow. Where the properties name another one, the access stays as it is.
        """
        opened = super()._initialize_s3_fs(netloc)
        if S3_RETRY_STRATEGY_IMPL in self.properties:
            return opened
        copy, (options,) = cast("tuple[Callable[..., FileSystem], tuple[dict[str, object]]]", opened.__reduce__())
        return copy({**options, "allow_delayed_open": True})


class KeptManifests(WholeWrites):
    """Access to the files of tables for a process that looks at a table and then changes it: it reads a manifest once.

    A manifest never changes, nor does a list of them, and no other file gets its name. Iceberg's own clients keep them
    likewise (`io.manifest.cache-enabled`).
    Source: https://iceberg.apache.org/docs/latest/configuration/
    """

    def new_input(self, location: str) -> PyArrowFile:
        """A file to read."""
        file = super().new_input(location)
        return _KeptFile(location, file._path, file._filesystem) if location.endswith(".avro") else file


class _WholeFile(InputFile):
    def __init__(self, file: InputFile) -> None:
        super().__init__(file.location)
        self._file = file

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return self._file.exists()

    def open(self, seekable: bool = True) -> InputStream:
        with self._file.open(seekable=False) as stream:
            return pa.BufferReader(stream.read())


class _KeptFile(PyArrowFile):
    def open(self, seekable: bool = True) -> InputStream:
        return pa.BufferReader(_content_of(self))


@cached(LRUCache(MOST_KEPT_BYTES, getsizeof=len), key=lambda file: file.location, lock=Lock())
def _content_of(file: _KeptFile) -> bytes:
    with PyArrowFile.open(file, seekable=False) as stream:
        return stream.read()
