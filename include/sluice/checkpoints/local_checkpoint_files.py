"""Checkpoint files in a folder of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.errors import CheckpointError


class LocalCheckpointFiles:
    """The files below a `file://` URI. See `sluice.checkpoints.checkpoint_files.CheckpointFiles`."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        self._root = Path(unquote(urlsplit(location).path))

    def list_files(self, folder: str = "") -> Sequence[FileObservation]:
        """Every file below `folder`."""
        try:
            found = [
                Path(parent) / name
                for parent, _, names in os.walk(self._root / folder, onerror=_raise_unless_missing)
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

    def _observe(self, path: Path) -> FileObservation | None:
        try:
            status = path.stat()
        except FileNotFoundError:  # Spark purges old files while it runs
            return None
        return FileObservation(
            path=path.relative_to(self._root).as_posix(),
            size_bytes=status.st_size,
            modified_at=datetime.fromtimestamp(status.st_mtime, UTC),
        )

    def _problem(self, done: str, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"The checkpoint {self.location} cannot be {done}: {error.strerror or error}.",
            next_step="Check that the folder's disk is mounted and that this user may read it.",
        )


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
