"""What is watched of a driver on its host while it runs: the size of its log, and whether the kernel kills for want of
memory. The module imports little, because it runs in the attendant of each driver.

A full log is copied and then truncated. The driver keeps its log open for appending for months, so the file itself has
to stay. Lines that it writes between the copy and the truncation are lost: a few in many megabytes.

SIGKILL does not say who sent it. The kernel counts the processes of a control group that it killed because memory ran
out: `oom_kill` in `memory.events` (version 2) or `memory.oom_control` (version 1). The count says neither which process
nor when, so it is compared with a sample of a few seconds before.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Callable
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
        shutil.copyfile(log_file, draft)
        shutil.copymode(log_file, draft)
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


COUNTED_EVERY_SECONDS = 5.0
"""How often the counter is read. A kill counts as the cause of a death within the next two looks."""

_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def count_memory_kills(*, groups: Path = _GROUPS, mount: Path = _MOUNT) -> int | None:
    """How many processes of this process's control group were killed because memory ran out.

    Parameters
    ----------
    groups: the file that names the groups of this process. mount: where control groups are mounted.

    Returns
    -------
    The count; none when the kernel does not report it here, as without the memory controller.
    """
    for file in _counters(groups, mount):
        try:
            words = dict(line.split(maxsplit=1) for line in file.read_text().splitlines() if " " in line)
        except OSError:
            continue
        if "oom_kill" in words:
            return int(words["oom_kill"])
    return None


def _counters(groups: Path, mount: Path) -> list[Path]:
    """The files that may have the counter. In a container its own group is often mounted as the root."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "memory":
            top, name = mount / "memory", "memory.oom_control"
        elif controllers == "":
            top, name = mount, "memory.events"
        else:
            continue
        found += [top / group.lstrip("/") / name, top / name]
    return found


class MemoryKillWatch:
    """Remembers the counter of some seconds ago, so that a kill differs from an earlier one.

    Parameters
    ----------
    count: reads the counter.
    """

    def __init__(self, count: Callable[[], int | None] = count_memory_kills) -> None:
        self._count = count
        self._samples: deque[int | None] = deque([count()], maxlen=2)
        self._ended = threading.Event()

    def start(self) -> MemoryKillWatch:
        """Sample the counter in a background thread until `stop`, or until this process ends."""
        threading.Thread(target=self._keep_sampling, name="memory-kill-watch", daemon=True).start()
        return self

    def stop(self) -> None:
        """Take no more samples."""
        self._ended.set()

    def sample(self) -> None:
        """Remember the counter as it is now, and the sample before."""
        self._samples.append(self._count())

    def has_killed(self) -> bool:
        """Whether the kernel has killed a process of this group since the last sample but one.

        A dying process with much memory takes a second or two to end, and a sample may be taken in that time.
        """
        now, before = self._count(), self._samples[0]
        return now is not None and before is not None and now > before

    def _keep_sampling(self) -> None:
        while not self._ended.wait(COUNTED_EVERY_SECONDS):
            self.sample()
