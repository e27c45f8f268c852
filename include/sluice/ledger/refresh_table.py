"""The table of the refreshes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Identity, Index, Integer, func, text
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.records.refresh import OPEN_STATES, RefreshState


def _is_one_of(states: Iterable[str]) -> str:
    allowed = ", ".join(f"'{state}'" for state in sorted(states))
    return f"state IN ({allowed})"


class Refresh(LedgerTable):
    """A rebuild of a stream's table in a shadow generation."""

    __tablename__ = "refreshes"
    __table_args__ = (
        Index(
            "one_open_refresh_per_stream",
            "stream",
            unique=True,
            postgresql_where=text(_is_one_of(OPEN_STATES)),
        ),
        CheckConstraint(_is_one_of(RefreshState), name="state"),
    )

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    stream: Mapped[str]
    state: Mapped[str]
    digest: Mapped[str]
    leaves: Mapped[int] = mapped_column(Integer)
    opens: Mapped[int | None] = mapped_column(Integer)
    previous: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    keep_seconds: Mapped[int]
    keeps_until: Mapped[datetime | None]
    rows: Mapped[int | None]
    snapshot_id: Mapped[int | None]
    asked_by: Mapped[str]
    began_at: Mapped[datetime] = mapped_column(server_default=func.now())
    ended_at: Mapped[datetime | None]
