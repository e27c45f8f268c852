"""A driver that runs the increments of one stream as they are asked for, and ends when none is asked for a while.

It ends after an increment that failed, so that nothing of a failure stays, and when it is asked with another digest of
the deployment than it has loaded. The other side is `sluice.launching.kept_driver`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession

from sluice.errors import LaunchError
from sluice.launching.kept_driver import (
    DriverAnswer,
    IncrementRequest,
    receive_line,
    require_private_folder,
    send_line,
)
from sluice_spark.run.stop_request import StopReason, StopRequest, stop_on_signals
from sluice_spark.session.run_sessions import KeptApplication

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""How often an idle driver looks whether it was asked to end."""

_REQUEST_SECONDS = 10.0
"""How long a request may take to arrive once its connection is there."""

MOST_INCREMENTS = 500
"""After so many increments a driver ends, as after an idle time: what a process gathers does not grow for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptIncrements:
    """Waits for requests and runs an increment for each.

    digest: of the deployment, taken before anything of it was loaded.
    kept_seconds: how long it waits for the next request.
    run: runs an increment for who asked, unless it is asked to stop, and returns the exit status that a job of its own
        would have.
    stop: asks the driver to end between two increments.
    """

    address: Path
    digest: str
    kept_seconds: float
    application: KeptApplication
    run: Callable[[str, StopRequest], int]
    stop: StopRequest = field(default_factory=StopRequest)

    def serve(self) -> None:
        """Run increments until none is asked for, one fails, or the driver is asked to end.

        Raises
        ------
        LaunchError: when another driver listens there.
        """
        with _listening(self.address) as listener:
            for _ in range(MOST_INCREMENTS):
                connection = self._next_connection(listener)
                if connection is None:
                    return
                with connection:
                    if not self._answer(connection, listener):
                        return

    def _next_connection(self, listener: socket.socket) -> socket.socket | None:
        """The next connection; none when there is none in time, or the driver was asked to end."""
        deadline = time.monotonic() + self.kept_seconds
        listener.settimeout(min(_LOOK_SECONDS, self.kept_seconds))
        while time.monotonic() < deadline and self.stop.reason is None:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(_REQUEST_SECONDS)
            return connection
        return None

    def _answer(self, connection: socket.socket, listener: socket.socket) -> bool:
        """Run the increment that is asked for. Returns whether the driver takes another one."""
        try:
            text = receive_line(connection)
        except OSError:
            return True
        if not text:
            return True
        request = IncrementRequest.model_validate_json(text)
        if request.digest != self.digest:
            # Whoever asked starts a new driver at once, which must not meet this one.
            _close(listener, self.address)
            send_line(connection, DriverAnswer(state="outdated"))
            return False
        last_line = f"sluice: the driver is idle: {uuid4()}"
        try:
            send_line(connection, DriverAnswer(state="accepted", pid=os.getpgrp(), last_line=last_line))
        except OSError as error:
            # The request waited behind another increment until its sender gave up, and runs it in another way.
            _log.info("an increment is not wanted any more: %s", error)
            return True
        exit_code = self._run(request)
        sys.stderr.write(f"{last_line}\n")
        sys.stderr.flush()
        if exit_code:
            _close(listener, self.address)
        try:
            send_line(connection, DriverAnswer(state="ended", exit_code=exit_code))
        except OSError as error:
            _log.warning("the end of the increment could not be reported: %s", error)
        return exit_code == 0

    def _run(self, request: IncrementRequest) -> int:
        """Run an increment; its exit status. A signal that stopped it ends the driver, too."""
        stop = StopRequest()
        exit_code = self.run(request.launched_by, stop)
        self._end_on_signals()
        if stop.reason is StopReason.SIGNALLED:
            self.stop.make(StopReason.SIGNALLED)
        return exit_code

    def _end_on_signals(self) -> None:
        """Take the signals back from the run that is over."""
        spark: SparkSession | None = self.application.spark
        if spark is not None:
            stop_on_signals(spark, self.stop)


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """A socket that listens, and is gone after the block. What a killed driver left there is removed."""
    require_private_folder(path.parent)
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LaunchError(
                f"Another driver listens at {path}.", next_step="Nothing is to be done: it runs the increments."
            ) from error
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen()
            try:
                yield listener
            finally:
                _close(listener, path)


def _close(listener: socket.socket, path: Path) -> None:
    if listener.fileno() >= 0:  # closed already: the path may be another driver's by now
        path.unlink(missing_ok=True)
        listener.close()
