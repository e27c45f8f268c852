"""A table for the batch of each stream that waits for a person."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "held_batches"
down_revision = "rule_results"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "held_batches",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("rows", postgresql.JSONB(), nullable=False),
        sa.Column("queued", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("held_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("decision", sa.Text(), nullable=True),
        sa.Column("decided_by", sa.Text(), nullable=True),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("decision IN ('rejected', 'released')", name=op.f("ck_held_batches_decision")),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_held_batches")),
        schema="sluice",
    )
