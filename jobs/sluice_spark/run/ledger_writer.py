"""Writes what a driver observes into the ledger, on a thread of its own: a slow ledger never slows a batch."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from tenacity import retry, retry_if_exception_type, stop_when_event_set, wait_exponential

from sluice.errors import LedgerError
from sluice.ledger.batches import record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.records.stream_batch import BatchObservation

_log = logging.getLogger(__name__)

_LONGEST_WAIT_SECONDS = 10.0
_CLOSING_SECONDS = 15.0
"""How long the end of a run waits for the last records. A ledger that is away longer loses the records of the last
batches and no data: the tables tell what they hold."""


class LedgerWriter:
    """A queue of batches and the thread that records them. A context manager: leaving it writes what is left."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._queue: queue.SimpleQueue[tuple[BatchObservation, Callable[[], None]] | None] = queue.SimpleQueue()
        self._giving_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ledger-writer", daemon=True)

    def __enter__(self) -> LedgerWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join(_CLOSING_SECONDS)
        self._giving_up.set()
        if self._thread.is_alive():
            _log.error("%d batches could not be recorded in the ledger", self._queue.qsize())

    def hand_over(self, batch: BatchObservation, recorded: Callable[[], None]) -> None:
        """Take a batch to record; returns at once. recorded: is called when the ledger has it."""
        self._queue.put((batch, recorded))

    def _work(self) -> None:
        while (handed_over := self._queue.get()) is not None:
            batch, recorded = handed_over
            try:
                self._record(batch)
                recorded()
            except LedgerError as error:
                _log.error("batch %d could not be recorded: %s", batch.key.batch, error)
            except Exception:  # noqa: BLE001  # a defect in one record must not end the thread that writes all the others
                _log.exception("batch %d could not be recorded", batch.key.batch)

    def _record(self, batch: BatchObservation) -> None:
        patiently = retry(
            retry=retry_if_exception_type(LedgerError),
            wait=wait_exponential(multiplier=0.2, max=_LONGEST_WAIT_SECONDS),
            stop=stop_when_event_set(self._giving_up),
            before_sleep=lambda _: _log.warning("the ledger does not answer; batch %d waits", batch.key.batch),
            reraise=True,
        )
        patiently(record_batch)(self._ledger, batch)
