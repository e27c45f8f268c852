"""The request to stop a run, the signals that make it, and the watchdog that ends a driver which does not stop."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from sluice_spark.session.jvm import jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_log = logging.getLogger(__name__)


class StopReason(StrEnum):
    """Why a run ended without a failure; the ledger records it as the reason."""

    STOPPED = "stopped as requested"
    SIGNALLED = "stopped by a signal"
    EXHAUSTED = "everything that was there is processed"
    LEASE_LOST = "stopped because another run may have its lease"
    UNPUBLISHED = "stopped because a publication failed"
    CHECKPOINT_LOST = "stopped because its checkpoint is gone"
    LEDGER_AWAY = "stopped because the ledger was away, before its lease ran out"

    @property
    def may_publish(self) -> bool:
        """Whether a run that stops for this reason may still publish the batch that runs."""
        return self not in (StopReason.LEASE_LOST, StopReason.UNPUBLISHED)

    @property
    def is_orderly(self) -> bool:
        """Whether the run ended between two batches, and what it has written is all published."""
        return self in (StopReason.STOPPED, StopReason.SIGNALLED, StopReason.EXHAUSTED)


LEASE_ENDS = frozenset({StopReason.LEASE_LOST, StopReason.LEDGER_AWAY})
"""The ends that were not requested: the run stopped for its lease, and the stream is to be started again."""


class StopRequest:
    """A request to stop, made by the ledger or a signal and read by the run. The first one stays."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reason: StopReason | None = None
        self._asked_at: float | None = None

    @property
    def reason(self) -> StopReason | None:
        """Why the run is to stop; none while it is not."""
        return self._reason

    @property
    def seconds_ago(self) -> float:
        """How long ago the run was asked to stop; 0 while it is not."""
        return 0.0 if self._asked_at is None else monotonic() - self._asked_at

    def make(self, reason: StopReason) -> None:
        """Ask the run to stop."""
        if not self._event.is_set():
            self._reason = reason
            self._asked_at = monotonic()
            self._event.set()
            _log.info("stopping after this batch: %s", reason)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until the run is asked to stop, at most so long. Returns whether it is."""
        return self._event.wait(timeout_seconds)


class StopSignals:
    """SIGTERM and SIGINT of this process, passed on to every run in it. Whoever begins after one is stopped at once.

    Under `spark-submit` other processes signal the JVM, which would otherwise end at once, within a batch; so they are
    taken from Python and from Spark's JVM.
    """

    def __init__(self) -> None:
        self._stops: set[StopRequest] = set()
        self._has_come = False
        self._gateway: object | None = None

    def take_in_python(self) -> None:
        """Take the signals that Python gets. Python allows that to its main thread alone; elsewhere nothing changes."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self._come())

    def take_in_jvm(self, spark: SparkSession) -> None:
        """Take the signals that the JVM gets, from whichever thread first asks for that."""
        gateway = spark.sparkContext._gateway
        if self._gateway is gateway:
            return
        self._gateway = gateway
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # PySpark gives it no types
        jvm = jvm_of(spark)
        for name in ("TERM", "INT"):
            jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal(name), _JavaSignalHandler(self._come))

    def add(self, stop: StopRequest) -> None:
        """Pass signals on to a run from now on."""
        self._stops.add(stop)
        if self._has_come:
            stop.make(StopReason.SIGNALLED)

    def remove(self, stop: StopRequest) -> None:
        """Pass no more signals on to a run."""
        self._stops.discard(stop)

    def _come(self) -> None:
        """A thread passes the signal on: what the main thread holds while a handler interrupts it stays held."""
        self._has_come = True
        threading.Thread(target=self._pass_on, name="signal", daemon=True).start()

    def _pass_on(self) -> None:
        for stop in tuple(self._stops):
            stop.make(StopReason.SIGNALLED)


SIGNALS = StopSignals()
"""Those of this process: it has one handler for each signal."""


@contextmanager
def stopped_by_signals(spark: SparkSession, stop: StopRequest) -> Iterator[None]:
    """Let SIGTERM and SIGINT ask for a stop while the block runs, whether Python or Spark's JVM gets them."""
    stop_on_signals(spark, stop)
    try:
        yield
    finally:
        SIGNALS.remove(stop)


def stop_on_signals(spark: SparkSession, stop: StopRequest) -> None:
    """Let SIGTERM and SIGINT ask for a stop from now on, for what lives as long as its process."""
    SIGNALS.take_in_python()
    SIGNALS.take_in_jvm(spark)
    SIGNALS.add(stop)


class _JavaSignalHandler:
    """A `sun.misc.SignalHandler` that py4j lets the JVM call."""

    def __init__(self, come: Callable[[], None]) -> None:
        self._come = come

    def handle(self, _signal: JavaObject) -> None:
        """Called by the JVM on its own thread."""
        self._come()

    class Java:
        """What py4j reads to build the Java proxy."""

        implements: Any = ["sun.misc.SignalHandler"]  # noqa: RUF012  # py4j reads the class attribute


STOPPED_WITHIN_SECONDS = 180.0
"""From the request to the end of the process. A graceful stop takes up to 110 s, the supervisor gives it 120 s; what
still works then hangs: in a call of Spark's JVM, in a sink, in the user's code."""

WEDGED_EXIT_CODE = 70
"""The exit code of a driver that ended itself: an internal error, by the convention of sysexits.h."""

_POLL_SECONDS = 1.0


class Watchdog:
    """A thread that ends the process when it still works long after it was asked to stop: its main thread hangs, and
    from outside it may be out of sight and reach. A context manager.

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
