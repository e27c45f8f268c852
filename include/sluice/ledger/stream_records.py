"""What supervision decides on, read for many streams at once: five queries, however many streams there are.

One reads what each stream has one row of: its desired state, lease, generation, pause and trouble. Of runs, batches and
samples the newest ones of each are looked up by an index. A pass of the reconciler and a look at one stream read the
same, so both decide alike. When a long pass comes to a stream, its records may be some seconds old: a step that is due
reads again before it acts (`sluice.supervision.supervisor`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, FromClause, Row, Select, TableValuedAlias, func, select, true

from sluice.ledger.airflow_owner import DagPause, DagPauseSeen
from sluice.ledger.asked_streams import asked_for, select_newest
from sluice.ledger.batches import BATCH_COLUMNS, SHORT_BATCH_COLUMNS, Batch, BatchObservation
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import DesiredStateObservation, StreamDesiredState, desired_state_of
from sluice.ledger.generations import Generation
from sluice.ledger.leases import Lease, LeaseObservation
from sluice.ledger.progress_samples import ProgressSample, select_recent_samples
from sluice.ledger.run_table import Run
from sluice.ledger.run_values import RunObservation
from sluice.ledger.stored_values import record_of
from sluice.ledger.stream_troubles import StreamTrouble, Trouble

RUNS = 2
"""The newest run, and the one before it, whose end may be the reason of the newest."""

BATCHES = 20
"""How many of the newest batches show a stream's usual step."""

_NEWEST_BATCH = (Batch.generation.desc(), Batch.batch.desc())
_ONE_OF_EACH = {"desired": StreamDesiredState, "lease": Lease, "pause": DagPauseSeen, "trouble": Trouble}
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
    """Read what the ledger has of these streams; of one that it has never heard of it has no run, batch or sample."""
    with ledger.transaction() as connection:
        asked = _Asked(connection, names)
        runs = asked.newest(Run, Run.columns(), Run.number.desc(), limit=RUNS)
        newest = asked.newest(Batch, BATCH_COLUMNS, *_NEWEST_BATCH, limit=1)
        batches = asked.newest(Batch, SHORT_BATCH_COLUMNS, *_NEWEST_BATCH, limit=BATCHES)
        samples = asked.rows(select_recent_samples(asked.names))
        alone = asked.rows(
            _select_single_rows(asked.names)
        )  # last: its time is that of the look, and no age is negative

    def one(found: Mapping[str, list[Row[Any]]], name: str) -> Row[Any] | None:
        return found[name][0] if name in found else None

    def records(name: str) -> StreamRecords:
        batch, single = one(newest, name), _Singles(alone[name][0])
        lease, generation = single.values("lease"), single.values("generation")
        pause, trouble = single.values("pause"), single.values("trouble")
        return StreamRecords(
            stream=name,
            observed_at=single.now,
            desired=desired_state_of(name, single.values("desired")),
            runs=tuple(record_of(RunObservation, row) for row in runs.get(name, ())),
            newest_batch=None if batch is None else record_of(BatchObservation, batch),
            batches=tuple(record_of(BatchObservation, row) for row in batches.get(name, ())),
            lease=None if lease is None else record_of(LeaseObservation, lease),
            generation=None if generation is None else generation["generation"],
            fingerprint={} if generation is None else generation["fingerprint"] or {},
            samples=tuple(record_of(ProgressSample, row) for row in samples.get(name, ())),
            dag_pause=None if pause is None else record_of(DagPause, pause),
            trouble=None if trouble is None else record_of(StreamTrouble, trouble | {"observed_at": single.now}),
        )

    return {name: records(name) for name in names}


def _select_single_rows(asked: TableValuedAlias) -> Select[Any]:
    """The row of each stream in every table that has one of each, side by side: `lease_token`, `trouble_since`, …"""
    generation = (
        select(*_GENERATION)
        .where(Generation.stream == asked.c.stream)
        .order_by(Generation.generation.desc())
        .limit(1)
        .lateral("generation")
    )
    tables: dict[str, FromClause] = {name: table.__table__.alias(name) for name, table in _ONE_OF_EACH.items()}
    columns = [
        column.label(f"{name}_{column.key}")
        for name, table in {**tables, "generation": generation}.items()
        for column in table.c
    ]
    joined: FromClause = asked.outerjoin(generation, true())
    for table in tables.values():
        joined = joined.outerjoin(table, table.c.stream == asked.c.stream)
    return select(asked.c.stream, func.clock_timestamp().label("now"), *columns).select_from(joined)


class _Singles:
    """One row of `_select_single_rows`, taken apart."""

    def __init__(self, row: Row[Any]) -> None:
        self.now: datetime = row.now
        self._values = row._mapping

    def values(self, table: str) -> dict[str, Any] | None:
        """The row of a table; none when the stream has none."""
        prefix = f"{table}_"
        found = {name.removeprefix(prefix): value for name, value in self._values.items() if name.startswith(prefix)}
        return None if found["stream"] is None else found


class _Asked:
    """Queries about one set of streams, inside one transaction; each answers with the rows of each stream."""

    def __init__(self, connection: Connection, names: Sequence[str]) -> None:
        self.connection = connection
        self.names = asked_for(names)

    def rows(self, query: Select[Any]) -> Mapping[str, list[Row[Any]]]:
        """The rows of each stream, in the order of the query."""
        found: dict[str, list[Row[Any]]] = {}
        for row in self.connection.execute(query):
            found.setdefault(row.stream, []).append(row)
        return found

    def newest(self, table: Any, columns: Sequence[Any], *order: Any, limit: int) -> Mapping[str, list[Row[Any]]]:
        """The newest rows of each stream in a table."""
        return self.rows(select_newest(self.names, table, columns, order, limit=limit))
