"""What is judged of streams, read for many at once: four or five queries, however many streams there are.

One reads what each stream has one row of: its desired state, lease, generation, pause and trouble. Of runs, batches and
samples the newest ones of each are looked up by an index. A pass of the reconciler, a page of all streams and a look at
one stream read the same, so all judge alike. When a long pass comes to a stream, its records may be some seconds old: a
step that is due reads again before it acts (`sluice.supervision.supervisor`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    Connection,
    FromClause,
    Row,
    Select,
    TableValuedAlias,
    Text,
    func,
    literal,
    select,
    text,
    true,
)

from sluice.ledger.airflow_owner import DagPause, DagPauseSeen, ReconcilerPass
from sluice.ledger.announcements import NewestIncrement
from sluice.ledger.batches import SHORT_BATCH_COLUMNS, Batch, BatchObservation
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import DesiredStateObservation, StreamDesiredState, desired_state_of
from sluice.ledger.generations import Generation
from sluice.ledger.held_batches import HeldBatch, HeldBatchOfStream, RejectedSince
from sluice.ledger.progress_samples import ProgressSample, SourceSample, select_recent_samples
from sluice.ledger.run_leases import Lease, LeaseObservation, Run
from sluice.ledger.run_values import RunObservation
from sluice.ledger.stored_values import record_of
from sluice.ledger.stream_troubles import StreamTrouble, Trouble

RUNS = 2
"""The newest run, and the one before it, whose end may be the reason of the newest."""

BATCHES = 20
"""How many of the newest batches show a stream's usual step."""

FEW_BATCHES = 2
"""A stateful stream follows a batch with rows by one without, to move its watermark."""

RunsThatCount = Callable[[RunObservation, RunObservation | None], int]
"""How many of the newest runs of a stream are judged, by its newest one and the one before it, if there is one."""

_ONE_OF_EACH = {
    "desired": StreamDesiredState,
    "held": HeldBatchOfStream,
    "increment": NewestIncrement,
    "lease": Lease,
    "pause": DagPauseSeen,
    "trouble": Trouble,
}
_NEWEST_BATCH = (Batch.generation.desc(), Batch.batch.desc())
_HAS_REJECTED_FILES = text("rejected_files <> '[]'::jsonb")
_GENERATION = (Generation.stream, Generation.generation, Generation.fingerprint, Generation.identities)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecords:
    """One stream as the ledger has it at one moment.

    observed_at: that moment, by the database's clock, the reference of every age.
    runs: the newest `RUNS`, or as many as count. batches: without offsets; right after a reset those of the previous
        generation. samples: of its progress. All newest first.
    generation: of its newest checkpoint; unset before its first start.
    fingerprint: what that checkpoint is bound to (`sluice.checkpoints.compatibility`); empty before its first batch.
    identities: the ids of what that generation reads and writes; empty before its first start.
    increment_at: when an increment last ended well, also without a run; unset before the first.
    dag_pause: what Airflow last said of its DAG. trouble: what is wrong with it; unset when nothing is.
    refusing: the newest batch with a file of which no record was good; unset without one.
    refusing_digests: of runs before the newest ones, by run: the declaration by which they refused all rows of a batch
        or of a file.
    held: the batch that waits for a person; unset when nothing is held.
    rejected: what it has rejected in the window of its limit; unset without a limit.
    up_since: since when the reconciler makes passes without a standstill; unset before its first.
    """

    stream: str
    observed_at: datetime
    desired: DesiredStateObservation
    runs: tuple[RunObservation, ...] = ()
    batches: tuple[BatchObservation, ...] = ()
    lease: LeaseObservation | None = None
    generation: int | None = None
    fingerprint: Mapping[str, str] = field(default_factory=dict, hash=False)
    identities: Mapping[str, str] = field(default_factory=dict, hash=False)
    samples: tuple[ProgressSample, ...] = ()
    increment_at: datetime | None = None
    dag_pause: DagPause | None = None
    trouble: StreamTrouble | None = None
    held: HeldBatch | None = None
    rejected: RejectedSince | None = None
    up_since: datetime | None = None
    refusing: BatchObservation | None = None
    refusing_digests: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def newest_run(self) -> RunObservation | None:
        """The newest run, live or ended; none before the first."""
        return self.runs[0] if self.runs else None

    def digest_of(self, run_id: str) -> str | None:
        """The declaration of a run that refused all of a batch or file, or is one of the newest; unset: not known."""
        newest = {run.run_id: run.declaration_digest for run in self.runs}
        return newest.get(run_id, self.refusing_digests.get(run_id))

    @property
    def newest_batch(self) -> BatchObservation | None:
        """The newest batch; right after a reset it is one of the previous generation."""
        return self.batches[0] if self.batches else None

    @property
    def current_batch(self) -> BatchObservation | None:
        """The newest batch of the current generation, at whose end the stream stands; none before its first."""
        newest = self.newest_batch
        return newest if newest is not None and newest.key.generation == self.generation else None

    @property
    def is_lease_over(self) -> bool:
        """Whether the newest run's lease has expired, so that it may be given to another run."""
        lease, run = self.lease, self.newest_run
        return (
            lease is not None
            and run is not None
            and lease.run_id == run.run_id
            and not lease.is_held(at=self.observed_at)
        )

    @property
    def heartbeat_age(self) -> timedelta | None:
        """How long ago the newest run's driver reported; unset before its first heartbeat."""
        run = self.newest_run
        return None if run is None or run.heartbeat_at is None else self.observed_at - run.heartbeat_at

    @property
    def batch_age(self) -> timedelta | None:
        """How long ago the newest batch was recorded; unset before the first."""
        batch = self.newest_batch
        return None if batch is None or batch.recorded_at is None else self.observed_at - batch.recorded_at


def read_stream(ledger: Ledger, stream: str) -> StreamRecords:
    """Read one stream; see `read_streams`."""
    return read_streams(ledger, [stream])[stream]


def read_streams(
    ledger: Ledger, names: Sequence[str], *, runs_that_count: RunsThatCount | None = None, with_progress: bool = False
) -> Mapping[str, StreamRecords]:
    """Read what the ledger has of these streams; of one that it has never heard of it has no run, batch or sample.

    Parameters
    ----------
    runs_that_count: of streams whose earlier runs count; unset: of none.
    with_progress: whether to read all kept samples and `BATCHES` batches, of which a run is ended that makes no
        progress; else the newest of each, and `FEW_BATCHES` batches.
    """
    with ledger.transaction() as connection:
        asked = _Asked(connection, names)
        runs = asked.runs(runs_that_count)
        batches = asked.newest(
            Batch,
            SHORT_BATCH_COLUMNS,
            *_NEWEST_BATCH,
            limit=BATCHES if with_progress else FEW_BATCHES,
        )
        samples = (
            asked.rows(select_recent_samples(asked.names))
            if with_progress
            else asked.newest(SourceSample, SourceSample.columns(), SourceSample.observed_at.desc(), limit=1)
        )
        refusing = asked.rows(
            select_newest(asked.names, Batch, SHORT_BATCH_COLUMNS, _NEWEST_BATCH, limit=1, where=_HAS_REJECTED_FILES)
        )
        digests = asked.refusing_digests(runs, batches, refusing)
        # Last: its time is that of the look, and no age is negative.
        alone = asked.rows(_select_single_rows(asked.names))
    known = {
        name: _records(name, _Singles(alone[name][0]), runs.get(name, ()), batches.get(name, ()), samples.get(name, ()))
        for name in names
    }
    for name, (row,) in refusing.items():
        known[name] = replace(known[name], refusing=record_of(BatchObservation, row))
    return known | {name: replace(known[name], refusing_digests=of_runs) for name, of_runs in digests.items()}


def _records(
    name: str,
    single: _Singles,
    runs: Sequence[RunObservation],
    batches: Sequence[Row[Any]],
    samples: Sequence[Row[Any]],
) -> StreamRecords:
    lease, generation = single.values("lease"), single.values("generation")
    pause, trouble, increment = single.values("pause"), single.values("trouble"), single.values("increment")
    held = single.values("held")
    known = StreamRecords(
        stream=name,
        observed_at=single.now,
        desired=desired_state_of(name, single.values("desired")),
        runs=tuple(runs),
        batches=tuple(record_of(BatchObservation, row) for row in batches),
        lease=None if lease is None else record_of(LeaseObservation, lease),
        generation=None if generation is None else generation["generation"],
        samples=tuple(record_of(ProgressSample, row) for row in samples),
        increment_at=None if increment is None else increment["ended_at"],
        dag_pause=None if pause is None else record_of(DagPause, pause),
        trouble=None if trouble is None else record_of(StreamTrouble, trouble | {"observed_at": single.now}),
        held=None if held is None else record_of(HeldBatch, held),
        up_since=single.up_since,
    )
    if generation is None or known.current_batch is None:
        return known
    return replace(known, fingerprint=generation["fingerprint"] or {}, identities=generation["identities"])


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
    up_since = select(ReconcilerPass.up_since).scalar_subquery().label("up_since")
    return select(asked.c.stream, func.clock_timestamp().label("now"), up_since, *columns).select_from(joined)


class _Singles:
    """One row of `_select_single_rows`, taken apart."""

    def __init__(self, row: Row[Any]) -> None:
        self.now: datetime = row.now
        self.up_since: datetime | None = row.up_since
        self._row = row
        self._places = _places_of(row._fields)

    def values(self, table: str) -> dict[str, Any] | None:
        """The row of a table; none when the stream has none."""
        places = self._places[table]
        return None if self._row[places["stream"]] is None else {name: self._row[at] for name, at in places.items()}


@cache
def _places_of(columns: tuple[str, ...]) -> Mapping[str, Mapping[str, int]]:
    """Where a row of `_select_single_rows` has the columns of each table, by their names in that table."""
    return {
        table: {name.removeprefix(f"{table}_"): at for at, name in enumerate(columns) if name.startswith(f"{table}_")}
        for table in (*_ONE_OF_EACH, "generation")
    }


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

    def runs(self, that_count: RunsThatCount | None) -> Mapping[str, tuple[RunObservation, ...]]:
        """The newest runs of each stream, and further ones of a stream whose earlier runs count."""
        found = self._runs(self.names, limit=RUNS)
        several = {name: runs for name, runs in found.items() if len(runs) == RUNS}
        counts = {name: 0 if that_count is None else that_count(*runs) for name, runs in several.items()}
        deeper = [name for name, count in counts.items() if count > RUNS]
        return found | (self._runs(asked_for(deeper), limit=max(counts.values())) if deeper else {})

    def _runs(self, names: TableValuedAlias, *, limit: int) -> dict[str, tuple[RunObservation, ...]]:
        rows = self.rows(select_newest(names, Run, Run.columns(), (Run.number.desc(),), limit=limit))
        return {name: tuple(record_of(RunObservation, row) for row in found) for name, found in rows.items()}

    def refusing_digests(
        self,
        runs: Mapping[str, Sequence[RunObservation]],
        batches: Mapping[str, Sequence[Row[Any]]],
        refusing: Mapping[str, Sequence[Row[Any]]],
    ) -> Mapping[str, Mapping[str, str]]:
        """The declarations by which earlier runs than these refused all rows of a batch or of a file: asked for only
        where one did, which is seldom."""
        wanted = {row.run_id for rows in batches.values() for row in rows if 0 < row.input_rows <= row.refused_rows}
        wanted |= {row.run_id for rows in refusing.values() for row in rows}
        wanted -= {run.run_id for of_stream in runs.values() for run in of_stream}
        if not wanted:
            return {}
        found: dict[str, dict[str, str]] = {}
        for row in self.connection.execute(
            select(Run.stream, Run.run_id, Run.declaration_digest).where(Run.run_id.in_(wanted))
        ):
            found.setdefault(row.stream, {})[row.run_id] = row.declaration_digest
        return found

    def newest(self, table: Any, columns: Sequence[Any], *order: Any, limit: int) -> Mapping[str, list[Row[Any]]]:
        """The newest rows of each stream in a table."""
        return self.rows(select_newest(self.names, table, columns, order, limit=limit))


def asked_for(names: Sequence[str]) -> TableValuedAlias:
    """The names of the streams that are asked for, as a table."""
    return func.unnest(literal(list(names), ARRAY(Text))).table_valued("stream").render_derived(name="asked")


def select_newest(
    asked: FromClause, table: Any, columns: Sequence[Any], order: Sequence[Any], *, limit: int, where: Any = None
) -> Select[Any]:
    """The newest rows of each stream in a table, at most `limit` of each. where: what they must be; unset: any."""
    of_stream = [table.stream == asked.c.stream, *([] if where is None else [where])]
    newest = select(*columns).where(*of_stream).order_by(*order).limit(limit).lateral("newest")
    return select(*newest.c).select_from(asked.join(newest, true()))
