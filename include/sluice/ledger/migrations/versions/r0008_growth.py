"""What the ledger no longer keeps: the sums of old batches, and the archive of old runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Create the tables, and the index by which old and recent batches are found."""
    op.create_index(
        op.f("ix_batches_stream_recorded_at"), "batches", ["stream", "recorded_at"], unique=False, schema="sluice"
    )
    op.create_table(
        "forgotten_batches",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("batches", sa.BigInteger(), nullable=False),
        sa.Column("input_rows", sa.BigInteger(), nullable=False),
        sa.Column("published_rows", postgresql.JSONB(), nullable=False),
        sa.Column("refused_rows", sa.BigInteger(), nullable=False),
        sa.Column("late_rows", sa.BigInteger(), nullable=False),
        sa.Column("duplicate_rows", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("stream", "generation", name=op.f("pk_forgotten_batches")),
        schema="sluice",
    )
    op.create_table(
        "archived_runs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("run", postgresql.JSONB(), nullable=False),
        sa.Column("archived_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_archived_runs")),
        schema="sluice",
    )
    op.create_index(
        op.f("ix_archived_runs_stream_ended_at"), "archived_runs", ["stream", "ended_at"], unique=False, schema="sluice"
    )
