"""Publishes staged batches on a thread of the driver, while Spark works on the next one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from pyiceberg.table import Table

from sluice.publication.staged_batch import StagedBatch

StagedByOutput: TypeAlias = Mapping[str, StagedBatch]
"""One batch, staged for each output."""

no_tables: Mapping[str, Table] = MappingProxyType({})

Publish: TypeAlias = Callable[[Sequence[StagedByOutput], Mapping[str, Table]], None]
"""Makes batches visible, in order, with all that follows from it. Takes the staging tables by output, loaded after the
last of the batches was staged; those that are missing have to be loaded."""

_log = logging.getLogger(__name__)


class OverlappedPublication:
    """Publishes waiting batches on a thread of its own when they are due.

    A group is due a fixed time after its first batch was staged, with or without new input, and when the run ends.
    Without groups each batch is published alone, and Spark is at most one batch ahead. A context manager: leaving it
    publishes what still waits, unless the block failed; then the next run publishes it.

    Parameters
    ----------
    publish: called on the thread, and at the end on the caller's.
    every_seconds: how long the first batch of a group waits; none when there are no groups.
    on_failure: is called when a publication has failed; leaving the block then raises its error.
    """

    def __init__(self, publish: Publish, *, every_seconds: float | None, on_failure: Callable[[], None]) -> None:
        self._publish = publish
        self._every_seconds = every_seconds
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._waiting: list[StagedByOutput] = []
        self._staging: Mapping[str, Table] = no_tables
        self._due_at: float | None = None
        self._is_ending = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="publication", daemon=True)

    def __enter__(self) -> OverlappedPublication:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join()
        if self._failure is not None:  # the cause; an error of the query beside it is a consequence
            raise self._failure
        if kind is None:
            self._publish_waiting()

    def add(self, batch: StagedByOutput, staging: Mapping[str, Table]) -> None:
        """Queue a staged batch for publication; without groups, once the previous batch is visible.

        Parameters
        ----------
        staging: the staging tables by output, as they were loaded after the batch was staged.

        Raises
        ------
        Exception: the error of a publication that has failed; no further batch is taken.
        """
        with self._changed:
            if self._every_seconds is None:
                self._changed.wait_for(lambda: not self._waiting or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            if self._due_at is None:
                self._due_at = time.monotonic() + (self._every_seconds or 0.0)
            self._waiting.append(batch)
            self._staging = staging
            self._changed.notify_all()

    def await_published(self) -> None:
        """Wait until everything that was added is visible.

        Raises
        ------
        Exception: the error of a publication that has failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._failure is not None)
            if self._failure is not None:
                raise self._failure

    def _work(self) -> None:
        while self._await_due():
            try:
                self._publish_waiting()
            except Exception as error:  # noqa: BLE001  # the thread's end: the error is kept whole and raised by the run
                _log.error("a publication failed, so the run ends: %s", error)
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                self._on_failure()
                return

    def _await_due(self) -> bool:
        """Wait until a publication is due. Returns False when the run ends instead."""
        with self._changed:
            while not self._is_ending:
                left = None if self._due_at is None else self._due_at - time.monotonic()
                if left is not None and left <= 0:
                    return True
                self._changed.wait(left)
            return False

    def _publish_waiting(self) -> None:
        with self._changed:
            batches, staging = tuple(self._waiting), self._staging
            self._due_at, self._staging = None, no_tables
        if batches:
            self._publish(batches, staging)
        with self._changed:
            del self._waiting[: len(batches)]
            self._changed.notify_all()
