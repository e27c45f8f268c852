"""Ctrl-C, termination and hang-up while a stack is changed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    for other in _SIGNALS:  # the clean-up that follows is bounded; a second Ctrl-C shall not break it off
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(signal.Signals(number).name)


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does; a second signal is ignored."""
    with _handled(_interrupt):
        yield


@contextmanager
def uninterruptible() -> Iterator[None]:
    """Inside, the signals wait for nobody: a clean-up, which is bounded, is not itself interrupted."""
    with _handled(signal.SIG_IGN):
        yield


@contextmanager
def _handled(handler: signal._HANDLER) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
