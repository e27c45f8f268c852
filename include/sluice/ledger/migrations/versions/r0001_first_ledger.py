"""The first ledger: runs, desired states, generations, batches, and the results of maintenance."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables. That a stream has one live run is the index `one_live_run_per_stream`."""
    op.create_table(
        "batches",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("batch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("duration_ms", sa.BigInteger(), nullable=False),
        sa.Column("input_rows", sa.BigInteger(), nullable=False),
        sa.Column("published_rows", postgresql.JSONB(), nullable=False),
        sa.Column("refused_rows", sa.BigInteger(), nullable=False),
        sa.Column("late_rows", sa.BigInteger(), nullable=False),
        sa.Column("duplicate_rows", sa.BigInteger(), nullable=False),
        sa.Column("watermark", sa.DateTime(timezone=True), nullable=True),
        sa.Column("start_offsets", postgresql.JSONB(), nullable=False),
        sa.Column("end_offsets", postgresql.JSONB(), nullable=False),
        sa.Column("snapshot_ids", postgresql.JSONB(), nullable=False),
        sa.Column("durations_ms", postgresql.JSONB(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("stream", "generation", "batch", name=op.f("pk_batches")),
        schema="sluice",
    )
    op.create_index(op.f("ix_batches_run_id"), "batches", ["run_id"], unique=False, schema="sluice")
    op.create_table(
        "checkpoint_checks",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("checked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("findings", postgresql.JSONB(), nullable=False),
        sa.Column("newest_batch", sa.BigInteger(), nullable=True),
        sa.Column("newest_commit_age_seconds", sa.Double(), nullable=True),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_checkpoint_checks")),
        schema="sluice",
    )
    op.create_index(
        op.f("ix_checkpoint_checks_stream_number"),
        "checkpoint_checks",
        ["stream", "number"],
        unique=False,
        schema="sluice",
    )
    op.create_table(
        "generations",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("query_id", sa.Text(), nullable=True),
        sa.Column("opened_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("stream", "generation", name=op.f("pk_generations")),
        schema="sluice",
    )
    op.create_table(
        "maintenance_runs",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("table", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("launched_by", sa.Text(), nullable=False),
        sa.Column("snapshot_before", sa.BigInteger(), nullable=True),
        sa.Column("snapshot_after", sa.BigInteger(), nullable=True),
        sa.Column("rows_before", sa.BigInteger(), nullable=False),
        sa.Column("rows_after", sa.BigInteger(), nullable=False),
        sa.Column("files_before", sa.BigInteger(), nullable=False),
        sa.Column("files_after", sa.BigInteger(), nullable=False),
        sa.Column("bytes_before", sa.BigInteger(), nullable=False),
        sa.Column("bytes_after", sa.BigInteger(), nullable=False),
        sa.Column("delete_files_before", sa.BigInteger(), nullable=False),
        sa.Column("delete_files_after", sa.BigInteger(), nullable=False),
        sa.Column("manifests_before", sa.BigInteger(), nullable=False),
        sa.Column("manifests_after", sa.BigInteger(), nullable=False),
        sa.Column("snapshots_before", sa.BigInteger(), nullable=False),
        sa.Column("snapshots_after", sa.BigInteger(), nullable=False),
        sa.Column("operations", postgresql.JSONB(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_maintenance_runs")),
        schema="sluice",
    )
    op.create_index(
        op.f("ix_maintenance_runs_table_number"), "maintenance_runs", ["table", "number"], unique=False, schema="sluice"
    )
    op.create_table(
        "quality_results",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("table", sa.Text(), nullable=False),
        sa.Column("checked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("launched_by", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("snapshot_committed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("expectations", sa.Integer(), nullable=False),
        sa.Column("failed_expectations", postgresql.JSONB(), nullable=False),
        sa.Column("report", sa.Text(), nullable=True),
        sa.Column("details", postgresql.JSONB(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_quality_results")),
        schema="sluice",
    )
    op.create_index(
        op.f("ix_quality_results_table_number"), "quality_results", ["table", "number"], unique=False, schema="sluice"
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("desired_state", sa.Text(), nullable=False),
        sa.Column("declaration_digest", sa.Text(), nullable=False),
        sa.Column("launched_by", sa.Text(), nullable=False),
        sa.Column("launched_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("process_started_at_seconds", sa.Double(), nullable=True),
        sa.Column("log_file", sa.Text(), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.CheckConstraint("desired_state IN ('running', 'stopped')", name=op.f("ck_runs_desired_state")),
        sa.CheckConstraint(
            "state IN ('failed', 'finished', 'launching', 'lost', 'running')", name=op.f("ck_runs_state")
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_runs")),
        schema="sluice",
    )
    op.create_index(op.f("ix_runs_stream_number"), "runs", ["stream", "number"], unique=False, schema="sluice")
    op.create_index(
        "one_live_run_per_stream",
        "runs",
        ["stream"],
        unique=True,
        schema="sluice",
        postgresql_where=sa.text("state IN ('launching', 'running')"),
    )
    op.create_table(
        "wishes",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("desired_state", sa.Text(), nullable=False),
        sa.Column("wished_by", sa.Text(), nullable=False),
        sa.Column("wished_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("desired_state IN ('running', 'stopped')", name=op.f("ck_wishes_desired_state")),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_wishes")),
        schema="sluice",
    )
