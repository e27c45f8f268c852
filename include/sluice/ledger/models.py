"""The tables of the ledger. What a column holds stands in the record of its table, and nowhere else."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Identity, Index, func, text
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.ledger_table import LedgerTable, is_one_of
from sluice.ledger.records.backfill_attempt import BackfillAttemptObservation
from sluice.ledger.records.checkpoint_check import CheckpointObservation
from sluice.ledger.records.dag_pause import AirflowOwner, DagPause
from sluice.ledger.records.desired_state import DesiredStateObservation
from sluice.ledger.records.event import EventObservation
from sluice.ledger.records.generation import GenerationObservation
from sluice.ledger.records.lease import LeaseObservation
from sluice.ledger.records.maintenance import MaintenanceObservation
from sluice.ledger.records.progress_sample import ProgressSample
from sluice.ledger.records.quality_check import QualityObservation
from sluice.ledger.records.run import LIVE_STATES, RunObservation
from sluice.ledger.records.stream_batch import BatchObservation, StreamTotals
from sluice.ledger.records.stream_trouble import StreamTrouble
from sluice.ledger.refresh_table import Refresh as Refresh  # it has a module of its own
from sluice.ledger.work_tables import Application as Application
from sluice.ledger.work_tables import WorkRow as WorkRow

RUN_IS_LIVE = text(is_one_of("state", LIVE_STATES))
"""The rows of `one_live_run_per_stream`. Words, because by parameters PostgreSQL does not recognise the index."""


class Run(LedgerTable, record=RunObservation, key=("run_id",), now=("launched_at",)):
    """A run of a stream. `number` rises with every admission, so that the newest run needs no clock."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("one_live_run_per_stream", "stream", unique=True, postgresql_where=RUN_IS_LIVE),
        Index(None, "stream", "number"),
    )

    number: Mapped[int] = mapped_column(Identity(always=True))


class Lease(LedgerTable, record=LeaseObservation, key=("stream",), now=("renewed_at",)):
    """The right to run a stream. A row stays for ever, so that its token never falls."""

    __tablename__ = "leases"
    __table_args__ = (Index(None, "run_id"),)


class StreamDesiredState(LedgerTable, record=DesiredStateObservation, key=("stream",), now=("requested_at",)):
    """What was last requested of a stream, and what suspends it; a stream without a row is to run. `requested_at` is
    unset in a row that only a suspension has made."""

    __tablename__ = "desired_states"


class LedgerOwner(LedgerTable, record=AirflowOwner, now=("claimed_at",)):
    """The Airflow that the ledger belongs to: at most one row."""

    __tablename__ = "ledger_owner"

    kind: Mapped[str] = mapped_column(primary_key=True)


class DagPauseSeen(LedgerTable, record=DagPause, key=("stream",), now=("observed_at",)):
    """Whether the DAG of a stream was paused when its Airflow was last asked."""

    __tablename__ = "dag_pauses"


class Trouble(LedgerTable, record=StreamTrouble, key=("stream",), now=("since",), without=("observed_at",)):
    """The unhealthy state of a stream; a healthy stream has no row."""

    __tablename__ = "troubles"


class Generation(LedgerTable, record=GenerationObservation, key=("stream", "generation"), now=("opened_at",)):
    """A checkpoint lineage of a stream. It has no fingerprint before its first start."""

    __tablename__ = "generations"

    fingerprint: Mapped[dict[str, Any] | None]


class Batch(
    LedgerTable, record=BatchObservation, key=("stream", "generation", "batch"), without=("undeclared_fields",)
):
    """A delivered batch, under its publication key."""

    __tablename__ = "batches"
    __table_args__ = (Index(None, "stream", "recorded_at"), Index(None, "run_id"))


class SourceSample(LedgerTable, record=ProgressSample, key=("stream", "observed_at"), now=("observed_at",)):
    """A sample of the progress of a running stream."""

    __tablename__ = "progress_samples"


class BatchTotals(LedgerTable, record=StreamTotals, key=("stream",)):
    """The sums over all batches of a generation, also removed ones; a trigger adds each new batch."""

    __tablename__ = "batch_totals"

    generation: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, sort_order=1)


class ArchivedRun(LedgerTable):
    """A run that ended long ago, whole, out of the way of the queries that look at runs."""

    __tablename__ = "archived_runs"
    __table_args__ = (Index(None, "stream", "ended_at"),)

    run_id: Mapped[str] = mapped_column(primary_key=True)
    stream: Mapped[str]
    ended_at: Mapped[datetime]
    run: Mapped[dict[str, Any]]
    archived_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Announcement(LedgerTable):
    """Up to which batch of a stream the publications on a table were announced to Airflow."""

    __tablename__ = "announcements"

    table: Mapped[str] = mapped_column(primary_key=True)
    stream: Mapped[str] = mapped_column(primary_key=True)
    generation: Mapped[int]
    batch: Mapped[int]
    announced_at: Mapped[datetime] = mapped_column(server_default=func.now())


class MaintenanceRun(LedgerTable, record=MaintenanceObservation):
    """One maintenance run of one table."""

    __tablename__ = "maintenance_runs"
    __table_args__ = (Index(None, "table", "number"),)

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)


class QualityResult(LedgerTable, record=QualityObservation):
    """One quality check of one table at one snapshot."""

    __tablename__ = "quality_results"
    __table_args__ = (Index(None, "table", "number"),)

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)


class CheckpointCheck(LedgerTable, record=CheckpointObservation):
    """One check of one checkpoint."""

    __tablename__ = "checkpoint_checks"
    __table_args__ = (Index(None, "stream", "number"),)

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)


class LedgerEvent(LedgerTable, record=EventObservation):
    """A decision or a command. Append-only: triggers refuse to change it, and to delete it outside of the retention."""

    __tablename__ = "events"
    __table_args__ = (
        Index(None, "subject", "name", "number"),
        Index(None, "recorded_at"),
        Index(
            "one_event_per_occasion",
            "subject",
            "name",
            "action",
            "occasion",
            unique=True,
            postgresql_where=text("occasion IS NOT NULL"),
        ),
    )

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    occasion: Mapped[str | None]


class BackfillAttempt(
    LedgerTable,
    record=BackfillAttemptObservation,
    key=("stream", "interval_start", "interval_end", "attempt"),
    now=("started_at",),
):
    """One attempt to compute and replace one interval of a stream's output."""

    __tablename__ = "backfill_attempts"
    __table_args__ = (Index(None, "stream", "started_at"),)
