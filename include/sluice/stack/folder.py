"""Where everything of one local stack lies."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sluice.settings import project_root

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


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
        """The settings of everything that runs in the stack, `KEY=value` lines."""
        return self.data / "environment"

    @property
    def credentials(self) -> Path:
        """The generated credentials."""
        return self.data / "credentials.json"

    @property
    def ports(self) -> Path:
        """The ports that were chosen."""
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
    def lock(self) -> Path:
        """Held by the one command that changes the stack."""
        return self.data / "lock"

    def log(self, service: str) -> Path:
        """The log file of one service."""
        return self.logs / f"{service}.log"

    def create(self) -> None:
        """Make the folders; everything below belongs to its user alone."""
        for folder in (self.data, self.records, self.logs):
            folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)


def stack_folder() -> StackFolder:
    """The folder of this project's stack: `SLUICE_DATA`, or `.sluice` below the project's root."""
    home = Path(os.environ.get("SLUICE_HOME") or project_root())
    return StackFolder(Path(os.environ.get("SLUICE_DATA") or home / ".sluice").expanduser().resolve())


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read; a reader sees the old content or the new, never a part.

    Parameters
    ----------
    path: the file; its folder exists.
    text: the whole content.
    """
    # mkstemp creates with mode 0600, so that a secret is never readable, not even for a moment.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
