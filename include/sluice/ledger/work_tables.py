"""The two tables of the queue: work items, and the Spark applications that do them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ColumnElement, Index, Integer, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import InstrumentedAttribute, Mapped, mapped_column

from sluice.ledger.ledger_table import LedgerTable, is_one_of
from sluice.ledger.work_values import ApplicationState, WorkKind, WorkState

CHANNEL = "sluice_work"
"""Where PostgreSQL announces what changes in the queue (`sluice.ledger.work_listener`)."""

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
