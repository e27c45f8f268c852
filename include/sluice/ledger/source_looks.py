"""The looks at the sources of running streams, kept for a day."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import BigInteger, Row, cast, delete, func, insert, select

from sluice.ledger.connection import Ledger
from sluice.ledger.models import Batch, ForgottenBatches, LookAtSources
from sluice.ledger.records.batch import BatchObservation
from sluice.ledger.records.lag import LagObservation
from sluice.ledger.records.progress_sample import ProgressSample

KEPT_FOR = timedelta(days=1)
"""How far back looks are kept: longer than any sensible bound of a lag, and 1,440 small rows for each stream."""


def record_look(
    ledger: Ledger, stream: str, lag: LagObservation, *, generation: int, newest_batch: BatchObservation | None
) -> ProgressSample:
    """Record a look at the sources of a stream, under the database's time, and forget what is older than a day.

    Parameters
    ----------
    lag: what was seen.
    generation: that of the run that reads.
    newest_batch: its newest recorded batch, up to whose end offsets the sources were read; none before its first.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    kept, forgotten = (
        select(cast(func.coalesce(func.sum(table.input_rows), 0), BigInteger))
        .where(table.stream == stream, table.generation == generation)
        .scalar_subquery()
        for table in (Batch, ForgottenBatches)
    )
    with ledger.transaction() as connection:
        connection.execute(
            delete(LookAtSources).where(
                LookAtSources.stream == stream, LookAtSources.observed_at < func.now() - KEPT_FOR
            )
        )
        row = connection.execute(
            insert(LookAtSources)
            .values(
                stream=stream,
                generation=generation,
                batch=None if newest_batch is None else newest_batch.key.batch,
                read_rows=kept + forgotten,
                unread_rows=lag.rows,
                problem=lag.problem,
            )
            .returning(*LookAtSources.__table__.columns)
        ).one()
    return _sample_of(row)


def recent_looks(ledger: Ledger, stream: str) -> tuple[ProgressSample, ...]:
    """The looks that are kept, newest first.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        rows = connection.execute(
            select(*LookAtSources.__table__.columns)
            .where(LookAtSources.stream == stream)
            .order_by(LookAtSources.observed_at.desc())
        ).all()
    return tuple(_sample_of(row) for row in rows)


def _sample_of(row: Row[Any]) -> ProgressSample:
    return ProgressSample(**row._mapping)
