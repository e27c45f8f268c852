"""Whether the kernel has lately killed a process for want of memory, by the counter of this process's control group.

SIGKILL does not say who sent it. The kernel counts the processes of a control group that it killed because memory ran
out: `oom_kill` in `memory.events` (version 2) or `memory.oom_control` (version 1). The count says neither which process
nor when, so it is compared with a sample of a few seconds before. The module imports little, because it runs in the
attendant of each driver.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

LOOK_SECONDS = 5.0
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
        while not self._ended.wait(LOOK_SECONDS):
            self.sample()
