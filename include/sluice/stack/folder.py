"""The data folder of a local stack: its files, which are private, and how one command changes it at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from sluice.errors import StackError
from sluice.settings import project_root

_PRIVATE = 0o700
_PRIVATE_FILE = 0o600

_OTHERS = 0o077
"""The permissions of other users."""

_FIRST_FILES = frozenset({"lock", "bootstrap.json", "credentials.json"})
"""A folder that holds one of them was made by Sluice, and opened by someone since."""

MINIMUM_FREE_BYTES = 1024**3
"""A stack's own files take about 150 MB, the demo's data and logs a few hundred more. With less than this a service
would stop in the middle of its work."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class StackFolder:
    """The data folder of one stack. Its resolved path is the stack's identity: two folders are two stacks.

    Parameters
    ----------
    data: the folder, absolute and without symbolic links.
    """

    data: Path

    @property
    def environment(self) -> Path:
        """The settings of everything that runs in the stack, variables as a shell reads them."""
        return self.data / "environment"

    @property
    def credentials(self) -> Path:
        """The generated credentials."""
        return self.data / "credentials.json"

    @property
    def ports(self) -> Path:
        """The chosen ports."""
        return self.data / "ports.json"

    @property
    def records(self) -> Path:
        """One record for each process that was started."""
        return self.data / "run"

    @property
    def logs(self) -> Path:
        """One log file for each service, and the folders of Airflow's tasks and Spark's drivers."""
        return self.data / "logs"

    @property
    def scratch(self) -> Path:
        """Where Spark keeps the files of its shuffles; emptied by `down`."""
        return self.data / "tmp"

    @property
    def lock(self) -> Path:
        """The file that the command which changes the stack holds a lock on."""
        return self.data / "lock"

    def log(self, service: str) -> Path:
        """The log file of one service."""
        return self.logs / f"{service}.log"

    def create(self) -> None:
        """Make the folders, and close existing ones: only their user can enter them and read what lies in them.

        Raises
        ------
        StackError: when the data folder belongs to another user, or holds other things than a stack and is open.
        """
        _require_own(self.data)
        for folder in (self.data, self.records, self.logs, self.scratch):
            folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            folder.chmod(_PRIVATE)
        for file in (self.environment, self.credentials):
            if file.exists():
                file.chmod(_PRIVATE_FILE)


def _require_own(data: Path) -> None:
    """Refuse a folder that closing would take from others: one of another user, or one with other people's files."""
    if not data.exists():
        return
    seen = data.stat()
    if seen.st_uid != os.geteuid():
        raise StackError(
            f"The stack's data folder {data} belongs to another user (uid {seen.st_uid}), who could change it.",
            next_step="Set SLUICE_DATA to a folder of your own.",
        )
    names = {entry.name for entry in data.iterdir()}
    if seen.st_mode & _OTHERS and names and not names & _FIRST_FILES:
        raise StackError(
            f"The stack's data folder {data} is open to other users (mode {seen.st_mode & 0o777:o}) and holds files "
            "that are not a stack's.",
            next_step=f"Set SLUICE_DATA to a new folder, or run `chmod 700 {data}` when all of it is yours alone.",
        )


def stack_folder() -> StackFolder:
    """The folder of this project's stack: `SLUICE_DATA`, or `.sluice` below the project's root."""
    home = Path(os.environ.get("SLUICE_HOME") or project_root())
    return StackFolder(Path(os.environ.get("SLUICE_DATA") or home / ".sluice").expanduser().resolve())


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read. A reader sees the whole old content or the whole new one.

    Parameters
    ----------
    path: the file; its folder exists.
    text: the whole content.
    """
    # mkstemp creates the file with mode 0600, so that a secret is never readable by others, not even for a moment.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_disk(data: Path, *, minimum_free_bytes: int = MINIMUM_FREE_BYTES) -> None:
    """Refuse to start a stack on a disk that is nearly full.

    Parameters
    ----------
    data: the stack's data folder; it need not exist.
    minimum_free_bytes: how much space must be free.

    Raises
    ------
    StackError: when there is less space, or when the data folder is a file or lies below one.
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


@contextmanager
def exclusive(folder: StackFolder) -> Iterator[None]:
    """Hold the stack's lock. The kernel releases it when the process ends, however it ends.

    Parameters
    ----------
    folder: the stack's folder; it exists.

    Raises
    ------
    StackError: when another command holds it.
    """
    with folder.lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise StackError(
                f"Another `sluice stack` command (pid {file.read().strip() or 'unknown'}) is changing this stack.",
                next_step="Wait until it ends, or stop it with Ctrl-C.",
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt inside, as SIGINT does; ignore a second signal."""
    with _handled(_interrupt):
        yield


@contextmanager
def uninterruptible() -> Iterator[None]:
    """Ignore the signals inside, so that a clean-up, whose duration is limited, is not interrupted itself."""
    with _handled(signal.SIG_IGN):
        yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    for other in _SIGNALS:  # the clean-up that follows takes limited time; a second Ctrl-C must not break it off
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(signal.Signals(number).name)


@contextmanager
def _handled(handler: signal._HANDLER) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
