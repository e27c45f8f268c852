"""The requests of runs for intervals of streams."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "backfill_requests",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("interval_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("interval_end", sa.DateTime(timezone=True), nullable=False),
        sa.Column("launched_by", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("waits_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('done', 'failed', 'taken', 'waiting', 'withdrawn')", name=op.f("ck_backfill_requests_state")
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_backfill_requests")),
        schema="sluice",
    )
    op.create_index(
        "open_backfill_requests",
        "backfill_requests",
        ["stream", "number"],
        schema="sluice",
        postgresql_where=sa.text("ended_at IS NULL"),
    )
