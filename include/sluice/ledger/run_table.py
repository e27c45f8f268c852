"""The table of the runs."""

from __future__ import annotations

from sqlalchemy import Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.ledger_table import LedgerTable, is_one_of
from sluice.ledger.run_values import LIVE_STATES, RunObservation

RUN_IS_LIVE = text(is_one_of("state", LIVE_STATES))
"""The rows of `one_live_run_per_stream`. Words, because by parameters PostgreSQL does not recognise the index."""


class Run(LedgerTable, record=RunObservation, key=("run_id",), now=("launched_at",)):
    """A run of a stream. `number` rises with every admission, so that the newest run needs no clock."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("one_live_run_per_stream", "stream", unique=True, postgresql_where=RUN_IS_LIVE),
        Index(None, "stream", "number"),
    )

    number: Mapped[int] = mapped_column(Identity(always=True))
