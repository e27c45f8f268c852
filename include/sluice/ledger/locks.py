"""The advisory locks of the ledger's PostgreSQL: on intervals, on tables, and on the schema of the ledger itself.

An advisory lock is a number that PostgreSQL keeps for one transaction or one connection. Apart from that of the schema,
each of these belongs to a connection of its own, so it is free again when its process ends, however it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any

from sqlalchemy import Connection, Function, func, select, text
from sqlalchemy.exc import DBAPIError

from sluice.errors import LedgerError
from sluice.ledger.connection import Ledger, ledger_errors

_log = logging.getLogger(__name__)

_SHORT_WAIT_SECONDS = 0.5


class LockSpace(IntEnum):
    """The first half of a lock's key; the second is the hash of what is locked. Four bytes of text, `slu` and a letter:
    other users of the database choose others.

    SCHEMA: the ledger's schema while it is migrated. INTERVAL: an interval of a stream while it is replaced.
    MAINTENANCE: a table under maintenance. PUBLICATION: a table that a MERGE or a backfill is published on.
    """

    SCHEMA = 0x736C7573
    INTERVAL = 0x736C7562
    MAINTENANCE = 0x736C7563
    PUBLICATION = 0x736C7570


def lock_schema(connection: Connection) -> None:
    """Wait until no other process migrates the ledger, and keep others from it until the transaction ends."""
    connection.execute(select(func.pg_advisory_xact_lock(*_key(LockSpace.SCHEMA, "ledger"))))


@contextmanager
def interval_lock(ledger: Ledger, stream: str, *intervals: tuple[datetime, datetime]) -> Iterator[None]:
    """Keep other runs from intervals of a stream while the block runs.

    Parameters
    ----------
    intervals: start and end of each.

    Raises
    ------
    LedgerError: when another run works on one of them, or the ledger cannot be reached.
    """
    with _own_connection(ledger) as connection, ExitStack() as locks:
        for start, end in intervals:
            key = _key(LockSpace.INTERVAL, f"{stream} {start.isoformat()} {end.isoformat()}")
            if not locks.enter_context(_held(connection, key)):
                raise LedgerError(
                    f"The interval {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} of {stream} is being backfilled by "
                    "another run.",
                    next_step="Wait for it to end.",
                )
        yield


@contextmanager
def maintenance_lock(ledger: Ledger, table: str) -> Iterator[None]:
    """Lock a table against other maintenance runs while the block runs: a scheduled task, a person's, a retry.

    Raises
    ------
    LedgerError: when another maintenance run of the table is under way, or the ledger cannot be reached.
    """
    key = _key(LockSpace.MAINTENANCE, table)
    with _own_connection(ledger) as connection, _held(connection, key) as is_held:
        if not is_held:
            raise LedgerError(
                f"Table {table} is under maintenance already; it has one maintenance run at a time.",
                next_step=f"Wait for it to end; `sluice table history {table}` shows its result.",
            )
        yield


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
        Whether the lock is held. If not, the merge continues all the same.
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
            connection.execute(select(func.pg_advisory_lock(*_key(LockSpace.PUBLICATION, table))))
        except DBAPIError as error:
            _log.warning("no lock on %s within %d ms (%s)", table, milliseconds, type(error).__name__)
            self._timed_out.add(table)
            return False
        self._timed_out.discard(table)
        return True


def _key(space: LockSpace, name: str) -> tuple[int, Function[Any]]:
    return int(space), func.hashtext(name)


@contextmanager
def _own_connection(ledger: Ledger) -> Iterator[Connection]:
    engine = ledger.engine.execution_options(isolation_level="AUTOCOMMIT")  # no transaction stays open for minutes
    with ledger_errors(engine.url), engine.connect() as connection:
        yield connection


@contextmanager
def _held(connection: Connection, key: tuple[int, Function[Any]]) -> Iterator[bool]:
    """Hold a lock while the block runs, unless another connection has it. Yields whether it is held."""
    is_held: bool = connection.execute(select(func.pg_try_advisory_lock(*key))).scalar_one()
    try:
        yield is_held
    finally:
        if is_held:
            connection.execute(select(func.pg_advisory_unlock(*key)))
