"""The port to the files of a checkpoint folder, with one adapter for each kind of storage.

Spark writes checkpoints through Hadoop's file systems and not through the tables' file access, so they have their own
port. An adapter reads only files below its folder.

The state of a stateful stream is copied into a new checkpoint at one version. A start after batch N loads version N + 1
of every store. What the old checkpoint has beyond it is of a batch that was planned and is left behind, so it is not
copied. Everything else below `state` is: the changes and full states up to the version, the files that a full state of
RocksDB refers to, and the descriptions of the operators.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from sluice.checkpoints.checkpoint_layout import FileObservation, checksum_path, is_hidden, state_stores
from sluice.checkpoints.s3_checkpoint_files import S3CheckpointFiles
from sluice.errors import CheckpointError, CheckpointStorageError
from sluice.settings import ObjectStoreSettings

_log = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_MAY_READ = "Check that the folder's disk is mounted and that this user may read it."


class ReadableCheckpoint(Protocol):
    """Reads the files of one checkpoint folder. Paths are relative to it, with forward slashes."""

    @property
    def location(self) -> str:
        """The URI of the folder."""
        ...

    def list_files(self, folder: str = "") -> Sequence[FileObservation]:
        """Every file below `folder`, sorted by path; none when the folder does not exist.

        A live stream writes and removes files meanwhile: a file that is removed during the listing is left out.

        Raises
        ------
        CheckpointError: when the storage does not answer.
        """
        ...

    def read_text(self, path: str) -> str | None:
        """The text of one file, unset when it does not exist. Bytes that are not UTF-8 become replacement characters.

        Raises
        ------
        CheckpointError: when the storage does not answer.
        """
        ...

    def read_bytes(self, path: str) -> bytes | None:
        """The content of one file, unset when it does not exist.

        Raises
        ------
        CheckpointError: when the storage does not answer.
        """
        ...


class CheckpointFiles(ReadableCheckpoint, Protocol):
    """Access to the files of one checkpoint folder."""

    def write_text(self, path: str, text: str) -> None:
        """Write one file, in place of one that exists. Readers see the old or the new one, and never a part.

        Raises
        ------
        CheckpointError: when the storage does not answer.
        """
        ...

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write one file as `write_text` does.

        Raises
        ------
        CheckpointError: when the storage does not answer.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove one file; nothing happens when it does not exist.

        Raises
        ------
        CheckpointError: when the storage does not answer.
        """
        ...

    def remove_folders(self) -> None:
        """Remove the folder and those below it that hold no file any more; one that holds some stays.

        Raises
        ------
        CheckpointError: when the storage does not answer.
        """
        ...


def require_below(location: str, root: str, *, path: str) -> None:
    """Require that a folder is the one at a path below the root of the checkpoints, with every link followed: what is
    removed must not be another folder.

    Raises
    ------
    CheckpointError: when it is another one.
    CheckpointStorageError: when it may not be looked at.
    """
    places = [(location, f"{root.rstrip('/')}/{path}")]
    if urlsplit(location).scheme == "file" and urlsplit(root).scheme == "file":
        folder, top = (Path(unquote(urlsplit(one).path)) for one in (location, root))
        places += _without_links(folder, wanted=top.resolve() / path)
    is_plain = all(part not in ("", ".", "..") for part in path.split("/"))
    if not is_plain or any(found != wanted for found, wanted in places):
        raise CheckpointError(
            f"{location} is not the folder {path} of {root}: it lies elsewhere, or is a link or has some.",
            next_step="It stays. Remove it by hand, when it is known what it is.",
        )


def _without_links(folder: Path, *, wanted: Path) -> list[tuple[str, str]]:
    """Where a folder is, and where each link in it leads, beside where they are wanted."""
    try:
        inside = [Path(parent, name) for parent, *names in os.walk(folder) for name in chain(*names)]
        links = [folder, *(one for one in inside if one.is_symlink())]
        return [(str(one.resolve()), str(wanted / one.relative_to(folder))) for one in links]
    except RuntimeError:  # Python 3.11 says of links in a circle
        return [(str(folder), "")]
    except OSError as error:  # a folder that may be listed, and not entered
        raise CheckpointStorageError(
            f"The folder {folder} cannot be looked at: {error.strerror or error}.", next_step=_MAY_READ
        ) from error


def open_checkpoint_files(
    location: str, object_store: ObjectStoreSettings, *, skips_closed: bool = False
) -> CheckpointFiles:
    """The files of the checkpoint folder at a URI.

    Parameters
    ----------
    location: `file://…`, `s3a://…` or `s3://…`.
    object_store: the settings of the S3 store; not used for a local folder.
    skips_closed: whether what may not be looked at in a local folder is left out of a list, with a warning.

    Raises
    ------
    CheckpointError: when the URI has another scheme.
    """
    scheme = urlsplit(location).scheme
    if scheme == "file":
        return LocalCheckpointFiles(location, skips_closed=skips_closed)
    if scheme in ("s3", "s3a"):
        return S3CheckpointFiles(location, object_store)
    raise CheckpointError(
        f"The checkpoint {location} has the scheme {scheme or '(none)'}; supported are file, s3 and s3a.",
        next_step="Set SLUICE_CHECKPOINTS to a URI of one of these.",
    )


class LocalCheckpointFiles:
    """The files below a `file://` URI. See `sluice.checkpoints.checkpoint_files.CheckpointFiles`."""

    def __init__(self, location: str, *, skips_closed: bool = False) -> None:
        self.location = location.rstrip("/")
        self._root = Path(unquote(urlsplit(location).path))
        self._skips_closed = skips_closed

    def list_files(self, folder: str = "") -> Sequence[FileObservation]:
        """Every file below `folder`."""
        try:
            found = [
                Path(parent) / name
                for parent, _, names in os.walk(self._root / folder, onerror=self._refuse)
                for name in names
            ]
            return sorted((seen for path in found if (seen := self._observe(path))), key=lambda seen: seen.path)
        except OSError as error:
            raise self._problem("listed", error) from error

    def read_text(self, path: str) -> str | None:
        """The text of one file, unset when it does not exist."""
        content = self.read_bytes(path)
        return None if content is None else content.decode("utf-8", errors="replace")

    def read_bytes(self, path: str) -> bytes | None:
        """The content of one file, unset when it does not exist."""
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._problem(f"read ({path})", error) from error

    def write_text(self, path: str, text: str) -> None:
        """Write one file, in place of one that exists."""
        self.write_bytes(path, text.encode())

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write one file, in place of one that exists."""
        file = self._root / path
        part = file.with_name(f".{file.name}.part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(content)
            part.replace(file)
        except OSError as error:
            raise self._problem(f"written ({path})", error) from error

    def remove(self, path: str) -> None:
        """Remove one file; nothing happens when it does not exist."""
        try:
            (self._root / path).unlink(missing_ok=True)
        except OSError as error:
            raise self._problem(f"changed ({path})", error) from error

    def remove_folders(self) -> None:
        """Remove the empty folders."""
        for parent, _, _ in os.walk(self._root, topdown=False):
            with suppress(OSError):  # it holds something, or another process has removed it
                Path(parent).rmdir()

    def _observe(self, path: Path) -> FileObservation | None:
        try:
            status = path.stat()
        except FileNotFoundError:  # Spark purges old files while it runs
            return None
        except OSError as error:
            self._refuse(error)
            return None
        return FileObservation(
            path=path.relative_to(self._root).as_posix(),
            size_bytes=status.st_size,
            # From nanoseconds, cut off as Hadoop does: a float rounds up what lies just before the next millisecond.
            modified_at=_EPOCH + timedelta(microseconds=status.st_mtime_ns // 1000),
        )

    def _refuse(self, error: OSError) -> None:
        """Raise what keeps a file or folder from being looked at, unless it is gone or is to be left out."""
        if isinstance(error, FileNotFoundError):
            return
        if not self._skips_closed or error.filename == str(self._root):
            raise error
        _log.warning("%s is left out: %s", error.filename, error.strerror)

    def _problem(self, done: str, error: OSError) -> CheckpointError:
        sentence = f"The folder {self.location} cannot be {done}: {error.strerror or error}."
        if isinstance(error, IsADirectoryError | NotADirectoryError):  # its storage has answered: it is damaged
            return CheckpointError(sentence, next_step="Write it back as it was; a wrong restore does this.")
        return CheckpointStorageError(sentence, next_step=_MAY_READ)


STATE = "state"

_COPIES_AT_ONCE = 8
"""Enough to hide an object store's latency; a file of the state is in memory while it is copied."""


def state_files(checkpoint: CheckpointFiles, *, version: int) -> tuple[FileObservation, ...]:
    """The files that the state has at a version, and those that belong to none.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    files = checkpoint.list_files(STATE)
    later = {found.file.path for store in state_stores(files).values() for found in store if found.version > version}
    left = later | {checksum_path(path) for path in later}
    return tuple(seen for seen in files if seen.path not in left and not is_hidden(seen.path))


def copy_files(old: CheckpointFiles, new: CheckpointFiles, files: Sequence[FileObservation]) -> None:
    """Copy files to the same paths of another checkpoint. A second call copies them again.

    Raises
    ------
    CheckpointError: when a file is gone, or a storage does not answer.
    """

    def copy(seen: FileObservation) -> None:
        content = old.read_bytes(seen.path)
        if content is None:
            raise CheckpointError(
                f"{seen.path} of the checkpoint {old.location} is gone while it is copied.",
                next_step="Find out what changes the checkpoint of a stream that is stopped, and repeat the command.",
            )
        new.write_bytes(seen.path, content)

    with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
        for _ in pool.map(copy, files):
            pass
