"""Locks on tables, kept by the ledger's PostgreSQL: one maintenance run at a time, and one publication after another.

Both are advisory locks of a connection of their own, so a lock is free again when its process ends, however it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import DBAPIError

from sluice.errors import LedgerError
from sluice.ledger.connection import Ledger, ledger_errors

_log = logging.getLogger(__name__)

_MAINTENANCE_SPACE = 0x736C7563
_PUBLICATION_SPACE = 0x736C7570
"""The first halves of the locks' keys, the bytes of `sluc` and `slup`: other users of the database choose others."""

_SHORT_WAIT_SECONDS = 0.5


@contextmanager
def maintenance_lock(ledger: Ledger, table: str) -> Iterator[None]:
    """Lock a table against other maintenance runs while the block runs: a scheduled task, a person's, a retry.

    Raises
    ------
    LedgerError: when another maintenance run of the table is going on, or the ledger cannot be reached.
    """
    key = (_MAINTENANCE_SPACE, func.hashtext(table))
    engine = ledger.engine.execution_options(isolation_level="AUTOCOMMIT")  # no transaction stays open for minutes
    with ledger_errors(engine.url), engine.connect() as connection:
        if not connection.execute(select(func.pg_try_advisory_lock(*key))).scalar_one():
            raise LedgerError(
                f"Table {table} is under maintenance already; it has one maintenance run at a time.",
                next_step=f"Wait for it to end; `sluice table history {table}` shows its result.",
            )
        try:
            yield
        finally:
            connection.execute(select(func.pg_advisory_unlock(*key)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationLocks:
    """The locks under which one publisher merges into tables, so that merges queue instead of losing commit races.

    A courtesy and not a fence: a commit is safe without its lock. So the wait is bounded, and a ledger that does not
    answer costs the order and not the merge.

    longest_wait_seconds: a merge of a small batch takes seconds; whoever waits longer waits for a process that hangs.
        Every later merge then waits only briefly, until it got its lock again: a frozen driver that holds the lock
        delays its successor once, and not at each batch.
    """

    ledger: Ledger
    longest_wait_seconds: float = 20.0
    _timed_out: set[str] = field(default_factory=set)

    @contextmanager
    def acquire(self, table: str) -> Iterator[bool]:
        """Wait for the lock of a table, at most so long, and hold it while the block runs.

        Returns
        -------
        Whether the lock is held. If not, the merge goes on all the same.
        """
        engine = self.ledger.engine.execution_options(isolation_level="AUTOCOMMIT")  # no transaction open for minutes
        try:
            connection = engine.connect()
        except DBAPIError as error:
            _log.warning("no lock on %s: the ledger does not answer (%s)", table, type(error).__name__)
            yield False
            return
        connection.detach()  # it is not given back to the pool: closing it ends its timeout and its lock
        with connection:
            yield self._wait(connection, table)

    def _wait(self, connection: Connection, table: str) -> bool:
        seconds = _SHORT_WAIT_SECONDS if table in self._timed_out else self.longest_wait_seconds
        milliseconds = max(1, round(min(seconds, self.longest_wait_seconds) * 1000))
        try:
            connection.execute(text(f"SET statement_timeout = {milliseconds}"))
            connection.execute(select(func.pg_advisory_lock(_PUBLICATION_SPACE, func.hashtext(table))))
        except DBAPIError as error:
            _log.warning("no lock on %s within %d ms (%s)", table, milliseconds, type(error).__name__)
            self._timed_out.add(table)
            return False
        self._timed_out.discard(table)
        return True
