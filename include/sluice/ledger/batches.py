"""The batches of the streams: rows, durations, offsets, snapshots."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Index, Row, Select, func, literal, or_, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.batch_findings import RuleResult, add_rule_results, add_undeclared_fields
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import Generation
from sluice.ledger.hourly_figures import ColumnFigures, add_column_figures
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import record_of, values_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationKey:
    """The name of a batch in the snapshots it becomes: stream, generation, batch number."""

    stream: str
    generation: int
    batch: int

    @property
    def number(self) -> str:
        """The batch within its stream: `1:7`."""
        return f"{self.generation}:{self.batch}"

    def __str__(self) -> str:
        return f"{self.stream}:{self.number}"


MOST_REJECTED_FILES = 20
"""How many files of a batch are named of which no record was good: enough to see which sender it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchObservation:
    """One batch: its input and output rows, its duration, and its offsets.

    The rows add up for a stream that keeps or refuses rows: input = published + refused + late + duplicate.

    started_at: when Spark triggered the batch.
    duration_ms: from trigger to commit; `durations_ms` are its parts under Spark's names.
    published_rows: rows handed to each output, by output name; the quarantine is `refused_rows`.
    late_rows: rows that came behind the watermark and were dropped by a stateful operator.
    duplicate_rows: rows that a de-duplication dropped.
    watermark: the event-time watermark of the batch; unset without one.
    start_offsets, end_offsets: by input name, as the source writes them.
    snapshot_ids: the snapshot of each output, by output name.
    skipped_input: input that no batch will ever read, by input name and place: the offsets of a Kafka partition that
        were removed before they were read, the rows of an Iceberg snapshot that was skipped, records without a value
        that are left out. It is not among the input rows, and empty unless the declaration allows it.
    is_rejected: whether a person rejected the batch: no output gets its rows, and all of them are `refused_rows`.
    rejected_files: the files of which no record was good, at most `MOST_REJECTED_FILES`.
    state_rows: the rows of all state stores of the query after the batch. state_bytes: the memory that they take in the
        executors, as Spark reports it. Both unset for a query without state.
    undeclared_fields: how often each field was sent that no column takes, by input name and field. The ledger adds them
        to the sums of the stream and does not keep them with the batch.
    rule_results: what the rules of its outputs found; the ledger has them in a table of their own.
    column_figures: nulls and bounds by output and column, of outputs that are appended or replaced. The ledger adds
        them to those of the hour and does not keep them with the batch.
    """

    key: PublicationKey
    run_id: str
    started_at: datetime
    duration_ms: int
    input_rows: int
    published_rows: Mapping[str, int]
    refused_rows: int = 0
    late_rows: int = 0
    duplicate_rows: int = 0
    watermark: datetime | None = None
    start_offsets: Mapping[str, Any] = field(default_factory=dict)
    end_offsets: Mapping[str, Any] = field(default_factory=dict)
    snapshot_ids: Mapping[str, int] = field(default_factory=dict)
    durations_ms: Mapping[str, int] = field(default_factory=dict)
    skipped_input: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    is_rejected: bool = False
    rejected_files: tuple[str, ...] = ()
    state_rows: int | None = None
    state_bytes: int | None = None
    undeclared_fields: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rule_results: tuple[RuleResult, ...] = ()
    column_figures: Mapping[str, Mapping[str, ColumnFigures]] = field(default_factory=dict)
    recorded_at: datetime | None = None

    @property
    def is_all_refused(self) -> bool:
        """Whether every row was refused, and not by a person."""
        is_refused = not self.is_rejected and self.refused_rows >= self.input_rows
        return is_refused and not any(self.published_rows.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTotals:
    """What all batches of a stream did together. `published_rows` is by output name."""

    stream: str
    batches: int
    input_rows: int
    published_rows: Mapping[str, int]
    refused_rows: int
    late_rows: int
    duplicate_rows: int


_KEY_FIELDS = ("stream", "generation", "batch")
_ELSEWHERE = ("undeclared_fields", "rule_results", "column_figures")


class Batch(LedgerTable, record=BatchObservation, key=_KEY_FIELDS, without=_ELSEWHERE):
    """A delivered batch, under its publication key."""

    __tablename__ = "batches"
    __table_args__ = (
        Index(None, "stream", "recorded_at"),
        Index(None, "run_id"),
        Index("ix_batches_rejected_files", *_KEY_FIELDS, postgresql_where=text("rejected_files <> '[]'::jsonb")),
    )


class BatchTotals(LedgerTable, record=StreamTotals, key=("stream",)):
    """The sums over all batches of a generation, also removed ones; a trigger adds each new batch."""

    __tablename__ = "batch_totals"

    generation: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, sort_order=1)


_SUMS = ("batches", "input_rows", "refused_rows", "late_rows", "duplicate_rows")
BATCH_COLUMNS = Batch.columns()

_LONG = frozenset({"start_offsets", "end_offsets", "snapshot_ids", "durations_ms", "skipped_input"})

SHORT_BATCH_COLUMNS = tuple(column for column in BATCH_COLUMNS if column.name not in _LONG)
"""Without those that are as long as a topic has partitions."""


def record_batch(ledger: Ledger, batch: BatchObservation) -> bool:
    """Record what a batch did. Idempotent by its key: what was recorded first stays.

    Returns
    -------
    Whether the batch was new to the ledger.
    """
    values = values_of(batch, without=_ELSEWHERE)
    with ledger.transaction() as connection:
        recorded = connection.execute(
            insert(Batch).values(**values).on_conflict_do_nothing(index_elements=_KEY_FIELDS).returning(Batch.batch)
        ).one_or_none()
        if recorded is not None:
            add_undeclared_fields(connection, batch.key.stream, batch.undeclared_fields, batch=batch.key.number)
            add_rule_results(connection, batch.rule_results)
            _add_figures(connection, batch)
    return recorded is not None


def _add_figures(connection: Connection, batch: BatchObservation) -> None:
    """Without its figures a batch is recorded all the same: the staging tables are cleared by its record."""
    try:
        with connection.begin_nested():
            add_column_figures(connection, batch.key.stream, batch.column_figures)
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        _log.warning("the figures of batch %s are not kept: %s", batch.key, error.orig)


def find_batch(ledger: Ledger, key: PublicationKey) -> BatchObservation | None:
    """The batch of this key; none when it is not recorded, or not any more."""
    same = (Batch.stream == key.stream, Batch.generation == key.generation, Batch.batch == key.batch)
    with ledger.transaction() as connection:
        row = connection.execute(select(*BATCH_COLUMNS).where(*same)).one_or_none()
    return None if row is None else record_of(BatchObservation, row)


def newest_batch(ledger: Ledger, stream: str, *, generation: int | None = None) -> BatchObservation | None:
    """The newest batch of a stream, or of one generation of it; none before its first."""
    newest = next(iter(recent_batches(ledger, stream, limit=1)), None)
    return newest if newest is not None and generation in (None, newest.key.generation) else None


def newest_batch_before(ledger: Ledger, stream: str, *, generation: int) -> BatchObservation | None:
    """The newest batch of the generation before this one that has any."""
    found = (
        select(*BATCH_COLUMNS)
        .where(Batch.stream == stream, Batch.generation < generation)
        .order_by(Batch.generation.desc(), Batch.batch.desc())
        .limit(1)
    )
    with ledger.transaction() as connection:
        row = connection.execute(found).one_or_none()
    return None if row is None else record_of(BatchObservation, row)


def find_rejection(ledger: Ledger, stream: str, *, generation: int, batch: int) -> BatchObservation | None:
    """The record of a batch that a person rejected; none when it was not rejected."""
    return next((one for one in _rejections(ledger, stream, generation) if one.key.batch == batch), None)


def rejected_batches(ledger: Ledger, stream: str, *, generation: int) -> frozenset[int]:
    """The numbers of the batches of a generation that a person rejected."""
    return frozenset(one.key.batch for one in _rejections(ledger, stream, generation))


def rejections_of(ledger: Ledger, stream: str) -> tuple[BatchObservation, ...]:
    """The batches of all generations of a stream that a person rejected, oldest first."""
    with ledger.transaction() as connection:
        rows = connection.execute(
            select(*BATCH_COLUMNS)
            .where(Batch.stream == stream, Batch.is_rejected)
            .order_by(Batch.generation, Batch.batch)
        ).all()
    return tuple(record_of(BatchObservation, row) for row in rows)


def rejections_in(ledger: Ledger, stream: str, *, generation: int) -> tuple[BatchObservation, ...]:
    """The batches that a person rejected in a generation and in those that it continues, whose checkpoints have its
    query; oldest first. What was rejected before a reset was read again since.
    """
    joined = _continued(stream, generation)
    with ledger.transaction() as connection:
        rows = connection.execute(
            select(*BATCH_COLUMNS)
            .where(Batch.stream == stream, Batch.is_rejected, Batch.generation.in_(joined))
            .order_by(Batch.generation, Batch.batch)
        ).all()
    return tuple(record_of(BatchObservation, row) for row in rows)


def continued_generations(ledger: Ledger, stream: str, *, generation: int) -> frozenset[int]:
    """A generation and those that it continues: nothing that they have read was read again since."""
    with ledger.transaction() as connection:
        return frozenset(connection.execute(_continued(stream, generation)).scalars())


def _continued(stream: str, generation: int) -> Select[Any]:
    query = select(Generation.query_id).where(Generation.stream == stream, Generation.generation == generation)
    return select(Generation.generation).where(
        Generation.stream == stream,
        Generation.generation <= generation,
        or_(Generation.generation == generation, Generation.query_id == query.scalar_subquery()),
    )


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


MOST_COUNTED = 10_000
"""Up to how many batches are counted; more are as many."""


def count_batches_since(ledger: Ledger, streams: Sequence[str], since: datetime) -> int:
    """How many batches of these streams were recorded since then, at most `MOST_COUNTED`."""
    found = select(literal(1)).where(Batch.stream.in_(streams), Batch.recorded_at > since).limit(MOST_COUNTED)
    with ledger.transaction() as connection:
        return int(connection.execute(select(func.count()).select_from(found.subquery())).scalar_one())


def recorded_among(ledger: Ledger, stream: str, *, generation: int, batches: Collection[int]) -> frozenset[int]:
    """Which of these batches of a generation the ledger has, those that a person rejected too."""
    wanted = (Batch.stream == stream, Batch.generation == generation, Batch.batch.in_(batches))
    with ledger.transaction() as connection:
        return frozenset(connection.execute(select(Batch.batch).where(*wanted)).scalars())


def arrived_since(
    ledger: Ledger, stream: str, keys: Collection[tuple[int, int]], since: datetime
) -> frozenset[tuple[int, int]]:
    """Of batches of a stream, as generation and number, those that became visible at `since` or later, or may have: a
    held batch is staged long before. What the ledger does not have is on its way into it when it is newer than all
    that is, and was removed from it, or forgotten, otherwise.
    """
    if not keys:
        return frozenset()
    place, newest = tuple_(Batch.generation, Batch.batch), newest_batch(ledger, stream)
    asked = select(Batch.generation, Batch.batch).where(Batch.stream == stream, place <= max(keys))
    with ledger.transaction() as connection:
        late = {(row.generation, row.batch) for row in connection.execute(asked.where(Batch.recorded_at >= since))}
    at = None if newest is None else (newest.key.generation, newest.key.batch)
    return frozenset(key for key in keys if key in late or at is None or key > at)


def totals(ledger: Ledger, stream: str) -> StreamTotals:
    """The sums over all batches of a stream; see `all_totals`."""
    return all_totals(ledger, [stream])[stream]


def all_totals(ledger: Ledger, streams: Sequence[str]) -> Mapping[str, StreamTotals]:
    """The sums over all batches of each of these streams and all generations, including batches that were removed."""
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
