"""The tables of the ledger."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Identity,
    Index,
    Integer,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.ledger_table import LedgerTable, is_one_of
from sluice.ledger.records.desired_state import SuspensionCause
from sluice.ledger.records.event import ActorKind, EventSubject
from sluice.ledger.records.run import LIVE_STATES, DesiredState, RunState
from sluice.ledger.refresh_table import Refresh as Refresh  # it has a module of its own
from sluice.ledger.work_tables import Application as Application
from sluice.ledger.work_tables import WorkRow as WorkRow

RUN_IS_LIVE = text(is_one_of("state", LIVE_STATES))
"""The rows of `one_live_run_per_stream`. Words, because by parameters PostgreSQL does not recognise the index."""


class Run(LedgerTable):
    """A run of a stream. `number` rises with every admission, so that the newest run needs no clock."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("one_live_run_per_stream", "stream", unique=True, postgresql_where=RUN_IS_LIVE),
        Index(None, "stream", "number"),
        CheckConstraint(is_one_of("state", RunState), name="state"),
        CheckConstraint(is_one_of("desired_state", DesiredState), name="desired_state"),
    )

    run_id: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(Identity(always=True))
    stream: Mapped[str]
    generation: Mapped[int] = mapped_column(Integer)
    mode: Mapped[str]
    state: Mapped[str]
    desired_state: Mapped[str]
    declaration_digest: Mapped[str]
    launched_by: Mapped[str]
    launched_at: Mapped[datetime] = mapped_column(server_default=func.now())
    host: Mapped[str | None]
    pid: Mapped[int | None] = mapped_column(Integer)
    process_started_at_seconds: Mapped[float | None]
    application: Mapped[str | None]
    boot_id: Mapped[str | None]
    pid_namespace: Mapped[int | None]
    process_start_ticks: Mapped[int | None]
    log_file: Mapped[str | None]
    heartbeat_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    exit_code: Mapped[int | None] = mapped_column(Integer)
    reason: Mapped[str | None]
    failure_class: Mapped[str | None]
    failure_reason: Mapped[str | None]
    token: Mapped[int]
    end_asked_at: Mapped[datetime | None]
    end_asked_because: Mapped[str | None]


class Lease(LedgerTable):
    """The right to run a stream. A row stays for ever, so that its token never falls."""

    __tablename__ = "leases"

    stream: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[int]
    run_id: Mapped[str] = mapped_column(index=True)
    renewed_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]


class StreamDesiredState(LedgerTable):
    """What was last requested of a stream, and what suspends it; a stream without a row is to run. `requested_at` is
    unset in a row that only a suspension has made."""

    __tablename__ = "desired_states"
    __table_args__ = (
        CheckConstraint(is_one_of("desired_state", DesiredState), name="desired_state"),
        CheckConstraint(is_one_of("suspension", SuspensionCause), name="suspension"),
    )

    stream: Mapped[str] = mapped_column(primary_key=True)
    desired_state: Mapped[str]
    requested_by: Mapped[str]
    requested_at: Mapped[datetime | None] = mapped_column(server_default=func.now())
    suspension: Mapped[str | None]
    suspended_at: Mapped[datetime | None]


class LedgerOwner(LedgerTable):
    """The Airflow that the ledger belongs to: at most one row."""

    __tablename__ = "ledger_owner"

    kind: Mapped[str] = mapped_column(primary_key=True)
    airflow: Mapped[str]
    claimed_by: Mapped[str]
    claimed_at: Mapped[datetime] = mapped_column(server_default=func.now())


class DagPauseSeen(LedgerTable):
    """Whether the DAG of a stream was paused when its Airflow was last asked."""

    __tablename__ = "dag_pauses"

    stream: Mapped[str] = mapped_column(primary_key=True)
    airflow: Mapped[str]
    is_paused: Mapped[bool]
    observed_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Trouble(LedgerTable):
    """The unhealthy state of a stream; a healthy stream has no row."""

    __tablename__ = "troubles"

    stream: Mapped[str] = mapped_column(primary_key=True)
    reason: Mapped[str]
    explanation: Mapped[str]
    since: Mapped[datetime] = mapped_column(server_default=func.now())
    reported_at: Mapped[datetime | None]


class Generation(LedgerTable):
    """A checkpoint lineage of a stream."""

    __tablename__ = "generations"

    stream: Mapped[str] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    checkpoint: Mapped[str]
    query_id: Mapped[str | None]
    opened_at: Mapped[datetime] = mapped_column(server_default=func.now())
    fingerprint: Mapped[dict[str, Any] | None]
    opened_by: Mapped[str | None]


class Batch(LedgerTable):
    """A delivered batch, under its publication key."""

    __tablename__ = "batches"
    __table_args__ = (Index(None, "stream", "recorded_at"),)

    stream: Mapped[str] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    batch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run_id: Mapped[str] = mapped_column(index=True)
    started_at: Mapped[datetime]
    duration_ms: Mapped[int]
    input_rows: Mapped[int]
    published_rows: Mapped[dict[str, Any]]
    refused_rows: Mapped[int]
    late_rows: Mapped[int]
    duplicate_rows: Mapped[int]
    watermark: Mapped[datetime | None]
    start_offsets: Mapped[dict[str, Any]]
    end_offsets: Mapped[dict[str, Any]]
    snapshot_ids: Mapped[dict[str, Any]]
    durations_ms: Mapped[dict[str, Any]]
    skipped_input: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    is_rejected: Mapped[bool] = mapped_column(server_default=text("false"))
    state_rows: Mapped[int | None]
    state_bytes: Mapped[int | None]
    recorded_at: Mapped[datetime] = mapped_column(server_default=func.now())


class SourceSample(LedgerTable):
    """A sample of the progress of a running stream."""

    __tablename__ = "progress_samples"

    stream: Mapped[str] = mapped_column(primary_key=True)
    observed_at: Mapped[datetime] = mapped_column(primary_key=True, server_default=func.now())
    generation: Mapped[int | None] = mapped_column(Integer)
    batch: Mapped[int | None]
    read_rows: Mapped[int]
    unread_rows: Mapped[int | None]
    problem: Mapped[str]
    undone: Mapped[int | None]
    is_failure: Mapped[bool] = mapped_column(server_default=text("false"))
    is_refused: Mapped[bool] = mapped_column(server_default=text("false"))


class BatchTotals(LedgerTable):
    """The sums over all batches of a generation, also removed ones; a trigger adds each new batch."""

    __tablename__ = "batch_totals"

    stream: Mapped[str] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    batches: Mapped[int]
    input_rows: Mapped[int]
    published_rows: Mapped[dict[str, Any]]
    refused_rows: Mapped[int]
    late_rows: Mapped[int]
    duplicate_rows: Mapped[int]


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
    generation: Mapped[int] = mapped_column(Integer)
    batch: Mapped[int]
    announced_at: Mapped[datetime] = mapped_column(server_default=func.now())


class MaintenanceRun(LedgerTable):
    """One maintenance run of one table."""

    __tablename__ = "maintenance_runs"
    __table_args__ = (Index(None, "table", "number"),)

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    table: Mapped[str]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime]
    launched_by: Mapped[str]
    snapshot_before: Mapped[int | None]
    snapshot_after: Mapped[int | None]
    rows_before: Mapped[int]
    rows_after: Mapped[int]
    files_before: Mapped[int]
    files_after: Mapped[int]
    bytes_before: Mapped[int]
    bytes_after: Mapped[int]
    delete_files_before: Mapped[int]
    delete_files_after: Mapped[int]
    manifests_before: Mapped[int]
    manifests_after: Mapped[int]
    snapshots_before: Mapped[int]
    snapshots_after: Mapped[int]
    operations: Mapped[list[Any]]
    small_files_before: Mapped[int | None]
    small_files_after: Mapped[int | None]
    file_sizes: Mapped[list[Any] | None]
    oldest_snapshot_at: Mapped[datetime | None]
    kept: Mapped[list[Any] | None]
    recorded_at: Mapped[datetime] = mapped_column(server_default=func.now())


class QualityResult(LedgerTable):
    """One quality check of one table at one snapshot."""

    __tablename__ = "quality_results"
    __table_args__ = (Index(None, "table", "number"),)

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    table: Mapped[str]
    checked_at: Mapped[datetime]
    launched_by: Mapped[str]
    verdict: Mapped[str]
    snapshot_id: Mapped[int | None]
    snapshot_committed_at: Mapped[datetime | None]
    rows: Mapped[int]
    expectations: Mapped[int] = mapped_column(Integer)
    failed_expectations: Mapped[list[Any]]
    report: Mapped[str | None]
    details: Mapped[list[Any]]
    recorded_at: Mapped[datetime] = mapped_column(server_default=func.now())


class CheckpointCheck(LedgerTable):
    """One check of one checkpoint."""

    __tablename__ = "checkpoint_checks"
    __table_args__ = (Index(None, "stream", "number"),)

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    stream: Mapped[str]
    generation: Mapped[int] = mapped_column(Integer)
    location: Mapped[str]
    checked_at: Mapped[datetime]
    findings: Mapped[list[Any]]
    newest_batch: Mapped[int | None]
    newest_commit_age_seconds: Mapped[float | None]
    recorded_at: Mapped[datetime] = mapped_column(server_default=func.now())


class LedgerEvent(LedgerTable):
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
        CheckConstraint(is_one_of("subject", EventSubject), name="subject"),
        CheckConstraint(is_one_of("actor_kind", ActorKind), name="actor_kind"),
    )

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    recorded_at: Mapped[datetime] = mapped_column(server_default=func.now())
    subject: Mapped[str]
    name: Mapped[str]
    actor_kind: Mapped[str]
    actor: Mapped[str]
    action: Mapped[str]
    reason: Mapped[str]
    explanation: Mapped[str]
    run_id: Mapped[str | None]
    evidence: Mapped[dict[str, Any]]
    occasion: Mapped[str | None]


class BackfillAttempt(LedgerTable):
    """One attempt to compute and replace one interval of a stream's output."""

    __tablename__ = "backfill_attempts"
    __table_args__ = (Index(None, "stream", "started_at"),)

    stream: Mapped[str] = mapped_column(primary_key=True)
    interval_start: Mapped[datetime] = mapped_column(primary_key=True)
    interval_end: Mapped[datetime] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    state: Mapped[str]
    launched_by: Mapped[str]
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())
    ended_at: Mapped[datetime | None]
    planned_on: Mapped[int | None]
    end_offsets: Mapped[dict[str, Any] | None]
    snapshot_id: Mapped[int | None]
    rows: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    reason: Mapped[str | None]
