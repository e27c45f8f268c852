"""Whether the process of an application may continue: it reports to the ledger, and looks at what it has worn out.

The ledger counts an application as dead that has not reported for a while, and others may have its items from then on:
so it ends at once when its reports do not arrive, and when its loop hangs. A process whose threads, open files or heap
have grown does no further item; the next item gets a new one.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

from sluice.errors import LaunchError, LedgerError
from sluice.ledger.applications import DEAD_AFTER, beat
from sluice_spark.session.item_sessions import ItemSessions
from sluice_spark.session.jvm import jvm_of
from sluice_spark.work.application import WorkApplication

_log = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
LOST_EXIT_CODE = 70
"""The exit code of an application that ended itself because the ledger counts it as dead, as in sysexits.h."""

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


@contextmanager
def reporting(application: WorkApplication) -> Iterator[None]:
    """Report to the ledger while the block runs; the process ends when it counts as dead there, or its loop hangs.

    Raises
    ------
    LaunchError: when the ledger counts the application as ended already.
    """
    ended = threading.Event()
    _require_alive(beat(application.ledger, application.application), application.application)
    thread = threading.Thread(target=_report, args=(application, ended), name="application-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(BEAT_SECONDS)


def _report(application: WorkApplication, ended: threading.Event) -> None:
    """Reports of a process whose loop hangs would keep its items from every other application."""
    heard_at = time.monotonic()
    while not ended.wait(BEAT_SECONDS):
        asked_at = time.monotonic()
        if asked_at - application.turned_at > DEAD_AFTER.total_seconds():
            _end_process("its loop hangs, so that it claims nothing and passes on no request to stop")
        try:
            if not beat(application.ledger, application.application):
                _end_process("the ledger counts this application as ended, and others may have its items")
            heard_at = asked_at
        except LedgerError as error:
            _log.warning("no report reaches the ledger: %s", error)
        except Exception:  # noqa: BLE001  # without this thread the process would work on while it counts as dead
            _log.exception("a report failed; the next one follows")
        if time.monotonic() - heard_at > DEAD_AFTER.total_seconds():
            _end_process("the ledger was away until this application counts as dead")


def _require_alive(is_alive: bool, application: str) -> None:
    if not is_alive:
        raise LaunchError(
            f"Application {application} has ended in the ledger before it began.",
            next_step="Nothing is to be done: who waits for it starts another one.",
        )


def _end_process(because: str) -> None:
    _log.critical("the process ends now: %s", because)
    logging.shutdown()
    os._exit(LOST_EXIT_CODE)
