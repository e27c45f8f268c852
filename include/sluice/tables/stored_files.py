"""The files below a folder of the object store: listed, copied within it, and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pyarrow import NativeFile
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from sluice.errors import LakehouseError
from sluice.tables.catalog import catalog_refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file. place: below the folder that was listed. size: in bytes. modified_at: by the clock of the store."""

    place: str
    size: int
    modified_at: datetime

    @property
    def name(self) -> str:
        """Without its folders."""
        return self.place.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFolder:
    """A folder of the object store. Every file of it is named by its place below the folder.

    location: with its scheme, for messages. root: as the file system names it.
    """

    location: str
    root: str
    files: FileSystem

    @classmethod
    def at(cls, io: FileIO, location: str) -> StoredFolder:
        """A folder at a location, with the credentials of a table.

        Raises
        ------
        LakehouseError: when the files of the table are not reached through PyArrow.
        """
        if not isinstance(io, PyArrowFileIO):
            raise LakehouseError(f"Files below {location} cannot be listed: {type(io).__name__} cannot list.")
        scheme, host, path = PyArrowFileIO.parse_location(location)
        return cls(location=location, root=path.rstrip("/"), files=io.fs_by_scheme(scheme, host))

    def below(self, place: str = "") -> Iterator[StoredFile]:
        """The files below a place; none when there is no such folder.

        Raises
        ------
        LakehouseError: when the object store does not answer.
        """
        selector = FileSelector(self._path(place), recursive=True, allow_not_found=True)
        with catalog_refusals(f"list the files below {self.location}"):
            found = self.files.get_file_info(selector)
        for one in found:
            if one.type is FileType.File and one.mtime is not None:
                at = one.mtime.astimezone(UTC)
                yield StoredFile(place=one.path.removeprefix(f"{self.root}/"), size=one.size, modified_at=at)

    def size_of(self, place: str) -> int | None:
        """How many bytes a file has; none when there is no such file."""
        with catalog_refusals(f"look for {place} below {self.location}"):
            found = self.files.get_file_info(self._path(place))
        return found.size if found.type is FileType.File else None

    def copy(self, place: str, to: str) -> None:
        """Copy a file to another place, over what is there.

        Raises
        ------
        LakehouseError: when the copy is not as long as the file, or the object store refuses.
        """
        with catalog_refusals(f"copy {place} below {self.location}"):
            self._make_folder_of(to)
            self.files.copy_file(self._path(place), self._path(to))
        if self.size_of(place) != self.size_of(to):
            raise LakehouseError(f"The copy of {self.location}/{place} has another length; the file stays.")

    def delete(self, place: str) -> None:
        """Delete a file that exists.

        PyArrow then writes a mark for a folder of S3 that has become empty, which some stores refuse: what counts is
        whether the file is gone.
        """
        with catalog_refusals(f"delete {place} below {self.location}"):
            try:
                self.files.delete_file(self._path(place))
            except OSError:
                if self.size_of(place) is not None:
                    raise

    def open(self, place: str) -> NativeFile:
        """A file, to be read here and there. What it raises is not translated."""
        return self.files.open_input_file(self._path(place))

    def read(self, place: str) -> bytes:
        """What a file holds."""
        with (
            catalog_refusals(f"read {place} below {self.location}"),
            self.files.open_input_stream(self._path(place)) as stream,
        ):
            return bytes(stream.read())

    def write(self, place: str, content: bytes) -> None:
        """Write a file, over what is there."""
        with catalog_refusals(f"write {place} below {self.location}"):
            self._make_folder_of(place)
            with self.files.open_output_stream(self._path(place)) as stream:
                stream.write(content)

    def _make_folder_of(self, place: str) -> None:
        """A store of objects has no folders, and may refuse the mark of one."""
        if isinstance(self.files, LocalFileSystem):
            self.files.create_dir(self._path(place).rpartition("/")[0])

    def _path(self, place: str) -> str:
        return f"{self.root}/{place}" if place else self.root
