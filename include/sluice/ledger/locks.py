"""The advisory locks of the ledger's PostgreSQL: on intervals, on tables, and on the schema of the ledger itself.

An advisory lock is a number that PostgreSQL keeps for one transaction or one connection. Apart from that of the schema,
each of these belongs to a connection of its own, so it is free again when its process ends, however it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
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
    MAINTENANCE: a table under maintenance. PUBLICATION: a table that a MERGE or a backfill is published on. REPLAY: a
    stream whose rejected records are replayed.
    """

    SCHEMA = 0x736C7573
    INTERVAL = 0x736C7562
    MAINTENANCE = 0x736C7563
    PUBLICATION = 0x736C7570
    REPLAY = 0x736C7572


def lock_schema(connection: Connection) -> None:
    """Wait until no other process migrates the ledger, and keep others from it until the transaction ends."""
    connection.execute(select(func.pg_advisory_xact_lock(*_key(LockSpace.SCHEMA, "ledger"))))


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedInterval:
    """The rows of a stream from `start` up to and without `end`."""

    stream: str
    start: datetime
    end: datetime


@contextmanager
def interval_lock(ledger: Ledger, *intervals: LockedInterval) -> Iterator[None]:
    """Keep other runs from intervals, and from all that overlap them, while the block runs.

    An interval is locked by its whole months, and where it begins or ends in one, by whole days and hours of it. Who
    locks a part of a month shares the lock of the month, so that two intervals conflict just when they overlap.

    Raises
    ------
    LedgerError: when another run works on one that overlaps, or the ledger cannot be reached.
    """
    with _detached_connection(ledger) as connection:
        with ledger_errors(ledger.engine.url):
            for one in intervals:
                _lock_parts(connection, one)
        yield


@contextmanager
def replay_lock(ledger: Ledger, stream: str) -> Iterator[None]:
    """Keep other replays from a stream while the block runs. The fence in its target keeps off those whose connection
    was lost.

    Raises
    ------
    LedgerError: when another replay of the stream is under way, or the ledger cannot be reached.
    """
    key = _key(LockSpace.REPLAY, stream)
    with _detached_connection(ledger) as connection:
        with ledger_errors(ledger.engine.url):
            is_locked = connection.execute(select(func.pg_try_advisory_lock(*key))).scalar_one()
        if not is_locked:
            raise LedgerError(
                f"Another replay of rejected records of {stream} is under way; a stream has one at a time.",
                next_step="Wait for it to end: `sluice work list`.",
            )
        yield


def _lock_parts(connection: Connection, interval: LockedInterval) -> None:
    for part, is_shared in _parts(interval.start, interval.end):
        lock = func.pg_try_advisory_lock_shared if is_shared else func.pg_try_advisory_lock
        key = _key(LockSpace.INTERVAL, f"{interval.stream} {part}")
        if not connection.execute(select(lock(*key))).scalar_one():
            raise LedgerError(
                f"The interval {interval.start:%Y-%m-%d %H:%M} to {interval.end:%Y-%m-%d %H:%M} of {interval.stream}, "
                "or a part of it, is being backfilled by another run.",
                next_step="Wait for it to end.",
            )


def _parts(start: datetime, end: datetime) -> Iterator[tuple[str, bool]]:
    """The months, days and hours of an interval, and whether it shares them: only a part of each is its own."""
    for month, after in _steps(start.replace(day=1), end, timedelta(days=32)):
        is_whole = start <= month and after <= end
        yield f"{month:%Y-%m}", not is_whole
        for day, next_day in () if is_whole else _steps(max(start, month), min(end, after), timedelta(days=1)):
            is_whole_day = start <= day and next_day <= end
            yield f"{day:%Y-%m-%d}", not is_whole_day
            if not is_whole_day:
                hours = _steps(max(start, day), min(end, next_day), timedelta(hours=1))
                yield from ((f"{hour:%Y-%m-%dT%H}", False) for hour, _ in hours)


def _steps(start: datetime, end: datetime, step: timedelta) -> Iterator[tuple[datetime, datetime]]:
    """The months, days or hours that begin before `end`, from that of `start` on, each with the next one."""
    one = _floor(start, step)
    while one < end:
        following = _floor(one + step, step)
        yield one, following
        one = following


def _floor(time: datetime, step: timedelta) -> datetime:
    """The start of the hour, of the day, or of the month for a longer step."""
    hour = time.replace(minute=0, second=0, microsecond=0)
    if step < timedelta(days=1):
        return hour
    return hour.replace(hour=0, day=hour.day if step == timedelta(days=1) else 1)


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
def _detached_connection(ledger: Ledger) -> Iterator[Connection]:
    """A connection for locks. Its end frees them, which the server notices a moment later: the next run may have asked
    already."""
    engine = ledger.engine.execution_options(isolation_level="AUTOCOMMIT")  # no transaction stays open for minutes
    with ledger_errors(engine.url):
        connection = engine.connect()
    connection.detach()
    with connection:
        try:
            yield connection
        finally:
            with suppress(DBAPIError):  # one that was lost has freed them
                connection.execute(select(func.pg_advisory_unlock_all()))


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
