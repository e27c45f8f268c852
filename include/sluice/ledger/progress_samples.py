"""How much of their sources running streams have read: one sample each minute, kept for a day."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import BigInteger, Row, cast, delete, func, insert, select

from sluice.ledger.connection import Ledger
from sluice.ledger.models import Batch, ForgottenBatches, SourceSample
from sluice.ledger.records.lag import LagObservation
from sluice.ledger.records.progress_sample import ProgressSample
from sluice.ledger.records.stream_batch import BatchObservation

KEPT_FOR = timedelta(days=1)
"""How long samples are kept: longer than any sensible limit of a lag, and 1,440 small rows for each stream."""


def record_progress_sample(
    ledger: Ledger, stream: str, lag: LagObservation, *, generation: int, newest_batch: BatchObservation | None
) -> ProgressSample:
    """Record how far a stream is behind its sources, at the database's time, and remove samples older than a day.

    Parameters
    ----------
    lag: the rows that no batch has read.
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
            delete(SourceSample).where(SourceSample.stream == stream, SourceSample.observed_at < func.now() - KEPT_FOR)
        )
        row = connection.execute(
            insert(SourceSample)
            .values(
                stream=stream,
                generation=generation,
                batch=None if newest_batch is None else newest_batch.key.batch,
                read_rows=kept + forgotten,
                unread_rows=lag.rows,
                problem=lag.problem,
            )
            .returning(*SourceSample.__table__.columns)
        ).one()
    return _sample_of(row)


def recent_progress_samples(ledger: Ledger, stream: str) -> tuple[ProgressSample, ...]:
    """The kept samples of a stream, newest first.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        rows = connection.execute(
            select(*SourceSample.__table__.columns)
            .where(SourceSample.stream == stream)
            .order_by(SourceSample.observed_at.desc())
        ).all()
    return tuple(_sample_of(row) for row in rows)


def _sample_of(row: Row[Any]) -> ProgressSample:
    return ProgressSample(**row._mapping)
