"""News for an application: something was added to the queue, or an item has ended."""

from __future__ import annotations

import threading

from sluice.ledger.work_listener import WorkListener

_LISTEN_SECONDS = 5.0
"""How long the thread listens before it looks whether it is to end."""


class News:
    """Wakes who waits when there is news. A context manager: it listens while the block runs.

    Parameters
    ----------
    ledger_url: SQLAlchemy URL of the ledger.
    pool: whose items are announced.
    """

    def __init__(self, ledger_url: str, *, pool: str) -> None:
        self._listener = WorkListener(ledger_url, [pool])
        self._has_come, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._listen, name="news", daemon=True)

    def __enter__(self) -> News:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def come(self) -> None:
        """Say that there is news."""
        self._has_come.set()

    def wait(self, timeout_seconds: float) -> None:
        """Wait until there is news, at most so long."""
        self._has_come.wait(timeout_seconds)
        self._has_come.clear()

    def _listen(self) -> None:
        with self._listener:
            while not self._ended.is_set():
                if self._listener.wait(_LISTEN_SECONDS):
                    self.come()
