"""The attempts to backfill intervals of streams."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "backfill_attempts",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("interval_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("interval_end", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("launched_by", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("planned_on", sa.BigInteger(), nullable=True),
        sa.Column("end_offsets", postgresql.JSONB(), nullable=True),
        sa.Column("snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("rows", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint(
            "stream", "interval_start", "interval_end", "attempt", name=op.f("pk_backfill_attempts")
        ),
        schema="sluice",
    )
    op.create_index(
        op.f("ix_backfill_attempts_stream_started_at"), "backfill_attempts", ["stream", "started_at"], schema="sluice"
    )
