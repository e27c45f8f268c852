"""The queue of bounded work, and the Spark applications that do it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    """Create the tables."""
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
        sa.CheckConstraint("state IN ('ended', 'running', 'starting')", name=op.f("ck_applications_state")),
        sa.PrimaryKeyConstraint("application", name=op.f("pk_applications")),
        schema="sluice",
    )
    op.create_index(
        "one_starting_application",
        "applications",
        ["pool", "digest"],
        unique=True,
        schema="sluice",
        postgresql_where=sa.text("state = 'starting'"),
    )
    op.create_index(
        "live_applications",
        "applications",
        ["pool", "digest"],
        schema="sluice",
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
        schema="sluice",
    )
    op.create_index(
        "open_work_items",
        "work_items",
        ["pool", "digest", "asked_at"],
        schema="sluice",
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(
        "claimed_work_items",
        "work_items",
        ["application"],
        schema="sluice",
        postgresql_where=sa.text("state = 'claimed'"),
    )
    op.create_index(op.f("ix_work_items_ended_at"), "work_items", ["ended_at"], schema="sluice")
    op.drop_table("backfill_requests", schema="sluice")
    op.drop_table("job_failures", schema="sluice")
