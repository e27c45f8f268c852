"""What a process gathers although everything is closed after each item: its bounds, as they are measured."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass, field

import psutil

from sluice_spark.session.item_sessions import ItemSessions
from sluice_spark.session.jvm import jvm_of

MOST_SHARE_OF_DESCRIPTORS = 0.5
"""Of the limit of open files, which a process may reach at any moment above what it has when it is idle."""

MOST_THREADS = 1000
"""Of the JVM and of Python; an idle application has about 150, whatever it has done."""

MOST_SHARE_OF_HEAP = 0.7
"""Of the JVM's heap, after a collection while no item runs: the rest is too small for the next items."""

MOST_HOURS = 24
"""Modules that a transformation has imported from elsewhere are not part of the digest, and stay no longer."""

_LOOK_SECONDS = 30.0


@dataclass(slots=True, kw_only=True)
class Wear:
    """Looks at the processes of this application from time to time; while items run, at its age only."""

    sessions: ItemSessions
    began_at_seconds: float = field(default_factory=time.monotonic)
    looked_at_seconds: float = field(default_factory=time.monotonic)

    def reason(self) -> str:
        """Why this process is to do no further item; empty while it may."""
        now = time.monotonic()
        if now - self.looked_at_seconds < _LOOK_SECONDS:
            return ""
        self.looked_at_seconds = now
        if now - self.began_at_seconds > MOST_HOURS * 3600:
            return f"it is {MOST_HOURS} hours old"
        if not self.sessions.is_idle:
            return ""
        return next((reason for process in _processes() if (reason := _worn(process))), "") or self._full_heap()

    def _full_heap(self) -> str:
        if self.sessions.spark is None:
            return ""
        jvm = jvm_of(self.sessions.spark)
        jvm.java.lang.System.gc()
        heap = jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage()
        used, most = heap.getUsed(), heap.getMax()
        if used <= most * MOST_SHARE_OF_HEAP:
            return ""
        return f"{used // 1024**2} of {most // 1024**2} MiB of its heap are in use after a collection"


def _worn(process: psutil.Process) -> str:
    if (threads := process.num_threads()) > MOST_THREADS:
        return f"process {process.pid} has {threads} threads, more than {MOST_THREADS}"
    most = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] * MOST_SHARE_OF_DESCRIPTORS
    if (files := process.num_fds()) > most:
        return f"process {process.pid} has {files} open files, more than {most:.0f}"
    return ""


def _processes() -> list[psutil.Process]:
    """This process, and the JVM that has started it when it was submitted."""
    own = psutil.Process(os.getpid())
    parent = own.parent()
    return [own, parent] if parent is not None and parent.name() == "java" else [own]
