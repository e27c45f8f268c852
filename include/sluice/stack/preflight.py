"""What is checked before anything is created or started."""

from __future__ import annotations

import shutil
from pathlib import Path

from sluice.errors import StackError

MINIMUM_FREE_BYTES = 1024**3
"""A stack's own files take about 150 MB, the demo's data and logs some hundred more. Below this bound a service would
stop in the middle of its work."""


def check_disk(data: Path, *, minimum_free_bytes: int = MINIMUM_FREE_BYTES) -> None:
    """Refuse to start on a disk that is as good as full.

    Parameters
    ----------
    data: the stack's data folder; it need not exist.
    minimum_free_bytes: the bound.

    Raises
    ------
    StackError: when there is less space, or when the folder cannot be on any disk.
    """
    folder = next(path for path in (data, *data.parents) if path.exists())
    if not folder.is_dir():
        raise StackError(f"The stack's data folder cannot be {data}: {folder} is a file.")
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < minimum_free_bytes:
        raise StackError(
            f"The disk of {data} is full: {free_bytes / 1024**2:.0f} MiB are free, "
            f"the stack needs at least {minimum_free_bytes / 1024**2:.0f} MiB.",
            next_step="Free some space, or set SLUICE_DATA to a folder on another disk.",
        )
