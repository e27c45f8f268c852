"""The files of a checkpoint folder, wherever it lies: one port, one adapter for each kind of storage.

Checkpoints are written by Spark through Hadoop's file systems, not through the tables' file access, so they have a port
of their own. An adapter only ever looks at files below its folder.
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
    """What can be done with the files of one checkpoint folder. Paths are relative to it, with forward slashes."""

    @property
    def location(self) -> str:
        """The URI of the folder."""
        ...

    def list_files(self, folder: str = "") -> Sequence[FileObservation]:
        """Every file below `folder`, in the order of their paths; none when the folder does not exist.

        A live stream writes and removes files meanwhile: a file that vanishes while it is listed is left out.

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


def open_checkpoint_files(location: str, object_store: ObjectStoreSettings) -> CheckpointFiles:
    """The files of the checkpoint folder at a URI.

    Parameters
    ----------
    location: `file://…`, `s3a://…` or `s3://…`.
    object_store: how the S3 store is reached; not looked at for a local folder.

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
        f"The checkpoint {location} lies on {scheme or 'no scheme'}; files can be looked at on file, s3 and s3a.",
        next_step="Set SLUICE_CHECKPOINTS to a URI of one of these.",
    )
