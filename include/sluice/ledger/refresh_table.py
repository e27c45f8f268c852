"""The table of the refreshes."""

from __future__ import annotations

from sqlalchemy import Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.ledger_table import LedgerTable, is_one_of
from sluice.ledger.records.refresh import OPEN_STATES, RefreshObservation


class Refresh(LedgerTable, record=RefreshObservation, now=("began_at",)):
    """A rebuild of a stream's table in a shadow generation."""

    __tablename__ = "refreshes"
    __table_args__ = (
        Index(
            "one_open_refresh_per_stream",
            "stream",
            unique=True,
            postgresql_where=text(is_one_of("state", OPEN_STATES)),
        ),
    )

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
