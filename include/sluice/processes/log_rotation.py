"""Limit the size of a driver's log while the driver writes it: a full log is copied and then truncated.

The driver keeps its log open for appending for months, so the file itself has to stay. Lines that it writes between the
copy and the truncation are lost: a few in many megabytes. The module imports little, because it runs in the attendant.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

LARGEST_LOG_VARIABLE = "SLUICE_DRIVER_LOG_BYTES"
"""The variable of the setting `driver_log_bytes`; the attendant reads it without loading the other settings."""

LARGEST_LOG_BYTES = 64 * 1024**2
"""The size at which a log is rotated. A stream with a batch a second writes that much in about a week."""

COPIES = 3
"""How many rotated logs are kept; `<name>.1` is the newest."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""A full disk, or quota."""

LOOK_SECONDS = 5.0
"""How often the size is checked. An endless loop that logs ten megabytes a second exceeds the limit by 50 MB."""


def rotate_if_full(log_file: Path, *, largest_bytes: int, copies: int = COPIES) -> bool:
    """Copy a full log and truncate it. On a full disk it is truncated without a copy: it would fill the rest of it.

    Parameters
    ----------
    log_file: the log, which another process may be appending to.
    largest_bytes: the size at which it is full.
    copies: how many rotated logs are kept.

    Returns
    -------
    Whether it was full.

    Raises
    ------
    OSError: when the copy cannot be written for another reason than a full disk; the log is unchanged then.
    """
    if log_file.stat().st_size < largest_bytes:
        return False
    import shutil  # loads the compression modules, and most attendants never need it

    draft = log_file.with_name(f"{log_file.name}.draft")
    try:
        shutil.copy(log_file, draft)  # with its mode
    except OSError as error:
        draft.unlink(missing_ok=True)
        if error.errno not in _FULL:
            raise
    else:
        for number in range(copies - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):  # there are fewer copies yet
                _copy_of(log_file, number).replace(_copy_of(log_file, number + 1))
        draft.replace(_copy_of(log_file, 1))
    os.truncate(log_file, 0)
    return True


def rotated_logs(log_file: Path) -> list[Path]:
    """The parts of a log that are there, the oldest first: its copies, and the log itself."""
    parts = [*(_copy_of(log_file, number) for number in range(COPIES, 0, -1)), log_file]
    return [part for part in parts if part.exists()]


def keep_rotating(log_file: Path) -> None:
    """Rotate a log in a background thread until this process ends."""
    largest_bytes = int(os.environ.get(LARGEST_LOG_VARIABLE, LARGEST_LOG_BYTES))

    def look() -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_SECONDS):
            with contextlib.suppress(OSError):  # a full disk or a removed log must not affect the driver
                rotate_if_full(log_file, largest_bytes=largest_bytes)

    threading.Thread(target=look, name="log-rotation", daemon=True).start()


def _copy_of(log_file: Path, number: int) -> Path:
    return log_file.with_name(f"{log_file.name}.{number}")
