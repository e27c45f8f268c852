"""The ledger of Sluice 0.2.0, with which its migrations begin."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "baseline_0_2_0"
down_revision = None
oldest_reader = "0.2.0"

SCHEMA = "sluice"

_ADD_BATCH = """
CREATE FUNCTION sluice.add_batch_to_totals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO sluice.batch_totals AS known (stream, generation, batches, input_rows, refused_rows, late_rows,
        duplicate_rows, published_rows)
    VALUES (NEW.stream, NEW.generation, 1, NEW.input_rows, NEW.refused_rows, NEW.late_rows, NEW.duplicate_rows,
        NEW.published_rows)
    ON CONFLICT (stream, generation) DO UPDATE SET
        batches = known.batches + 1,
        input_rows = known.input_rows + excluded.input_rows,
        refused_rows = known.refused_rows + excluded.refused_rows,
        late_rows = known.late_rows + excluded.late_rows,
        duplicate_rows = known.duplicate_rows + excluded.duplicate_rows,
        published_rows = (
            SELECT coalesce(jsonb_object_agg(output, rows), '{}') FROM (
                SELECT key AS output, sum(value::bigint) AS rows FROM (
                    SELECT * FROM jsonb_each_text(known.published_rows)
                    UNION ALL SELECT * FROM jsonb_each_text(excluded.published_rows)
                ) AS both_rows GROUP BY key
            ) AS summed
        );
    RETURN NULL;
END $$
"""

_REFUSE_CHANGES = """
CREATE FUNCTION sluice.refuse_change_of_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'UPDATE' AND current_setting('sluice.retention', true) = 'events' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'events are append-only: % is refused', TG_OP
        USING ERRCODE = 'restrict_violation', HINT = 'Old events are deleted by `sluice ledger tidy`.';
END $$
"""


def upgrade() -> None:
    """Create all tables, the sums that follow the batches, and what keeps events from being changed."""
    _create_streams()
    _create_runs()
    _create_control_requests()
    _create_batches()
    _create_tables()
    _create_backfills()
    _create_work()
    _create_events()


def _create_streams() -> None:
    """Create what is known of each stream: its desired state, its unhealthy state, whether its DAG is paused."""
    op.create_table(
        "desired_states",
        sa.Column("stream", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("desired_state", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=True),
        sa.Column("requested_by", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("suspension", sa.Text(), nullable=True),
        sa.Column("suspended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("desired_state IN ('running', 'stopped')", name=op.f("ck_desired_states_desired_state")),
        sa.CheckConstraint("suspension IN ('marked', 'paused')", name=op.f("ck_desired_states_suspension")),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_desired_states")),
        schema=SCHEMA,
    )
    op.create_table(
        "troubles",
        sa.Column("stream", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("explanation", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("occasion", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("by_its_task", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_troubles")),
        schema=SCHEMA,
    )
    op.create_table(
        "dag_pauses",
        sa.Column("stream", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("airflow", sa.Text(), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("observed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("has_failed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("origin", sa.Text(), nullable=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("is_known", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.CheckConstraint(
            "origin IN ('failure', 'first_seen', 'person', 'unclear')", name=op.f("ck_dag_pauses_origin")
        ),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_dag_pauses")),
        schema=SCHEMA,
    )
    op.create_table(
        "reconciler_passes",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("dag_run", sa.Text(), nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("up_since", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_reconciler_passes")),
        schema=SCHEMA,
    )
    op.create_table(
        "newest_increments",
        sa.Column("stream", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_newest_increments")),
        schema=SCHEMA,
    )
    op.create_table(
        "progress_samples",
        sa.Column("stream", sa.Text(), autoincrement=False, nullable=False),
        sa.Column(
            "observed_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=True),
        sa.Column("read_rows", sa.BigInteger(), nullable=False),
        sa.Column("unread_rows", sa.BigInteger(), nullable=True),
        sa.Column("problem", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("undone", sa.BigInteger(), nullable=True),
        sa.Column("is_failure", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("is_refused", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("stream", "observed_at", name=op.f("pk_progress_samples")),
        schema=SCHEMA,
    )
    op.create_table(
        "undeclared_fields",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("field", sa.Text(), nullable=False),
        sa.Column("times", sa.BigInteger(), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("first_batch", sa.Text(), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_batch", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("stream", "input", "field", name=op.f("pk_undeclared_fields")),
        schema=SCHEMA,
    )


def _create_runs() -> None:
    """Create runs, their leases, and what is recorded of their drivers."""
    op.create_table(
        "runs",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("run_id", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("desired_state", sa.Text(), nullable=False),
        sa.Column("launched_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("launched_by", sa.Text(), nullable=False),
        sa.Column("declaration_digest", sa.Text(), nullable=False),
        sa.Column("process_host", sa.Text(), nullable=True),
        sa.Column("process_pid", sa.BigInteger(), nullable=True),
        sa.Column("process_started_at_seconds", sa.Double(), nullable=True),
        sa.Column("process_application", sa.Text(), nullable=True),
        sa.Column("process_boot_id", sa.Text(), nullable=True),
        sa.Column("process_pid_namespace", sa.BigInteger(), nullable=True),
        sa.Column("process_start_ticks", sa.BigInteger(), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("log_file", sa.Text(), nullable=True),
        sa.Column("end_asked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("end_asked_because", sa.Text(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("version", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.CheckConstraint("desired_state IN ('running', 'stopped')", name=op.f("ck_runs_desired_state")),
        sa.CheckConstraint(
            "state IN ('failed', 'finished', 'launching', 'lost', 'running')", name=op.f("ck_runs_state")
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_runs")),
        schema=SCHEMA,
    )
    op.create_index(op.f("ix_runs_stream_number"), "runs", ["stream", "number"], schema=SCHEMA)
    op.create_index(
        "one_live_run_per_stream",
        "runs",
        ["stream"],
        unique=True,
        schema=SCHEMA,
        postgresql_where=sa.text("state IN ('launching', 'running')"),
    )
    op.create_table(
        "archived_runs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("run", postgresql.JSONB(), nullable=False),
        sa.Column("archived_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_archived_runs")),
        schema=SCHEMA,
    )
    op.create_index(op.f("ix_archived_runs_stream_ended_at"), "archived_runs", ["stream", "ended_at"], schema=SCHEMA)
    op.create_table(
        "leases",
        sa.Column("stream", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("renewed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_leases")),
        schema=SCHEMA,
    )
    op.create_index(op.f("ix_leases_run_id"), "leases", ["run_id"], schema=SCHEMA)
    op.create_table(
        "driver_uis",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("application", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_driver_uis")),
        schema=SCHEMA,
    )


def _create_control_requests() -> None:
    """Create what persons asked the DAG `stream_control` to do."""
    op.create_table(
        "control_requests",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("person_id", sa.Text(), nullable=False),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=True),
        sa.Column("plan_digest", sa.Text(), nullable=True),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("approver_id", sa.Text(), nullable=True),
        sa.Column("approver", sa.Text(), nullable=True),
        sa.Column("approved_digest", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_control_requests")),
        schema=SCHEMA,
    )


def _create_batches() -> None:
    """Create generations of checkpoints and the batches of each."""
    op.create_table(
        "generations",
        sa.Column("stream", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("query_id", sa.Text(), nullable=True),
        sa.Column("opened_by", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("identities", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("fingerprint", postgresql.JSONB(), nullable=True),
        sa.PrimaryKeyConstraint("stream", "generation", name=op.f("pk_generations")),
        schema=SCHEMA,
    )
    op.create_table(
        "checkpoint_checks",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("checked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("findings", postgresql.JSONB(), nullable=False),
        sa.Column("newest_batch", sa.BigInteger(), nullable=True),
        sa.Column("newest_commit_age_seconds", sa.Double(), nullable=True),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_checkpoint_checks")),
        schema=SCHEMA,
    )
    op.create_index(
        op.f("ix_checkpoint_checks_stream_number"), "checkpoint_checks", ["stream", "number"], schema=SCHEMA
    )
    op.create_table(
        "batches",
        sa.Column("stream", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("batch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("duration_ms", sa.BigInteger(), nullable=False),
        sa.Column("input_rows", sa.BigInteger(), nullable=False),
        sa.Column("published_rows", postgresql.JSONB(), nullable=False),
        sa.Column("refused_rows", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("late_rows", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("duplicate_rows", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("watermark", sa.DateTime(timezone=True), nullable=True),
        sa.Column("start_offsets", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("end_offsets", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("snapshot_ids", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("durations_ms", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("skipped_input", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("is_rejected", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("state_rows", sa.BigInteger(), nullable=True),
        sa.Column("state_bytes", sa.BigInteger(), nullable=True),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("stream", "generation", "batch", name=op.f("pk_batches")),
        schema=SCHEMA,
    )
    op.create_index(op.f("ix_batches_run_id"), "batches", ["run_id"], schema=SCHEMA)
    op.create_index(op.f("ix_batches_stream_recorded_at"), "batches", ["stream", "recorded_at"], schema=SCHEMA)
    op.create_table(
        "batch_totals",
        sa.Column("stream", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("batches", sa.BigInteger(), nullable=False),
        sa.Column("input_rows", sa.BigInteger(), nullable=False),
        sa.Column("published_rows", postgresql.JSONB(), nullable=False),
        sa.Column("refused_rows", sa.BigInteger(), nullable=False),
        sa.Column("late_rows", sa.BigInteger(), nullable=False),
        sa.Column("duplicate_rows", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("stream", "generation", name=op.f("pk_batch_totals")),
        schema=SCHEMA,
    )
    op.execute(_ADD_BATCH)
    op.execute(
        "CREATE TRIGGER totals_follow_batches AFTER INSERT ON sluice.batches "
        "FOR EACH ROW EXECUTE FUNCTION sluice.add_batch_to_totals()"
    )


def _create_tables() -> None:
    """Create what is recorded of users' tables."""
    op.create_table(
        "announcements",
        sa.Column("table", sa.Text(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("announced_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("table", "stream", name=op.f("pk_announcements")),
        schema=SCHEMA,
    )
    op.create_table(
        "maintenance_runs",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("table", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("launched_by", sa.Text(), nullable=False),
        sa.Column("before_snapshot", sa.BigInteger(), nullable=True),
        sa.Column("before_rows", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("before_files", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("before_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("before_delete_files", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("before_manifests", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("before_snapshots", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("before_small_files", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("after_snapshot", sa.BigInteger(), nullable=True),
        sa.Column("after_rows", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("after_files", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("after_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("after_delete_files", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("after_manifests", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("after_snapshots", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("after_small_files", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("operations", postgresql.JSONB(), nullable=False),
        sa.Column("file_sizes", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("oldest_snapshot_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("kept", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_maintenance_runs")),
        schema=SCHEMA,
    )
    op.create_index(op.f("ix_maintenance_runs_table_number"), "maintenance_runs", ["table", "number"], schema=SCHEMA)
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
        sa.Column("expectations", sa.BigInteger(), nullable=False),
        sa.Column("failed_expectations", postgresql.JSONB(), nullable=False),
        sa.Column("report", sa.Text(), nullable=True),
        sa.Column("details", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "verdict IN ('failed', 'nothing_to_check', 'passed', 'undecided')", name=op.f("ck_quality_results_verdict")
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_quality_results")),
        schema=SCHEMA,
    )
    op.create_index(op.f("ix_quality_results_table_number"), "quality_results", ["table", "number"], schema=SCHEMA)
    op.create_table(
        "refreshes",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("leaves", sa.BigInteger(), nullable=False),
        sa.Column("opens", sa.BigInteger(), nullable=True),
        sa.Column("previous", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("keeps", sa.Interval(), nullable=False),
        sa.Column("keeps_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("asked_by", sa.Text(), nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('abandoned', 'building', 'swapped', 'swapping', 'taken_back', 'taking_back')",
            name=op.f("ck_refreshes_state"),
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_refreshes")),
        schema=SCHEMA,
    )
    op.create_index(
        "one_open_refresh_per_stream",
        "refreshes",
        ["stream"],
        unique=True,
        schema=SCHEMA,
        postgresql_where=sa.text("state IN ('building', 'swapping', 'taking_back')"),
    )


def _create_backfills() -> None:
    """Create the attempts to backfill intervals."""
    op.create_table(
        "backfill_attempts",
        sa.Column("stream", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("interval_start", sa.DateTime(timezone=True), autoincrement=False, nullable=False),
        sa.Column("interval_end", sa.DateTime(timezone=True), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("launched_by", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("planned_on", sa.BigInteger(), nullable=True),
        sa.Column("end_offsets", postgresql.JSONB(), nullable=True),
        sa.Column("snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("rows", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('changed_meanwhile', 'failed', 'lost', 'published', 'running', 'unchanged')",
            name=op.f("ck_backfill_attempts_state"),
        ),
        sa.PrimaryKeyConstraint(
            "stream", "interval_start", "interval_end", "attempt", name=op.f("pk_backfill_attempts")
        ),
        schema=SCHEMA,
    )
    op.create_index(
        op.f("ix_backfill_attempts_stream_started_at"), "backfill_attempts", ["stream", "started_at"], schema=SCHEMA
    )


def _create_work() -> None:
    """Create the queue of bounded work, and the Spark applications that do it."""
    op.create_table(
        "applications",
        sa.Column("application", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("started_by", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("log_file", sa.Text(), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.CheckConstraint("state IN ('ended', 'ending', 'running', 'starting')", name=op.f("ck_applications_state")),
        sa.PrimaryKeyConstraint("application", name=op.f("pk_applications")),
        schema=SCHEMA,
    )
    op.create_index(
        "one_starting_application",
        "applications",
        ["pool", "digest"],
        unique=True,
        schema=SCHEMA,
        postgresql_where=sa.text("state = 'starting'"),
    )
    op.create_index(
        "live_applications",
        "applications",
        ["pool", "digest"],
        schema=SCHEMA,
        postgresql_where=sa.text("state <> 'ended'"),
    )
    op.create_table(
        "work_items",
        sa.Column("item", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("payload", postgresql.JSONB(), nullable=False),
        sa.Column("asked_by", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("linger_seconds", sa.Integer(), nullable=False),
        sa.Column(
            "not_before", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("waits_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("application", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("runs_alone", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("result", postgresql.JSONB(), nullable=True),
        sa.CheckConstraint(
            "kind IN ('check_table', 'find_gaps', 'increment', 'interval', 'maintain_table', 'refresh')",
            name=op.f("ck_work_items_kind"),
        ),
        sa.CheckConstraint(
            "state IN ('claimed', 'done', 'failed', 'waiting', 'withdrawn')", name=op.f("ck_work_items_state")
        ),
        sa.PrimaryKeyConstraint("item", name=op.f("pk_work_items")),
        schema=SCHEMA,
    )
    op.create_index(
        "open_work_items",
        "work_items",
        ["pool", "digest", "asked_at"],
        schema=SCHEMA,
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(
        "claimed_work_items",
        "work_items",
        ["application"],
        schema=SCHEMA,
        postgresql_where=sa.text("state = 'claimed'"),
    )
    op.create_index(
        "work_items_on_probation",
        "work_items",
        ["kind", "subject"],
        schema=SCHEMA,
        postgresql_where=sa.text("runs_alone"),
    )
    op.create_index(op.f("ix_work_items_ended_at"), "work_items", ["ended_at"], schema=SCHEMA)


def _create_events() -> None:
    """Create the events, and the Airflow that the ledger belongs to."""
    op.create_table(
        "ledger_owner",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("airflow", sa.Text(), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("claimed_by", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_ledger_owner")),
        schema=SCHEMA,
    )
    op.create_table(
        "events",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("occasion", sa.Text(), nullable=True),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("actor_kind", sa.Text(), nullable=False),
        sa.Column("actor_name", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("explanation", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("evidence", postgresql.JSONB(), nullable=False),
        sa.CheckConstraint("actor_kind IN ('component', 'person')", name=op.f("ck_events_actor_kind")),
        sa.CheckConstraint("subject IN ('stream', 'table')", name=op.f("ck_events_subject")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_events")),
        schema=SCHEMA,
    )
    op.create_index(op.f("ix_events_recorded_at"), "events", ["recorded_at"], schema=SCHEMA)
    op.create_index(op.f("ix_events_subject_name_number"), "events", ["subject", "name", "number"], schema=SCHEMA)
    op.create_index(
        "one_event_per_occasion",
        "events",
        ["subject", "name", "action", "occasion"],
        unique=True,
        schema=SCHEMA,
        postgresql_where=sa.text("occasion IS NOT NULL"),
    )
    op.execute(_REFUSE_CHANGES)
    op.execute(
        "CREATE TRIGGER events_are_append_only BEFORE UPDATE OR DELETE ON sluice.events "
        "FOR EACH ROW EXECUTE FUNCTION sluice.refuse_change_of_events()"
    )
    op.execute(
        "CREATE TRIGGER events_are_not_truncated BEFORE TRUNCATE ON sluice.events "
        "FOR EACH STATEMENT EXECUTE FUNCTION sluice.refuse_change_of_events()"
    )
