"""The port to the files below a table's folders, with an adapter for each kind of storage.

pyiceberg's file access lists nothing, and PyArrow lists a folder in one piece. A listing here is read as it arrives, so
that a folder of millions of files needs the memory of a page.

A file is moved in two steps, copy and delete, so that it is never absent before its copy is whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from sluice.checkpoints.s3_checkpoint_files import s3_client
from sluice.errors import LakehouseError
from sluice.settings import ObjectStoreSettings

_S3 = frozenset({"s3", "s3a", "s3n"})


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A folder or a file of a storage: two spellings of one place are equal.

    scheme: `s3`, `file` or another. bucket: empty for `file`. path: without slashes at its ends; empty for a bucket.
    """

    scheme: str
    bucket: str
    path: str

    @classmethod
    def at(cls, location: str) -> Place:
        """The place of a location: `s3://…`, `s3a://…`, `file:/…`, a path, or one of another scheme."""
        scheme, rest = _parts(location)
        if scheme == "file":
            return cls("file", "", os.path.realpath(f"/{rest.lstrip('/')}").strip("/"))
        bucket, _, path = rest.partition("/")
        return cls("s3" if scheme in _S3 else scheme, bucket, path.strip("/"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.path}"

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def holds(self, other: Place) -> bool:
        """Whether another place is this one, or lies below it."""
        if (self.scheme, self.bucket) != (other.scheme, other.bucket):
            return False
        return not self.path or other.path == self.path or other.path.startswith(f"{self.path}/")

    def overlaps(self, other: Place) -> bool:
        """Whether one of the two holds the other."""
        return self.holds(other) or other.holds(self)

    def below(self, path: str) -> Place:
        """A place below this one."""
        return Place(self.scheme, self.bucket, f"{self.path}/{path}" if self.path else path)

    def relative(self, other: Place) -> str:
        """The path of a place below this one."""
        return other.path.removeprefix(f"{self.path}/" if self.path else "")


def _parts(location: str) -> tuple[str, str]:
    scheme, found, rest = location.partition("://")
    if found:
        return scheme.lower(), rest
    return ("file", location.removeprefix("file:")) if location.startswith(("/", "file:/")) else (location, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file as a listing has it."""

    place: Place
    size_bytes: int
    modified_at: datetime


class StoredFiles(Protocol):
    """Lists, copies and deletes the files of a storage. Each raises LakehouseError when the storage refuses."""

    def below(self, folder: Place) -> Iterator[StoredFile]:
        """Every file below a folder as it arrives, in no order; none when the folder does not exist."""
        ...

    def folders_in(self, folder: Place) -> Iterator[Place]:
        """The folders in a folder; none when it does not exist."""
        ...

    def copy(self, source: Place, target: Place) -> bool:
        """Copy a file inside a storage, in one step; the copy counts as written now. Whether the file was there."""
        ...

    def exists(self, file: Place) -> bool:
        """Whether a file is there."""
        ...

    def delete(self, file: Place) -> None:
        """Delete a file; one that is gone already is no error. Its folder stays: a writer may be about to use it."""
        ...


class AnyFiles:
    """The files of all supported storages. See `StoredFiles`."""

    def __init__(self, object_store: ObjectStoreSettings) -> None:
        self._local, self._s3 = LocalFiles(), S3Files(object_store)

    def below(self, folder: Place) -> Iterator[StoredFile]:
        """Every file below a folder."""
        return self._of(folder).below(folder)

    def folders_in(self, folder: Place) -> Iterator[Place]:
        """The folders in a folder."""
        return self._of(folder).folders_in(folder)

    def copy(self, source: Place, target: Place) -> bool:
        """Copy a file."""
        return self._of(source).copy(source, target)

    def exists(self, file: Place) -> bool:
        """Whether a file is there."""
        return self._of(file).exists(file)

    def delete(self, file: Place) -> None:
        """Delete a file."""
        self._of(file).delete(file)

    def _of(self, place: Place) -> StoredFiles:
        if place.scheme not in ("s3", "file"):
            raise LakehouseError(
                f"The files at {place} cannot be listed; the supported schemes are file, s3 and s3a.",
                next_step="Remove the orphan files there with another tool.",
            )
        return self._s3 if place.scheme == "s3" else self._local


class LocalFiles:
    """The files of this machine. Links are neither followed nor listed."""

    def below(self, folder: Place) -> Iterator[StoredFile]:
        """Every file below a folder."""
        with _sentences(f"list {folder}"):
            for parent, _, names in os.walk(_path(folder), onerror=_raise_unless_missing):
                for name in names:
                    if (seen := _observed(Path(parent, name))) is not None:
                        yield seen

    def folders_in(self, folder: Place) -> Iterator[Place]:
        """The folders in a folder."""
        with _sentences(f"list {folder}"), suppress(FileNotFoundError), os.scandir(_path(folder)) as found:
            yield from (folder.below(one.name) for one in found if one.is_dir(follow_symlinks=False))

    def copy(self, source: Place, target: Place) -> bool:
        """Copy a file: into a part first, so that no reader sees half of it."""
        to = _path(target)
        part = to.with_name(f".{to.name}.part")
        with _sentences(f"copy {source} to {target}"):
            to.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(_path(source), part, follow_symlinks=False)
            except FileNotFoundError:
                return False
            part.replace(to)
            return True

    def exists(self, file: Place) -> bool:
        """Whether a file is there."""
        return _path(file).exists()

    def delete(self, file: Place) -> None:
        """Delete a file."""
        with _sentences(f"delete {file}"):
            _path(file).unlink(missing_ok=True)


def _path(place: Place) -> Path:
    return Path("/", place.path)


def _observed(path: Path) -> StoredFile | None:
    try:
        status = path.lstat()
    except FileNotFoundError:  # a writer has removed it meanwhile
        return None
    if path.is_symlink():
        return None
    return StoredFile(
        place=Place("file", "", path.as_posix().strip("/")),
        size_bytes=status.st_size,
        modified_at=datetime.fromtimestamp(status.st_mtime, UTC),
    )


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class S3Files:
    """The files of an S3 store."""

    def __init__(self, object_store: ObjectStoreSettings) -> None:
        self._client = s3_client(object_store)

    def below(self, folder: Place) -> Iterator[StoredFile]:
        """Every file below a folder, a page of a thousand at a time."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=folder.bucket, Prefix=_prefix(folder))
        with _sentences(f"list {folder}"):
            for page in pages:
                for found in page.get("Contents", []):
                    if not found["Key"].endswith("/"):  # Hadoop marks folders with empty objects
                        yield StoredFile(
                            place=Place("s3", folder.bucket, found["Key"]),
                            size_bytes=found["Size"],
                            modified_at=found["LastModified"],
                        )

    def folders_in(self, folder: Place) -> Iterator[Place]:
        """The folders in a folder."""
        listing = self._client.get_paginator("list_objects_v2")
        with _sentences(f"list {folder}"):
            for page in listing.paginate(Bucket=folder.bucket, Prefix=_prefix(folder), Delimiter="/"):
                for found in page.get("CommonPrefixes", []):
                    yield Place("s3", folder.bucket, found["Prefix"].rstrip("/"))

    def copy(self, source: Place, target: Place) -> bool:
        """Copy an object inside the store; a large one in parts."""
        with _sentences(f"copy {source} to {target}"):
            if not self.exists(source):
                return False
            self._client.copy({"Bucket": source.bucket, "Key": source.path}, target.bucket, target.path)
            return True

    def exists(self, file: Place) -> bool:
        """Whether an object is there."""
        from botocore.exceptions import ClientError

        with _sentences(f"look for {file}"):
            try:
                self._client.head_object(Bucket=file.bucket, Key=file.path)
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                    return False
                raise
        return True

    def delete(self, file: Place) -> None:
        """Delete an object."""
        with _sentences(f"delete {file}"):
            self._client.delete_object(Bucket=file.bucket, Key=file.path)


def _prefix(folder: Place) -> str:
    return f"{folder.path}/" if folder.path else ""


@contextmanager
def _sentences(action: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError, OSError) as error:
        raise LakehouseError(
            f"Cannot {action}: {error}.",
            next_step="Check that the store runs and that SLUICE_OBJECT_STORE__* describe it.",
        ) from error
