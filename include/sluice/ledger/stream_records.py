"""What supervision decides on, read for many streams at once: ten queries, however many streams there are.

One row of each stream is read of desired states, leases, generations, pauses and troubles; of runs, batches and samples
the newest ones of each are looked up by an index. A pass of the reconciler and a look at one stream read the same, so
both decide alike. When a long pass comes to a stream, its records may be some seconds old: a step that is due reads
again before it acts (`sluice.supervision.supervisor`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from sluice.ledger.batches import BATCH_COLUMNS, SHORT_BATCH_COLUMNS, batch_of
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import desired_state_of, select_desired_states
from sluice.ledger.models import Batch, DagPauseSeen, Generation, Lease, Run, Trouble
from sluice.ledger.progress_samples import select_recent_samples
from sluice.ledger.records.dag_pause import DagPause
from sluice.ledger.records.desired_state import DesiredStateObservation
from sluice.ledger.records.lease import LeaseObservation
from sluice.ledger.records.progress_sample import ProgressSample
from sluice.ledger.records.run import RunObservation
from sluice.ledger.records.stream_batch import BatchObservation
from sluice.ledger.records.stream_trouble import StreamTrouble
from sluice.ledger.runs import run_of
from sluice.ledger.stream_selects import asked_for, select_newest

RUNS = 2
"""The newest run, and the one before it, whose end may be the reason of the newest."""

BATCHES = 20
"""How many of the newest batches show a stream's usual step."""

_NEWEST_BATCH = (Batch.generation.desc(), Batch.batch.desc())
_GENERATION = (Generation.stream, Generation.generation, Generation.fingerprint)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecords:
    """One stream as the ledger has it at one moment.

    observed_at: that moment, by the database's clock.
    runs: the newest `RUNS`. batches: the newest `BATCHES`, without offsets; all newest first.
    newest_batch: with its offsets; right after a reset it is one of the previous generation.
    generation, fingerprint: of its newest checkpoint; unset and empty before its first start.
    samples: of its progress, newest first, as `recent_progress_samples` returns them.
    dag_pause: what Airflow last said of its DAG. trouble: what is wrong with it; unset when nothing is.
    """

    stream: str
    observed_at: datetime
    desired: DesiredStateObservation
    runs: tuple[RunObservation, ...] = ()
    newest_batch: BatchObservation | None = None
    batches: tuple[BatchObservation, ...] = ()
    lease: LeaseObservation | None = None
    generation: int | None = None
    fingerprint: Mapping[str, str] = field(default_factory=dict, hash=False)
    samples: tuple[ProgressSample, ...] = ()
    dag_pause: DagPause | None = None
    trouble: StreamTrouble | None = None

    @property
    def newest_run(self) -> RunObservation | None:
        """The newest run, live or ended; none before the first."""
        return self.runs[0] if self.runs else None


def read_stream(ledger: Ledger, stream: str) -> StreamRecords:
    """Read one stream; see `read_streams`."""
    return read_streams(ledger, [stream])[stream]


def read_streams(ledger: Ledger, names: Sequence[str]) -> Mapping[str, StreamRecords]:
    """Read what the ledger has of these streams; of one that it has never heard of it has no run, batch or sample.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        asked = _Asked(connection, names)
        runs = asked.newest(Run, tuple(Run.__table__.columns), Run.number.desc(), limit=RUNS)
        newest = asked.newest(Batch, BATCH_COLUMNS, *_NEWEST_BATCH, limit=1)
        batches = asked.newest(Batch, SHORT_BATCH_COLUMNS, *_NEWEST_BATCH, limit=BATCHES)
        generations = asked.newest(Generation, _GENERATION, Generation.generation.desc(), limit=1)
        samples = asked.rows(select_recent_samples(asked.names))
        desired = asked.rows(select_desired_states(names))
        leases = asked.rows_of(Lease)
        pauses = asked.rows_of(DagPauseSeen)
        troubles = asked.rows_of(Trouble)
        now: datetime = connection.execute(
            select(func.clock_timestamp())
        ).scalar_one()  # after all that it is compared to

    def one(found: Mapping[str, list[Row[Any]]], name: str) -> Row[Any] | None:
        return found[name][0] if name in found else None

    def records(name: str) -> StreamRecords:
        batch, generation, lease = one(newest, name), one(generations, name), one(leases, name)
        pause, trouble = one(pauses, name), one(troubles, name)
        return StreamRecords(
            stream=name,
            observed_at=now,
            desired=desired_state_of(name, one(desired, name)),
            runs=tuple(run_of(row) for row in runs.get(name, ())),
            newest_batch=None if batch is None else batch_of(batch),
            batches=tuple(batch_of(row) for row in batches.get(name, ())),
            lease=None if lease is None else LeaseObservation(**lease._mapping),
            generation=None if generation is None else generation.generation,
            fingerprint={} if generation is None else generation.fingerprint or {},
            samples=tuple(ProgressSample(**row._mapping) for row in samples.get(name, ())),
            dag_pause=None if pause is None else DagPause(**pause._mapping),
            trouble=None if trouble is None else StreamTrouble(**trouble._mapping, observed_at=now),
        )

    return {name: records(name) for name in names}


class _Asked:
    """Queries about one set of streams, inside one transaction; each answers with the rows of each stream."""

    def __init__(self, connection: Connection, names: Sequence[str]) -> None:
        self.connection = connection
        self.names = asked_for(names)
        self._list = list(names)

    def rows(self, query: Select[Any]) -> Mapping[str, list[Row[Any]]]:
        """The rows of each stream, in the order of the query."""
        found: dict[str, list[Row[Any]]] = {}
        for row in self.connection.execute(query):
            found.setdefault(row.stream, []).append(row)
        return found

    def rows_of(self, table: Any) -> Mapping[str, list[Row[Any]]]:
        """The row of each stream in a table that has one of each."""
        return self.rows(select(*table.__table__.columns).where(table.stream.in_(self._list)))

    def newest(self, table: Any, columns: Sequence[Any], *order: Any, limit: int) -> Mapping[str, list[Row[Any]]]:
        """The newest rows of each stream in a table."""
        return self.rows(select_newest(self.names, table, columns, order, limit=limit))
