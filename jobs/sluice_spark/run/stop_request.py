"""The request to stop a run, and the signals that make it."""

from __future__ import annotations

import logging
import signal
import threading
from enum import StrEnum
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
    LEDGER_AWAY = "stopped because the ledger was away, before its lease ran out"

    @property
    def may_publish(self) -> bool:
        """Whether a run that stops for this reason may still publish the batch that runs."""
        return self not in (StopReason.LEASE_LOST, StopReason.UNPUBLISHED)


LEASE_ENDS = frozenset({StopReason.LEASE_LOST, StopReason.LEDGER_AWAY})
"""The ends that were not requested: the run stopped for its lease, and the stream is to be started again."""


class StopRequest:
    """A request to stop, made by the ledger or a signal and read by the run. The first one stays."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reason: StopReason | None = None

    @property
    def reason(self) -> StopReason | None:
        """Why the run is to stop; none while it is not."""
        return self._reason

    def make(self, reason: StopReason) -> None:
        """Ask the run to stop."""
        if not self._event.is_set():
            self._reason = reason
            self._event.set()
            _log.info("stopping after this batch: %s", reason)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until the run is asked to stop, at most so long. Returns whether it is."""
        return self._event.wait(timeout_seconds)


def stop_on_signals(spark: SparkSession, stop: StopRequest) -> None:
    """Make SIGTERM and SIGINT ask for a stop, whether Python or Spark's JVM gets them. Called by the main thread."""
    stop_on_signals_of_python(stop)
    stop_on_signals_of_jvm(spark, stop)


def stop_on_signals_of_python(stop: StopRequest) -> None:
    """Make SIGTERM and SIGINT to this process ask for a stop. Called by the main thread: Python allows no other."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.make(StopReason.SIGNALLED))


def stop_on_signals_of_jvm(spark: SparkSession, stop: StopRequest) -> None:
    """Make SIGTERM and SIGINT to Spark's JVM ask for a stop.

    Under `spark-submit` other processes signal the JVM, which would otherwise end at once, within a batch.
    """
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]  # has no types
    jvm = jvm_of(spark)
    for name in ("TERM", "INT"):
        jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal(name), _JavaSignalHandler(stop))


class _JavaSignalHandler:
    """A `sun.misc.SignalHandler` that py4j lets the JVM call."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop

    def handle(self, _signal: JavaObject) -> None:
        """Called by the JVM on its own thread."""
        self._stop.make(StopReason.SIGNALLED)

    class Java:
        """What py4j reads to build the Java proxy."""

        implements: Any = ["sun.misc.SignalHandler"]  # noqa: RUF012  # py4j reads the class attribute
