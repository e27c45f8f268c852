"""The batches of the streams: rows, durations, offsets, snapshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, func, select, true
from sqlalchemy.dialects.postgresql import insert

from sluice.ledger.connection import Ledger
from sluice.ledger.models import Batch, BatchTotals
from sluice.ledger.records.stream_batch import BatchObservation, PublicationKey, StreamTotals
from sluice.ledger.stored_values import record_of, values_of
from sluice.ledger.stream_selects import asked_for
from sluice.ledger.undeclared_fields import add_undeclared_fields

_SUMS = ("batches", "input_rows", "refused_rows", "late_rows", "duplicate_rows")
_KEY_FIELDS = ("stream", "generation", "batch")
BATCH_COLUMNS = Batch.columns()

_LONG = frozenset({"start_offsets", "end_offsets", "snapshot_ids", "durations_ms", "skipped_input"})

SHORT_BATCH_COLUMNS = tuple(column for column in BATCH_COLUMNS if column.name not in _LONG)
"""Without those that are as long as a topic has partitions."""


def record_batch(ledger: Ledger, batch: BatchObservation) -> bool:
    """Record what a batch did. Idempotent by its key: what was recorded first stays.

    Returns
    -------
    Whether the batch was new to the ledger.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    values = values_of(batch, without=("undeclared_fields",))
    with ledger.transaction() as connection:
        recorded = connection.execute(
            insert(Batch).values(**values).on_conflict_do_nothing(index_elements=_KEY_FIELDS).returning(Batch.batch)
        ).one_or_none()
        if recorded is not None:
            add_undeclared_fields(connection, batch)
    return recorded is not None


def find_batch(ledger: Ledger, key: PublicationKey) -> BatchObservation | None:
    """The batch of this key; none when it is not recorded, or not any more.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    same = (Batch.stream == key.stream, Batch.generation == key.generation, Batch.batch == key.batch)
    with ledger.transaction() as connection:
        row = connection.execute(select(*BATCH_COLUMNS).where(*same)).one_or_none()
    return None if row is None else record_of(BatchObservation, row)


def newest_batch(ledger: Ledger, stream: str, *, generation: int | None = None) -> BatchObservation | None:
    """The newest batch of a stream, or of one generation of it; none before its first."""
    newest = next(iter(recent_batches(ledger, stream, limit=1)), None)
    return newest if newest is not None and generation in (None, newest.key.generation) else None


def find_rejection(ledger: Ledger, stream: str, *, generation: int, batch: int) -> BatchObservation | None:
    """The record of a batch that a person rejected; none when it was not rejected.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    return next((one for one in _rejections(ledger, stream, generation) if one.key.batch == batch), None)


def rejected_batches(ledger: Ledger, stream: str, *, generation: int) -> frozenset[int]:
    """The numbers of the batches of a generation that a person rejected.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    return frozenset(one.key.batch for one in _rejections(ledger, stream, generation))


def recent_batches(ledger: Ledger, stream: str, limit: int) -> tuple[BatchObservation, ...]:
    """The newest batches of a stream, newest first, at most `limit`."""
    with ledger.transaction() as connection:
        rows = connection.execute(
            select(*BATCH_COLUMNS)
            .where(Batch.stream == stream)
            .order_by(Batch.generation.desc(), Batch.batch.desc())
            .limit(limit)
        ).all()
    return tuple(record_of(BatchObservation, row) for row in rows)


def batches_since(ledger: Ledger, stream: str, since: datetime) -> tuple[BatchObservation, ...]:
    """The batches of a stream that were recorded at `since` or later, newest first."""
    with ledger.transaction() as connection:
        rows = connection.execute(
            select(*BATCH_COLUMNS)
            .where(Batch.stream == stream, Batch.recorded_at >= since)
            .order_by(Batch.generation.desc(), Batch.batch.desc())
        ).all()
    return tuple(record_of(BatchObservation, row) for row in rows)


def rows_read_since(ledger: Ledger, streams: Sequence[str], since: datetime) -> Mapping[str, int]:
    """How many rows the batches of each of these streams read that were recorded at `since` or later.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    asked = asked_for(streams)
    is_recent = and_(Batch.stream == asked.c.stream, Batch.recorded_at >= since)
    read = select(func.coalesce(func.sum(Batch.input_rows), 0).label("rows")).where(is_recent).lateral("read")
    with ledger.transaction() as connection:
        rows = connection.execute(select(asked.c.stream, read.c.rows).select_from(asked.join(read, true()))).all()
    return {row.stream: int(row.rows) for row in rows}


def totals(ledger: Ledger, stream: str) -> StreamTotals:
    """The sums over all batches of a stream; see `all_totals`."""
    return all_totals(ledger, [stream])[stream]


def all_totals(ledger: Ledger, streams: Sequence[str]) -> Mapping[str, StreamTotals]:
    """The sums over all batches of each of these streams and all generations, including batches that were removed.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    found: dict[str, list[Row[Any]]] = {stream: [] for stream in streams}
    with ledger.transaction() as connection:
        is_asked = BatchTotals.stream.in_(list(streams))
        for row in connection.execute(select(*BatchTotals.columns()).where(is_asked)):
            found[row.stream].append(row)
    return {stream: _sum_of(stream, rows) for stream, rows in found.items()}


def _sum_of(stream: str, rows: Sequence[Row[Any]]) -> StreamTotals:
    sums: Counter[str] = Counter(dict.fromkeys(_SUMS, 0))
    published_rows: Counter[str] = Counter()
    for row in rows:
        sums.update({name: getattr(row, name) for name in _SUMS})
        published_rows.update(row.published_rows)
    return StreamTotals(stream=stream, published_rows=dict(sorted(published_rows.items())), **sums)


def _rejections(ledger: Ledger, stream: str, generation: int) -> tuple[BatchObservation, ...]:
    with ledger.transaction() as connection:
        rows = connection.execute(
            select(*BATCH_COLUMNS).where(Batch.stream == stream, Batch.generation == generation, Batch.is_rejected)
        ).all()
    return tuple(record_of(BatchObservation, row) for row in rows)
