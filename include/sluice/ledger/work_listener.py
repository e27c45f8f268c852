"""Waits for the queue's announcements, which PostgreSQL hands on to everybody who listens (`LISTEN`, `NOTIFY`).

The queue announces the pool of an item that begins to wait, and the id of an item that is claimed or ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

import psycopg
from pydantic import SecretStr

from sluice.ledger.connection import CONNECT_TIMEOUT_SECONDS, checked_url
from sluice.ledger.work_tables import CHANNEL

_log = logging.getLogger(__name__)


class WorkListener:
    """Wakes who waits for pools or items. A context manager; it connects with the first wait.

    An announcement may be missed while the ledger restarts or fails over, or behind a pooler of transactions: who waits
    looks at the queue from time to time all the same.

    Parameters
    ----------
    ledger_url: as `open_ledger` takes it.
    names: the pools and the ids of items whose announcements count.
    """

    def __init__(self, ledger_url: str | SecretStr, names: Collection[str]) -> None:
        url = checked_url(ledger_url).set(drivername="postgresql")
        self._conninfo = url.render_as_string(hide_password=False)
        self._names = frozenset(names)
        self._connection: psycopg.Connection | None = None

    def __enter__(self) -> WorkListener:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait at most so long. Returns whether the queue is to be looked at: also after the connection was made, since
        nothing that was announced before has come."""
        try:
            if self._connection is None:
                self._connection = self._connected()
                return True
            notices = list(self._connection.notifies(timeout=timeout_seconds, stop_after=1))
        except psycopg.Error as error:
            _log.warning("the queue is only looked at from time to time: %s", type(error).__name__)
            self._disconnect()
            time.sleep(timeout_seconds)  # nothing announces that the ledger is back
            return False
        return any(notice.payload in self._names for notice in notices)

    def _connected(self) -> psycopg.Connection:
        connection = psycopg.connect(
            self._conninfo, autocommit=True, application_name="sluice", connect_timeout=CONNECT_TIMEOUT_SECONDS
        )
        connection.execute(f"LISTEN {CHANNEL}")  # our own constant
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
