"""Measures a fault by sources that no driver writes: the tables' own history, and the processes of the machine."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

from pyiceberg.table import Table

from sluice.ledger.batches import PublicationKey
from sluice.publication.staged_batch import read_summary

_LOOK_EVERY_SECONDS = 0.5
_DRIVER = re.compile(rb"run_stream\.py\0--stream=([a-z0-9_]+)\0--run-id=([0-9a-f-]+)")
_NOT_A_DRIVER = (b"/bin/sh\0", b"sluice.launching.attend")
"""A driver that still waits at its gate, and the parent that holds it there, carry the driver's command line too."""

_AT_REST = frozenset("TtZX")
"""States of a process that runs nothing: stopped, traced, ended. Source: proc_pid_stat(5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A snapshot of a stream's target that made batches visible.

    at_seconds: when it was committed, since the epoch. token, run_id: of the run that published it.
    """

    at_seconds: float
    token: int
    run_id: str
    key: PublicationKey


def publications(table: Table) -> list[Publication]:
    """Every publication that the table remembers, in the order in which they became visible."""
    found = []
    for snapshot in sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0):
        summary = None if snapshot.summary is None else read_summary(snapshot.summary.additional_properties)
        if summary is not None:
            found.append(
                Publication(
                    at_seconds=snapshot.timestamp_ms / 1000,
                    token=summary.token,
                    run_id=summary.run_id,
                    key=summary.key,
                )
            )
    return found


def breaches(history: Sequence[Publication]) -> list[str]:
    """Where a table's history shows that two drivers published: a token falls, or a batch comes back. Else nothing."""
    found = []
    for before, after in pairwise(history):
        if after.token < before.token:
            found.append(f"{after.key} was published under token {after.token}, after {before.token}")
        if (after.key.generation, after.key.batch) <= (before.key.generation, before.key.batch):
            found.append(f"{after.key} was published after {before.key}")
    return found


class DriverWatch:
    """Counts the drivers that run at the same moment, twice a second. A context manager.

    It looks at the machine's processes, not at the ledger: what counts is a living process that carries the command
    line of a driver and belongs to the drill's stack. One that is stopped, as by SIGSTOP, runs nothing.

    Parameters
    ----------
    data: the data folder of the stack, which its processes carry in their environment.
    """

    def __init__(self, data: Path) -> None:
        self._mark = f"={data}\0".encode()
        self._most: dict[str, int] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="driver-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def begin(self) -> None:
        """Reset the counts."""
        with self._lock:
            self._most = {}

    def most_at_once(self) -> Mapping[str, int]:
        """How many drivers of each stream ran at one moment at most, since `begin`."""
        with self._lock:
            return dict(self._most)

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_SECONDS):
            running = self._running()
            with self._lock:
                for stream, run_ids in running.items():
                    self._most[stream] = max(self._most.get(stream, 0), len(run_ids))

    def _running(self) -> Mapping[str, set[bytes]]:
        running: dict[str, set[bytes]] = defaultdict(set)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                found = _DRIVER.search(command)
                if found is None or any(word in command for word in _NOT_A_DRIVER):
                    continue
                state = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                if state not in _AT_REST and self._mark in (process / "environ").read_bytes():
                    running[found[1].decode()].add(found[2])
            except OSError:  # it has ended meanwhile
                continue
        return running


def seconds_since(moment: float) -> float:
    """Seconds of the wall clock since a moment of it, the clock of the snapshots and of this host's ledger."""
    return time.time() - moment
