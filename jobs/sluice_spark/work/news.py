"""News for an application: something was added to the queue, or an item has ended.

PostgreSQL announces new items, so that an application that is idle begins within a tenth of a second. An announcement
may be missed; the application looks at the queue all the same.
"""

from __future__ import annotations

import logging
import threading

import psycopg

from sluice.ledger.connection import checked_url
from sluice.ledger.work_items import CHANNEL

_log = logging.getLogger(__name__)

_LISTEN_SECONDS = 5.0
"""How long the thread listens before it looks whether it is to end, and before it connects again."""


class News:
    """Wakes who waits when there is news. A context manager: it listens while the block runs.

    Parameters
    ----------
    ledger_url: SQLAlchemy URL of the ledger.
    pool: whose items are announced.
    """

    def __init__(self, ledger_url: str, *, pool: str) -> None:
        self._conninfo = checked_url(ledger_url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._pool = pool
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
        while not self._ended.is_set():
            try:
                with psycopg.connect(self._conninfo, autocommit=True, application_name="sluice") as connection:
                    connection.execute(f"LISTEN {CHANNEL}")  # our own constant
                    while not self._ended.is_set():
                        for notice in connection.notifies(timeout=_LISTEN_SECONDS, stop_after=1):
                            if notice.payload == self._pool:
                                self.come()
            except psycopg.Error as error:
                _log.warning("new items are found by looking at the queue only: %s", type(error).__name__)
                self._ended.wait(_LISTEN_SECONDS)
