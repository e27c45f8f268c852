"""What the maintenance runs of the tables did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import BigInteger, Identity, Index, Row, column, func, insert, join, or_, select, true
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.connection import Ledger
from sluice.ledger.ledger_table import LedgerTable, newest_by_table
from sluice.ledger.stored_values import record_of, values_of


class MaintenanceStep(StrEnum):
    """The steps of a run, in the order in which they are safe: what a later one removes, an earlier one replaced."""

    REMOVE_OLD_ROWS = "remove_old_rows"
    REWRITE_DATA_FILES = "rewrite_data_files"
    REWRITE_MANIFESTS = "rewrite_manifests"
    PIN_SNAPSHOTS = "pin_snapshots"
    EXPIRE_SNAPSHOTS = "expire_snapshots"
    REMOVE_ORPHANS = "remove_orphans"
    COMPUTE_STATISTICS = "compute_statistics"


class StepOutcome(StrEnum):
    """The result of a step.

    SKIPPED: there was nothing to do.
    YIELDED: writers committed in between each time, so the step yielded.
    REFUSED: doing it could have harmed a reader, so it was not done.
    """

    DONE = "done"
    SKIPPED = "skipped"
    YIELDED = "yielded"
    REFUSED = "refused"
    FAILED = "failed"


UNFINISHED_OUTCOMES = frozenset({StepOutcome.YIELDED, StepOutcome.REFUSED, StepOutcome.FAILED})
"""A run with one of these has not done everything that was due. Whether it ends red: `maintenance.run_verdict`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepObservation:
    """One step of a maintenance run.

    reason: the name of why it was done, or not done; `explanation` is the sentence for a person.
    attempts: how often the procedure was called; 0 when the step was skipped or refused.
    result: the row that Spark's procedure returned, by its own column names.
    basis: by what files and policy there was nothing to rewrite, as a digest; empty for every other decision.
    """

    step: MaintenanceStep
    outcome: StepOutcome
    reason: str
    explanation: str
    attempts: int = 0
    duration_ms: int = 0
    result: Mapping[str, Any] = field(default_factory=dict)
    basis: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSnapshot:
    """A snapshot that a run kept for a stream.

    endpoint: the stream's input or output that needs it.
    kind: why, one word of `maintenance.pin_plan.PinKind`.
    committed_at: unset when main does not list the snapshot.
    held_snapshots, held_bytes: what would have expired without this stream: snapshots, and the bytes of replaced files.
    """

    stream: str
    endpoint: str
    kind: str
    snapshot_id: int
    committed_at: datetime | None = None
    held_snapshots: int = 0
    held_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """What a table held: its newest snapshot of main, and how many rows, data files, bytes of them, delete files and
    manifests that has. snapshots: of the whole table. small_files: the data files that compaction counts as small."""

    snapshot: int | None = None
    rows: int = 0
    files: int = 0
    bytes: int = 0
    delete_files: int = 0
    manifests: int = 0
    snapshots: int = 0
    small_files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceObservation:
    """One maintenance run of one table, with the table's figures before and after it.

    The figures are of the newest snapshot of main; a table without a snapshot has zeros and unset snapshot ids.
    A stream may commit during the run, so rows and files of its batches are in the figures after it.

    before, after: the figures.
    operations: every step in the order in which it was judged, skipped ones included.
    file_sizes: the number of data files after the run by size (`tables.table_observation.FILE_SIZE_EDGES`).
    oldest_snapshot_at: of the snapshots after the run.
    kept: what its readers and writers still needed at the start.
    recorded_at: the database's clock; unset until the ledger has it.
    """

    table: str
    started_at: datetime
    ended_at: datetime
    launched_by: str
    before: TableFigures
    after: TableFigures
    operations: tuple[StepObservation, ...]
    file_sizes: tuple[int, ...] = ()
    oldest_snapshot_at: datetime | None = None
    kept: tuple[KeptSnapshot, ...] = ()
    recorded_at: datetime | None = None

    @property
    def unfinished(self) -> tuple[StepObservation, ...]:
        """The steps that were due and were not done."""
        return tuple(operation for operation in self.operations if operation.outcome in UNFINISHED_OUTCOMES)

    @property
    def success(self) -> bool:
        """Whether every step that was due was done."""
        return not self.unfinished


class MaintenanceRun(LedgerTable, record=MaintenanceObservation):
    """One maintenance run of one table."""

    __tablename__ = "maintenance_runs"
    __table_args__ = (Index(None, "table", "number"),)

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)


_STEPS = TypeAdapter(tuple[StepObservation, ...])
_COLUMNS = MaintenanceRun.columns(without=("number",))


def record_maintenance(ledger: Ledger, run: MaintenanceObservation) -> None:
    """Record what a maintenance run did."""
    with ledger.transaction() as connection:
        connection.execute(insert(MaintenanceRun), values_of(run))


def newest_maintenance(ledger: Ledger, table: str) -> MaintenanceObservation | None:
    """The newest maintenance run of a table; none before its first."""
    return next(iter(recent_maintenance(ledger, table, limit=1)), None)


def newest_runs_of_tables(ledger: Ledger, tables: Sequence[str]) -> Mapping[str, Row[Any]]:
    """The newest maintenance run of each of some tables, without its steps, by table."""
    with ledger.transaction() as connection:
        found = connection.execute(newest_by_table(MaintenanceRun, tables, without=("operations",)))
        return {row.table: row for row in found}


def newest_done(ledger: Ledger, table: str, step: MaintenanceStep) -> datetime | None:
    """When the newest run of a table ended that has done a step; none when no recorded run has."""
    done = MaintenanceRun.operations.cast(JSONB).contains([{"step": step, "outcome": StepOutcome.DONE}])
    newest = select(MaintenanceRun.ended_at).where(MaintenanceRun.table == table, done)
    with ledger.transaction() as connection:
        return connection.scalars(newest.order_by(MaintenanceRun.number.desc()).limit(1)).first()


def newest_computed(ledger: Ledger, table: str) -> StepObservation | None:
    """What came of the newest statistics of a table that were computed or refused by its store; none before that."""
    step = MaintenanceStep.COMPUTE_STATISTICS
    ends = (StepOutcome.DONE, StepOutcome.REFUSED)
    done = (MaintenanceRun.operations.cast(JSONB).contains([{"step": step, "outcome": end}]) for end in ends)
    newest = select(MaintenanceRun.operations).where(MaintenanceRun.table == table, or_(*done))
    with ledger.transaction() as connection:
        found = connection.scalars(newest.order_by(MaintenanceRun.number.desc()).limit(1)).first()
    return None if found is None else next(one for one in _STEPS.validate_python(found) if one.step is step)


def effort_since(ledger: Ledger, since: datetime) -> tuple[float, int]:
    """How many seconds the steps of all runs that ended since then took, and how many bytes their rewrites read."""
    steps = func.jsonb_array_elements(MaintenanceRun.operations).table_valued(column("value", JSONB))
    step = steps.c.value
    taken = func.coalesce(func.sum(step["duration_ms"].astext.cast(BigInteger)), 0)
    read = func.coalesce(func.sum(step["result"]["rewritten_bytes_count"].astext.cast(BigInteger)), 0)
    runs = join(MaintenanceRun, steps, true())  # a function of a column is lateral by itself
    recent = select(taken, read).select_from(runs).where(MaintenanceRun.ended_at >= since)
    with ledger.transaction() as connection:
        milliseconds, count = connection.execute(recent).one()
    return int(milliseconds) / 1000, int(count)


def recent_maintenance(ledger: Ledger, table: str, limit: int) -> tuple[MaintenanceObservation, ...]:
    """The newest maintenance runs of a table, newest first, at most `limit`."""
    newest = select(*_COLUMNS).where(MaintenanceRun.table == table).order_by(MaintenanceRun.number.desc())
    with ledger.transaction() as connection:
        rows = connection.execute(newest.limit(limit)).all()
    return tuple(record_of(MaintenanceObservation, row) for row in rows)
