"""A turn at merging into a table, so that the platform's own merges wait for each other instead of losing races.

A courtesy and not a fence: the commit is safe without it. So nobody waits for ever, and a ledger that does not answer
costs the order and not the merge.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import DBAPIError

from sluice.ledger.connection import Ledger

_log = logging.getLogger(__name__)

_LOCK_SPACE = 0x736C7570
"""The first half of the advisory lock's key, the bytes of `slup`: maintenance has a space of its own."""

_BRIEFLY_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishingTurns:
    """The turns of one publisher.

    longest_wait_seconds: a merge of a small batch takes seconds; who waits longer waits for something that hangs. Then
        every later merge asks only briefly, until it has had its turn again: a driver that is frozen with the lock in
        its hand delays its successor once, and not at each batch.
    """

    ledger: Ledger
    longest_wait_seconds: float = 20.0
    _waited_in_vain: set[str] = field(default_factory=set)

    @contextmanager
    def at(self, table: str) -> Iterator[bool]:
        """Wait for the turn at a table, at most so long, and hold it while the block runs.

        The lock belongs to a connection of its own, so it is free again when the process ends, however it ends.

        Returns
        -------
        Whether it is this process's turn. If not, the work is done all the same, as a guest.
        """
        engine = self.ledger.engine.execution_options(isolation_level="AUTOCOMMIT")  # no transaction open for minutes
        try:
            connection = engine.connect()
        except DBAPIError as error:
            _log.warning("no turn at %s: the ledger does not answer (%s)", table, type(error).__name__)
            yield False
            return
        connection.detach()  # it is not given back to the pool: closing it ends its timeout and its lock
        with connection:
            yield self._wait(connection, table)

    def _wait(self, connection: Connection, table: str) -> bool:
        seconds = _BRIEFLY_SECONDS if table in self._waited_in_vain else self.longest_wait_seconds
        milliseconds = max(1, round(min(seconds, self.longest_wait_seconds) * 1000))
        try:
            connection.execute(text(f"SET statement_timeout = {milliseconds}"))
            connection.execute(select(func.pg_advisory_lock(_LOCK_SPACE, func.hashtext(table))))
        except DBAPIError as error:
            _log.warning("no turn at %s within %d ms (%s)", table, milliseconds, type(error).__name__)
            self._waited_in_vain.add(table)
            return False
        self._waited_in_vain.discard(table)
        return True
