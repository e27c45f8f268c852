"""Publishes staged batches on a thread of the driver, while Spark works on the next: what is staged is safe, so nobody
has to wait for its commit. Several may wait to be published together; a table that gets a snapshot every half minute
stays small and quick.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from sluice_spark.delivery.publisher import StagedByOutput

_log = logging.getLogger(__name__)

Publish: TypeAlias = "Callable[[Sequence[StagedByOutput]], None]"
"""Makes batches visible, in order, and sees to all that follows from it."""


class OverlappedPublication:
    """The batches that wait for their publication, and the thread that publishes them when they are due.

    They are due a fixed time after the first of them was staged, with or without new input, and when the run ends.
    Without such a time each is published alone, and Spark is never further ahead than the batch it works on. Used as a
    context manager: leaving it publishes what is left, unless the block failed; then the next run does it.

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
        if self._failure is not None:  # it knows the reason; a query that fails beside it shows what follows from it
            raise self._failure
        if kind is None:
            self._publish_waiting()

    def add(self, batch: StagedByOutput) -> None:
        """Let a staged batch wait for its publication; without groups, as soon as the batch before it is visible.

        Raises
        ------
        Exception: that of a publication that has failed; no further batch is taken.
        """
        with self._changed:
            if self._every_seconds is None:
                self._changed.wait_for(lambda: not self._waiting or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            if self._due_at is None:
                self._due_at = time.monotonic() + (self._every_seconds or 0.0)
            self._waiting.append(batch)
            self._changed.notify_all()

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
        """Wait until something is due. Returns whether it is; otherwise the run ends."""
        with self._changed:
            while not self._is_ending:
                left = None if self._due_at is None else self._due_at - time.monotonic()
                if left is not None and left <= 0:
                    return True
                self._changed.wait(left)
            return False

    def _publish_waiting(self) -> None:
        with self._changed:
            batches, self._due_at = tuple(self._waiting), None
        if batches:
            self._publish(batches)
        with self._changed:
            del self._waiting[: len(batches)]
            self._changed.notify_all()
