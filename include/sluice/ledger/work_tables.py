"""The two tables of the queue, work items and the Spark applications that do them, and its announcements.

The queue announces the pool of an item that begins to wait, and the id of an item that is claimed or ends. PostgreSQL
hands that on to everybody who listens (`LISTEN`, `NOTIFY`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from datetime import datetime
from typing import Any

import psycopg
from pydantic import SecretStr
from sqlalchemy import CheckConstraint, ColumnElement, Index, Integer, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import InstrumentedAttribute, Mapped, mapped_column

from sluice.ledger.connection import CONNECT_TIMEOUT_SECONDS, checked_url
from sluice.ledger.ledger_table import LedgerTable, is_one_of
from sluice.ledger.work_values import ApplicationState, WorkKind, WorkState

CHANNEL = "sluice_work"
"""Where PostgreSQL announces what changes in the queue; a `WorkListener` waits there."""

IS_STARTING = text("state = 'starting'")
"""The rows of `one_starting_application`. Words, because by parameters PostgreSQL does not recognise the index."""


class Application(LedgerTable):
    """A Spark application that takes the items of one pool; one of a pool and digest is being started at a time."""

    __tablename__ = "applications"
    __table_args__ = (
        Index("one_starting_application", "pool", "digest", unique=True, postgresql_where=IS_STARTING),
        Index("live_applications", "pool", "digest", postgresql_where=text("state <> 'ended'")),
        CheckConstraint(is_one_of("state", ApplicationState), name="state"),
    )

    application: Mapped[str] = mapped_column(primary_key=True)
    pool: Mapped[str]
    digest: Mapped[str]
    state: Mapped[str]
    started_by: Mapped[str]
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())
    host: Mapped[str | None]
    pid: Mapped[int | None] = mapped_column(Integer)
    log_file: Mapped[str | None]
    heartbeat_at: Mapped[datetime | None]
    claimed_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    reason: Mapped[str | None]


class WorkRow(LedgerTable):
    """A work item; it is open as long as it has not ended."""

    __tablename__ = "work_items"
    __table_args__ = (
        Index("open_work_items", "pool", "digest", "asked_at", postgresql_where=text("ended_at IS NULL")),
        Index("claimed_work_items", "application", postgresql_where=text("state = 'claimed'")),
        Index("work_items_on_probation", "kind", "subject", postgresql_where=text("runs_alone")),
        Index(None, "ended_at"),
        CheckConstraint(is_one_of("kind", WorkKind), name="kind"),
        CheckConstraint(is_one_of("state", WorkState), name="state"),
    )

    item: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    subject: Mapped[str]
    payload: Mapped[dict[str, Any]]
    asked_by: Mapped[str]
    asked_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    pool: Mapped[str]
    digest: Mapped[str]
    priority: Mapped[int] = mapped_column(Integer)
    linger_seconds: Mapped[int] = mapped_column(Integer)
    not_before: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    waits_until: Mapped[datetime]
    state: Mapped[str]
    application: Mapped[str | None]
    attempt: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    runs_alone: Mapped[bool] = mapped_column(server_default=text("false"))
    claimed_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    failure: Mapped[str | None]
    result: Mapped[Any | None] = mapped_column(JSONB)


def announced(name: InstrumentedAttribute[str]) -> ColumnElement[Any]:
    """Announces a pool or an item when it is part of what a statement returns; with the end of its transaction."""
    return func.pg_notify(CHANNEL, name)


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
