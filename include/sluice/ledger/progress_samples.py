"""How much of their sources running streams have read: one sample each minute, kept for a day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
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

from sluice.ledger.batches import Batch, BatchObservation, BatchTotals
from sluice.ledger.connection import Ledger
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import record_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LagObservation:
    """The rows that lie in the sources of a stream and that no recorded batch has read.

    rows: unset when unknown; `problem` then says why. The rows of files that were not opened yet are unknown.
    files: the files that lie in its folders and that no planned batch has read; unset without such a source.
    undone: rows, files and shards with records that are known to be unread, also when another source did not answer;
        unset: nothing is.
    is_failure: whether a source that can be observed did not answer, or is not there.
    is_refused: whether a source itself answered that it is not there, or may not be read.
    """

    rows: int | None
    problem: str = ""
    files: int | None = None
    undone: int | None = field(default=None, compare=False)
    is_failure: bool = field(default=False, compare=False)
    is_refused: bool = field(default=False, compare=False)

    @property
    def text(self) -> str:
        """For a person: `1,234`, `3 files`, both, or `?`."""
        parts = [f"{self.rows:,}"] if self.rows is not None else []
        parts += [f"{self.files:,} file{'s' if self.files != 1 else ''}"] if self.files is not None else []
        return " + ".join(parts) if not self.problem and parts else "?"


LAG_UNKNOWN = LagObservation(rows=None, problem="it was not looked at")
"""The lag of a stream whose sources were not observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSample:
    """One sample.

    observed_at: the database's time.
    generation: that of the run that reads.
    batch: the newest recorded batch of that generation; unset before its first.
    read_rows: what the batches of that generation have read together.
    unread_rows: what lies in the sources and no recorded batch has read, asked of the sources themselves; unset when
        it is unknown, and `problem` says why.
    undone: rows and files that were known to be unread; unset: nothing was known.
    is_failure: whether a source that can be observed did not answer, or is not there.
    is_refused: whether a source itself answered that it is not there, or may not be read.
    """

    stream: str
    observed_at: datetime
    generation: int
    batch: int | None
    read_rows: int
    unread_rows: int | None
    problem: str = ""
    undone: int | None = None
    is_failure: bool = False
    is_refused: bool = False

    @property
    def known_undone(self) -> int | None:
        """Rows and files that are known to be unread; unset when nothing is known."""
        return self.unread_rows if self.undone is None else self.undone


class SourceSample(LedgerTable, record=ProgressSample, key=("stream", "observed_at"), now=("observed_at",)):
    """A sample of the progress of a running stream."""

    __tablename__ = "progress_samples"


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


def select_recent_samples(asked: FromClause) -> Select[Any]:
    """The query for the kept samples of several streams, newest first: each of the last hour, and of earlier hours
    one of ten minutes."""
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
