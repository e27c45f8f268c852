"""A signal asks everything that runs in a process to stop, and what begins after it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal, threading
from sluice_spark.run.stop_request import StopReason, StopRequest, StopSignals

signals, stops = StopSignals(), [StopRequest() for _ in range(4)]
signals.take_in_python()
other = threading.Thread(target=signals.take_in_python)
other.start(); other.join()
for stop in stops[:3]:
    signals.add(stop)
signals.remove(stops[2])
os.kill(os.getpid(), signal.SIGTERM)
assert all(stop.wait(30) for stop in stops[:2])
signals.add(stops[3])
print([stop.reason is StopReason.SIGNALLED for stop in stops])
"""


def test_a_signal_reaches_all_that_run_and_what_begins_later() -> None:
    ended = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "[True, True, False, True]"
