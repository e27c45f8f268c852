"""The gate before each batch: closed, it lets a run stop between two batches instead of within one."""

from __future__ import annotations

import threading


class TurnedAwayError(Exception):
    """A batch came to a closed gate. Spark has planned it and will run the same batch again at the next start."""


class BatchGate:
    """Every batch goes through here before it does anything; once closed, none does."""

    def __init__(self) -> None:
        self._closed = threading.Event()
        self.turned_away = threading.Event()

    def close(self) -> None:
        """Let no further batch begin."""
        self._closed.set()

    def enter(self) -> None:
        """Begin a batch.

        Raises
        ------
        TurnedAwayError: when the gate is closed.
        """
        if self._closed.is_set():
            self.turned_away.set()
            raise TurnedAwayError("the run is stopping")
