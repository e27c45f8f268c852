"""What a process gathers although everything is closed after each item: its bounds, as they are measured."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass, field

import psutil

_SHARE_OF_DESCRIPTORS = 0.5
"""Of the limit of open files, which a process may reach at any moment above what it has when it is idle."""

MOST_THREADS = 1000
"""Of the JVM and of Python; an idle application has about 150, whatever it has done."""

MOST_HOURS = 24
"""Modules that a transformation has imported from elsewhere are not part of the digest, and stay no longer."""

_LOOK_SECONDS = 10.0


@dataclass(slots=True)
class Wear:
    """Looks at the processes of this application from time to time."""

    began_at: float = field(default_factory=time.monotonic)
    looked_at: float = 0.0

    def reason(self) -> str:
        """Why this process is to do no further item; empty while it may."""
        now = time.monotonic()
        if now - self.looked_at < _LOOK_SECONDS:
            return ""
        self.looked_at = now
        if now - self.began_at > MOST_HOURS * 3600:
            return f"it is {MOST_HOURS} hours old"
        for process in _processes():
            if (threads := process.num_threads()) > MOST_THREADS:
                return f"process {process.pid} has {threads} threads, more than {MOST_THREADS}"
            allowed = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] * _SHARE_OF_DESCRIPTORS
            if (files := process.num_fds()) > allowed:
                return f"process {process.pid} has {files} open files, more than {allowed:.0f}"
        return ""


def _processes() -> list[psutil.Process]:
    """This process, and the JVM that has started it when it was submitted."""
    own = psutil.Process(os.getpid())
    parent = own.parent()
    return [own, parent] if parent is not None and parent.name() == "java" else [own]
