"""Ends a driver that does not stop: its main thread hangs, and from outside it may be out of sight and reach."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from sluice_spark.run.stop_request import StopRequest

_log = logging.getLogger(__name__)

STOPPED_WITHIN_SECONDS = 180.0
"""From the request to the end of the process. A graceful stop takes up to 110 s, the supervisor gives it 120 s; what
still works then hangs: in a call of Spark's JVM, in a sink, in the user's code."""

WEDGED_EXIT_CODE = 70
"""The exit code of a driver that ended itself: an internal error, by the convention of sysexits.h."""

_POLL_SECONDS = 1.0


class Watchdog:
    """A thread that ends the process when it still works long after it was asked to stop. A context manager.

    The request is also made when the lease is lost, so this bounds how long a driver without its lease lives.

    Parameters
    ----------
    end_process: ends the process at once, without cleaning up: what hangs would hang there, too.
    """

    def __init__(
        self,
        stop: StopRequest,
        *,
        within_seconds: float = STOPPED_WITHIN_SECONDS,
        end_process: Callable[[int], object] = os._exit,
    ) -> None:
        self._stop = stop
        self._within_seconds = within_seconds
        self._end_process = end_process
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            if self._ended.is_set():
                return
        if not self._ended.wait(self._within_seconds):
            _log.critical("still working %.0f s after the request to stop; the process ends now", self._within_seconds)
            logging.shutdown()
            self._end_process(WEDGED_EXIT_CODE)
