"""How much of their sources running streams have read: one sample each minute, kept for a day."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, and_, cast, delete, extract, func, insert, or_, select

from sluice.ledger.connection import Ledger
from sluice.ledger.models import Batch, BatchTotals, SourceSample
from sluice.ledger.records.lag import LagObservation
from sluice.ledger.records.progress_sample import ProgressSample
from sluice.ledger.records.stream_batch import BatchObservation

KEPT_FOR = timedelta(days=1)
"""How long samples are kept: longer than any sensible limit of a lag, and 1,440 small rows for each stream."""

EACH_FOR = timedelta(hours=1)
"""How long each sample counts; then one of ten minutes, because 200 streams would read 288,000 samples a minute."""


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
                read_rows=_rows_read(connection, stream, generation, newest_batch),
                unread_rows=lag.rows,
                undone=lag.undone,
                problem=lag.problem,
                is_failure=lag.is_failure,
                is_refused=lag.is_refused,
            )
            .returning(*SourceSample.__table__.columns)
        ).one()
    return _sample_of(row)


def _rows_read(connection: Connection, stream: str, generation: int, newest_batch: BatchObservation | None) -> int:
    """What the batches of a generation have read together: the newest sample's sum, and the batches since.

    The first sample of a day takes the total of the generation instead, of which a million batches may be recorded; it
    is ahead by what was recorded since the newest batch was read, a moment ago.
    """
    if newest_batch is None:
        return 0
    sample = connection.execute(
        select(SourceSample.batch, SourceSample.read_rows)
        .where(SourceSample.stream == stream, SourceSample.generation == generation, SourceSample.batch.is_not(None))
        .order_by(SourceSample.observed_at.desc())
        .limit(1)
    ).one_or_none()
    if sample is None:
        total = select(BatchTotals.input_rows).where(BatchTotals.stream == stream, BatchTotals.generation == generation)
        return int(connection.execute(total).scalar_one_or_none() or 0)
    is_later = and_(
        Batch.stream == stream,
        Batch.generation == generation,
        Batch.batch > sample.batch,
        Batch.batch <= newest_batch.key.batch,
    )
    later = select(cast(func.coalesce(func.sum(Batch.input_rows), 0), BigInteger)).where(is_later)
    return int(sample.read_rows) + int(connection.execute(later).scalar_one())


def recent_progress_samples(ledger: Ledger, stream: str) -> tuple[ProgressSample, ...]:
    """The kept samples of a stream, newest first: each of the last hour, and of earlier hours one of ten minutes.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        rows = connection.execute(
            select(*SourceSample.__table__.columns)
            .where(
                SourceSample.stream == stream,
                or_(
                    SourceSample.observed_at > func.now() - EACH_FOR,
                    extract("minute", SourceSample.observed_at) % 10 == 0,
                ),
            )
            .order_by(SourceSample.observed_at.desc())
        ).all()
    return tuple(_sample_of(row) for row in rows)


def _sample_of(row: Row[Any]) -> ProgressSample:
    return ProgressSample(**row._mapping)
