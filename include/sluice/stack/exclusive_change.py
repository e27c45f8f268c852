"""A change of a stack: one command makes it at a time, and a signal interrupts it in an orderly way."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from sluice.errors import StackError
from sluice.stack.folder import StackFolder

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def exclusive(folder: StackFolder) -> Iterator[None]:
    """Hold the stack's lock. The kernel releases it when the process ends, however it ends.

    Parameters
    ----------
    folder: the stack's folder; it exists.

    Raises
    ------
    StackError: when another command holds it.
    """
    with folder.lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise StackError(
                f"Another `sluice stack` command (pid {file.read().strip() or 'unknown'}) is changing this stack.",
                next_step="Wait until it ends, or stop it with Ctrl-C.",
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt inside, as SIGINT does; ignore a second signal."""
    with _handled(_interrupt):
        yield


@contextmanager
def uninterruptible() -> Iterator[None]:
    """Ignore the signals inside, so that a clean-up, whose duration is limited, is not interrupted itself."""
    with _handled(signal.SIG_IGN):
        yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    for other in _SIGNALS:  # the clean-up that follows takes limited time; a second Ctrl-C must not break it off
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(signal.Signals(number).name)


@contextmanager
def _handled(handler: signal._HANDLER) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
