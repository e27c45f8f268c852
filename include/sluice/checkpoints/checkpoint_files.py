"""The port to the files of a checkpoint folder, with one adapter for each kind of storage.

Spark writes checkpoints through Hadoop's file systems and not through the tables' file access, so they have their own
port. An adapter reads only files below its folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.checkpoints.local_checkpoint_files import LocalCheckpointFiles
from sluice.checkpoints.s3_checkpoint_files import S3CheckpointFiles
from sluice.errors import CheckpointError
from sluice.settings import ObjectStoreSettings


class CheckpointFiles(Protocol):
    """Access to the files of one checkpoint folder. Paths are relative to it, with forward slashes."""

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


def open_checkpoint_files(location: str, object_store: ObjectStoreSettings) -> CheckpointFiles:
    """The files of the checkpoint folder at a URI.

    Parameters
    ----------
    location: `file://…`, `s3a://…` or `s3://…`.
    object_store: the settings of the S3 store; not used for a local folder.

    Raises
    ------
    CheckpointError: when the URI has another scheme.
    """
    scheme = urlsplit(location).scheme
    if scheme == "file":
        return LocalCheckpointFiles(location)
    if scheme in ("s3", "s3a"):
        return S3CheckpointFiles(location, object_store)
    raise CheckpointError(
        f"The checkpoint {location} has the scheme {scheme or '(none)'}; supported are file, s3 and s3a.",
        next_step="Set SLUICE_CHECKPOINTS to a URI of one of these.",
    )
