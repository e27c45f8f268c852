"""What the ledger knows of many streams at once: a few queries, however many streams there are.

Each query takes the names of the streams and looks up the newest rows of each by an index (`LATERAL … LIMIT`), so its
cost grows with the number of streams and not with the number of batches, runs or samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, func, select
from sqlalchemy.orm import InstrumentedAttribute

from sluice.ledger.asked_streams import asked_for, select_newest
from sluice.ledger.batches import SHORT_BATCH_COLUMNS, Batch, BatchObservation
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import DesiredStateObservation, desired_state_of, select_desired_states
from sluice.ledger.generations import Generation
from sluice.ledger.leases import Lease, LeaseObservation
from sluice.ledger.progress_samples import ProgressSample, SourceSample
from sluice.ledger.run_table import Run
from sluice.ledger.run_values import DesiredState, RunObservation
from sluice.ledger.stored_values import record_of
from sluice.ledger.stream_selects import (
    RATE_WINDOW,
    select_arrivals,
    select_failed_runs,
    select_lag_history,
    select_rates,
)
from sluice.ledger.stream_troubles import StreamTrouble, Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRates:
    """What the batches of the last `RATE_WINDOW` did together, in rows a second."""

    read_per_second: float = 0.0
    published_per_second: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownStream:
    """A stream as the ledger has it.

    runs: the newest first: one of a stream with a live run, more of one whose failures count.
    generation, fingerprint: of its newest checkpoint; unset and empty before its first start.
    behind: how old its oldest unread row is at least; unset when unknown.
    failed_runs: those that failed or were lost within `FAILURES_WITHIN`.
    """

    desired: DesiredStateObservation
    runs: tuple[RunObservation, ...] = ()
    newest_batch: BatchObservation | None = None
    lease: LeaseObservation | None = None
    generation: int | None = None
    fingerprint: Mapping[str, str] = field(default_factory=dict, hash=False)
    trouble: StreamTrouble | None = None
    sample: ProgressSample | None = None
    behind: timedelta | None = None
    rates: StreamRates = StreamRates()
    failed_runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownStreams:
    """All streams that were asked for, by name, as of one moment of the database's clock."""

    observed_at: datetime
    streams: Mapping[str, KnownStream]


def find_streams(ledger: Ledger, names: Sequence[str], *, runs_for_failures: int) -> KnownStreams:
    """Read what the ledger knows of these streams, in one transaction.

    Parameters
    ----------
    runs_for_failures: how many runs are read of a stream whose newest run has ended.
    """
    with ledger.transaction() as connection:
        observed_at: datetime = connection.execute(select(func.now())).scalar_one()
        found = _Found(connection, tuple(names))
        runs = found.runs(runs_for_failures)
        desired = found.by_name(select_desired_states(names))
        batches = found.newest(Batch, SHORT_BATCH_COLUMNS, Batch.generation.desc(), Batch.batch.desc())
        leases = found.by_name(select(*Lease.columns()).where(found.is_asked(Lease.stream)))
        generations = found.newest(
            Generation, (Generation.stream, Generation.generation, Generation.fingerprint), Generation.generation.desc()
        )
        troubles = found.by_name(
            select(*Trouble.columns(), func.now().label("observed_at")).where(found.is_asked(Trouble.stream))
        )
        samples = found.newest(SourceSample, SourceSample.columns(), SourceSample.observed_at.desc())
        arrivals = found.by_name(select_arrivals(found.asked))
        rates = found.by_name(select_rates(found.asked))
        failed = found.by_name(select_failed_runs(found.asked))
    return KnownStreams(
        observed_at=observed_at,
        streams={
            name: _known(
                desired=desired_state_of(name, desired.get(name)),
                runs=runs.get(name, ()),
                batch=batches.get(name),
                lease=leases.get(name),
                generation=generations.get(name),
                trouble=troubles.get(name),
                sample=samples.get(name),
                arrival=arrivals.get(name),
                rates=rates.get(name),
                failed=failed.get(name),
                now=observed_at,
            )
            for name in names
        },
    )


def lag_history(
    ledger: Ledger, names: Sequence[str], *, within: timedelta, points: int
) -> Mapping[str, tuple[int | None, ...]]:
    """The unread rows of each stream at evenly spaced times, oldest first; unset where they were unknown.

    Each point is one look-up of an index, so streams that are sampled more often cost no more.
    """
    query = select_lag_history(asked_for(names), within=within, points=points)
    with ledger.transaction() as connection:
        unread = {row.stream: row.unread for row in connection.execute(query)}
    return {name: tuple(unread.get(name, {}).get(str(point)) for point in range(points)) for name in names}


class _Found:
    """Queries about one set of streams, inside one transaction."""

    def __init__(self, connection: Connection, names: tuple[str, ...]) -> None:
        self.connection = connection
        self.names = names
        self.asked = asked_for(names)

    def is_asked(self, column: InstrumentedAttribute[str]) -> ColumnElement[bool]:
        return column.in_(self.names)

    def by_name(self, query: Select[Any]) -> Mapping[str, Row[Any]]:
        return {row.stream: row for row in self.connection.execute(query)}

    def newest(self, table: Any, columns: Sequence[Any], *order: Any) -> Mapping[str, Row[Any]]:
        """The newest row of each stream in a table."""
        return self.by_name(select_newest(self.asked, table, columns, order, limit=1))

    def runs(self, runs_for_failures: int) -> Mapping[str, tuple[RunObservation, ...]]:
        """The newest run of each stream, and further ones of a stream that is to run and has none that lives."""
        columns = Run.columns()
        newest = self.newest(Run, columns, Run.number.desc())
        runs = {name: (record_of(RunObservation, row),) for name, row in newest.items()}
        ended = [name for name, found in runs.items() if _may_have_failed(found[0])]
        if not ended:
            return runs
        further: dict[str, list[RunObservation]] = {}
        query = select_newest(asked_for(ended), Run, columns, (Run.number.desc(),), limit=runs_for_failures)
        for row in self.connection.execute(query):
            further.setdefault(row.stream, []).append(record_of(RunObservation, row))
        return runs | {name: tuple(found) for name, found in further.items()}


def _may_have_failed(run: RunObservation) -> bool:
    return not run.is_live and run.desired_state is DesiredState.RUNNING


def _known(
    *,
    desired: DesiredStateObservation,
    runs: tuple[RunObservation, ...],
    batch: Row[Any] | None,
    lease: Row[Any] | None,
    generation: Row[Any] | None,
    trouble: Row[Any] | None,
    sample: Row[Any] | None,
    arrival: Row[Any] | None,
    rates: Row[Any] | None,
    failed: Row[Any] | None,
    now: datetime,
) -> KnownStream:
    seconds = RATE_WINDOW.total_seconds()
    return KnownStream(
        desired=desired,
        runs=runs,
        newest_batch=None if batch is None else record_of(BatchObservation, batch),
        lease=None if lease is None else record_of(LeaseObservation, lease),
        generation=None if generation is None else generation.generation,
        fingerprint={} if generation is None else generation.fingerprint or {},
        trouble=None if trouble is None else record_of(StreamTrouble, trouble),
        sample=None if sample is None else record_of(ProgressSample, sample),
        behind=None if arrival is None else _behind(arrival, now),
        rates=StreamRates()
        if rates is None
        else StreamRates(
            read_per_second=float(rates.read or 0) / seconds, published_per_second=float(rates.published or 0) / seconds
        ),
        failed_runs=0 if failed is None else failed.failed,
    )


def _behind(arrival: Row[Any], now: datetime) -> timedelta | None:
    if arrival.undone == 0:
        return timedelta(0)
    if arrival.unread_rows is None or arrival.arrived_at is None:
        return None
    behind: timedelta = now - arrival.arrived_at
    return max(behind, timedelta(0))
