"""Keeps a driver's log within bounds while the driver writes it: what is full is copied aside, and the log is emptied.

The driver holds its log open for months, appending, and knows nothing of this; so the file itself stays. What it writes
between the copy and the emptying is lost: a few lines in as many megabytes. Light: this runs in the small attendant.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

LARGEST_LOG_VARIABLE = "SLUICE_DRIVER_LOG_BYTES"
"""The variable of the setting `driver_log_bytes`; the attendant reads it without the rest of the settings."""

LARGEST_LOG_BYTES = 64 * 1024**2
"""From which size on a log is copied aside. A line for each batch: about a week of a stream with a batch a second."""

COPIES = 3
"""How many full logs are kept beside the present one; `<name>.1` is the newest."""

LOOK_SECONDS = 5.0
"""How often the size is looked at. A loop of errors that writes ten megabytes a second is 50 MB beyond the bound."""


def rotate_if_full(log_file: Path, *, largest_bytes: int, copies: int = COPIES) -> bool:
    """Copy a full log aside and empty it. Returns whether it was full.

    Raises
    ------
    OSError: when the disk or the folder refuses; the log is then as it was.
    """
    if log_file.stat().st_size < largest_bytes:
        return False
    import shutil  # it brings compression with it, and most attendants never need it

    for number in range(copies - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):  # so many copies there have not been yet
            _copy_of(log_file, number).replace(_copy_of(log_file, number + 1))
    draft = log_file.with_name(f"{log_file.name}.draft")
    shutil.copyfile(log_file, draft)
    draft.replace(_copy_of(log_file, 1))
    os.truncate(log_file, 0)
    return True


def keep_rotating(log_file: Path) -> None:
    """Look after a log on a thread of this process, for as long as the process lives."""
    largest_bytes = int(os.environ.get(LARGEST_LOG_VARIABLE, LARGEST_LOG_BYTES))

    def look() -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_SECONDS):
            with contextlib.suppress(OSError):  # a full disk or a removed log: the driver is not to be disturbed by it
                rotate_if_full(log_file, largest_bytes=largest_bytes)

    threading.Thread(target=look, name="log-rotation", daemon=True).start()


def _copy_of(log_file: Path, number: int) -> Path:
    return log_file.with_name(f"{log_file.name}.{number}")
