"""How much of their sources running streams have read: one sample each minute, kept for a day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    and_,
    cast,
    delete,
    extract,
    func,
    insert,
    or_,
    select,
    true,
)

from sluice.ledger.connection import Ledger
from sluice.ledger.models import Batch, BatchTotals, SourceSample
from sluice.ledger.records.lag import LagObservation
from sluice.ledger.records.progress_sample import ProgressSample
from sluice.ledger.records.stream_batch import BatchObservation
from sluice.ledger.stored_values import record_of
from sluice.ledger.stream_selects import asked_for

KEPT_FOR = timedelta(days=1)
"""How long samples are kept: longer than any sensible limit of a lag, and 1,440 small rows for each stream."""

EACH_FOR = timedelta(hours=1)
"""How long each sample counts; then one of ten minutes, because 200 streams would read 288,000 samples a minute."""


def record_progress_sample(
    ledger: Ledger,
    stream: str,
    lag: LagObservation,
    *,
    generation: int,
    newest_batch: BatchObservation | None,
    samples: Sequence[ProgressSample],
) -> ProgressSample:
    """Record how far a stream is behind its sources, at the database's time, and remove samples older than a day.

    It is one statement: each pass of the reconciler sends it for every stream.

    Parameters
    ----------
    lag: the rows that no batch has read.
    generation: that of the run that reads.
    newest_batch: its newest recorded batch, up to whose end offsets the sources were read; none before its first.
    samples: those that are kept, newest first.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    is_old = and_(SourceSample.stream == stream, SourceSample.observed_at < func.now() - KEPT_FOR)
    recorded = (
        insert(SourceSample)
        .values(
            stream=stream,
            generation=generation,
            batch=None if newest_batch is None else newest_batch.key.batch,
            read_rows=_rows_read(stream, generation, newest_batch, samples),
            unread_rows=lag.rows,
            undone=lag.undone,
            problem=lag.problem,
            is_failure=lag.is_failure,
            is_refused=lag.is_refused,
        )
        .returning(*SourceSample.columns())
        .add_cte(delete(SourceSample).where(is_old).cte("removed"))
    )
    with ledger.transaction() as connection:
        return record_of(ProgressSample, connection.execute(recorded).one())


def _rows_read(
    stream: str, generation: int, newest_batch: BatchObservation | None, samples: Sequence[ProgressSample]
) -> int | ColumnElement[int]:
    """What the batches of a generation have read together: an earlier sample's sum, and the batches since.

    The first sample of a day takes the total of the generation instead, of which a million batches may be recorded; it
    is ahead by what was recorded since the newest batch was read, a moment ago.
    """
    if newest_batch is None:
        return 0
    known = next((one for one in samples if one.generation == generation and one.batch is not None), None)
    if known is None or known.batch is None:
        total = select(BatchTotals.input_rows).where(BatchTotals.stream == stream, BatchTotals.generation == generation)
        return func.coalesce(total.scalar_subquery(), 0)
    if known.batch == newest_batch.key.batch:
        return known.read_rows
    is_later = and_(
        Batch.stream == stream,
        Batch.generation == generation,
        Batch.batch > known.batch,
        Batch.batch <= newest_batch.key.batch,
    )
    later = select(cast(func.coalesce(func.sum(Batch.input_rows), 0), BigInteger)).where(is_later)
    return later.scalar_subquery() + known.read_rows


def recent_progress_samples(ledger: Ledger, stream: str) -> tuple[ProgressSample, ...]:
    """The kept samples of a stream, newest first: each of the last hour, and of earlier hours one of ten minutes.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        rows = connection.execute(select_recent_samples(asked_for([stream]))).all()
    return tuple(record_of(ProgressSample, row) for row in rows)


def select_recent_samples(asked: FromClause) -> Select[Any]:
    """The query for the samples of `recent_progress_samples`, for each of several streams."""
    is_kept = or_(
        SourceSample.observed_at > func.now() - EACH_FOR, extract("minute", SourceSample.observed_at) % 10 == 0
    )
    kept = (
        select(*SourceSample.columns())
        .where(SourceSample.stream == asked.c.stream, is_kept)
        .order_by(SourceSample.observed_at.desc())
        .lateral("kept")
    )
    return select(*kept.c).select_from(asked.join(kept, true()))
