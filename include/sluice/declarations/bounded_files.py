"""Reads the files that declarations consist of, and nothing that could keep a reader waiting or fill its memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

LARGEST_CODE_BYTES = 4 * 1024**2
"""Of a file with a transformation, or a query."""


class UnreadableFileError(ValueError):
    """A file that is not read; its text says why, and the file is `it`."""


def read_bounded(file: Path, *, most_bytes: int) -> bytes:
    """The bytes of a regular file, or of one that a link leads to.

    A queue, a device or a socket is refused before it is opened: opening it could wait for ever, or do something.

    Parameters
    ----------
    most_bytes: the size beyond which the file is refused.

    Raises
    ------
    UnreadableFileError: when it cannot be read, is no regular file, or is too large.
    """
    try:
        _require_regular(file.stat())
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            status = os.fstat(descriptor)
            _require_regular(status)  # it may have been exchanged since
            content = opened.read(min(status.st_size, most_bytes) + 1)  # and no buffer of the size that is allowed
            if len(content) > status.st_size:  # it grows
                content += opened.read(most_bytes + 1 - len(content))
    except (OSError, ValueError) as error:
        if isinstance(error, UnreadableFileError):
            raise
        raise UnreadableFileError(f"it cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > most_bytes:
        raise UnreadableFileError(f"it is larger than {most_bytes} bytes")
    return content


def _require_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise UnreadableFileError("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFileError("it is no regular file but a queue, a device or a socket")
