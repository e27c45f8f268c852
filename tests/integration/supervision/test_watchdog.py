"""A driver whose main thread hangs ends itself after a request to stop."""

from __future__ import annotations

import subprocess
import sys
import threading

from sluice_spark.run.stop_request import WEDGED_EXIT_CODE, StopReason, StopRequest, Watchdog

_WEDGED = """
import threading
from sluice_spark.run.stop_request import StopReason, StopRequest
from sluice_spark.run.stop_request import Watchdog
stop = StopRequest()
with Watchdog(stop, within_seconds=0.2):
    stop.make(StopReason.{reason})
    threading.Event().wait(120)
"""


def test_a_driver_that_hangs_after_a_request_to_stop_ends_itself() -> None:
    for reason in (StopReason.STOPPED, StopReason.LEASE_LOST):
        ended = subprocess.run([sys.executable, "-c", _WEDGED.format(reason=reason.name)], timeout=60, check=False)  # noqa: S603  # ours
        assert ended.returncode == WEDGED_EXIT_CODE


def test_a_driver_that_ends_in_time_is_left_alone() -> None:
    stop, codes = StopRequest(), threading.Event()
    with Watchdog(stop, within_seconds=0.5, end_process=lambda _: codes.set()):
        stop.make(StopReason.STOPPED)
    assert not codes.wait(1.5)
