"""Opens the log files of drivers, and removes old ones: a folder with one file for each run grows for ever."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterable
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from sluice.ledger.run_values import RunObservation

_FILE_MODE, _FOLDER_MODE = 0o640, 0o750
"""Logs hold values of rows: they are for the user of the drivers and for their group."""


def open_log(file: Path) -> BinaryIO:
    """Open the log of a driver or of an application for appending; its folder is made.

    Raises
    ------
    OSError: when it cannot be opened.
    """
    file.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _FILE_MODE)
    os.fchmod(opened, _FILE_MODE)  # also of a file that is there, and whatever the process's mask is
    return os.fdopen(opened, "ab")


def open_log_of(stream: str, file: Path, *, logs: Path) -> BinaryIO:
    """Open the log of a stream's driver for reading. The ledger names the file, and drivers write into the ledger: so
    it must lie in the stream's own folder, and be neither a link to another place nor a pipe, which is read for ever.
    The folder is opened first: the driver may exchange what lies in it meanwhile.

    Parameters
    ----------
    logs: the folder with one folder for each stream.

    Raises
    ------
    OSError: when it cannot be read, or lies elsewhere.
    """
    folder = logs.resolve() / stream
    if file.parent.resolve() != folder:
        raise PermissionError(0, f"it does not lie in {folder}")
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        opened = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise PermissionError(0, "it is no regular file")
    return os.fdopen(opened, "rb")


def remove_driver_logs(
    folder: Path, *, before: datetime, newest_runs: Iterable[RunObservation], dry_run: bool = False
) -> int:
    """Remove the log files of drivers on this host that were last written before a time.

    Those of the newest run of every stream stay, whatever their age: it may be live and quiet, and `sluice stream logs`
    shows it. What lies beside a log under its name (rotated logs, the note of the exit) stays and goes with it.

    Parameters
    ----------
    folder: with one folder for each stream.
    newest_runs: the newest run of every stream that ever ran.
    dry_run: only count.

    Returns
    -------
    How many files were removed, or would be.
    """
    kept = {run.log_file.name for run in newest_runs if run.log_file is not None}
    return _remove(_written_before(folder, "*/*", before=before), kept=kept, dry_run=dry_run)


def remove_task_logs(folder: Path, *, before: datetime, dags: Collection[str], dry_run: bool = False) -> int:
    """Remove the logs of Airflow's tasks on this host that were last written before a time, and folders left empty.

    Parameters
    ----------
    folder: Airflow's `[logging] base_log_folder`, which has a folder `dag_id=…` for each DAG.
    dags: whose logs are meant. A task of a continuous stream may be deferred for months; its log is not.
    dry_run: only count.

    Returns
    -------
    How many files were removed, or would be.
    """
    folders = {f"dag_id={dag}" for dag in dags}
    old = [
        file
        for file in _written_before(folder, "dag_id=*/**/*", before=before)
        if file.relative_to(folder).parts[0] in folders
    ]
    removed = _remove(old, kept=(), dry_run=dry_run)
    for place in sorted({parent for file in old for parent in file.parents}, reverse=True):
        if place.is_relative_to(folder) and place != folder:
            with contextlib.suppress(OSError):  # it is not empty
                place.rmdir()
    return removed


def _remove(files: Iterable[Path], *, kept: Collection[str], dry_run: bool) -> int:
    """Remove files, except those whose names begin with a kept one. Returns how many."""
    chosen = [file for file in files if not any(file.name.startswith(name) for name in kept)]
    if not dry_run:
        for file in chosen:
            file.unlink(missing_ok=True)
    return len(chosen)


def _written_before(folder: Path, pattern: str, *, before: datetime) -> list[Path]:
    """The files of a folder that were last written before a time; one that goes away meanwhile is left out."""
    found = []
    for file in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):  # another supervisor on this host deletes old logs too
            if file.is_file() and file.stat().st_mtime < before.timestamp():
                found.append(file)
    return found
