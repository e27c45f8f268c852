"""The refreshes of tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "refreshes",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("leaves", sa.Integer(), nullable=False),
        sa.Column("opens", sa.Integer(), nullable=True),
        sa.Column("previous", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("keep_seconds", sa.BigInteger(), nullable=False),
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
        schema="sluice",
    )
    op.create_index(
        "one_open_refresh_per_stream",
        "refreshes",
        ["stream"],
        unique=True,
        schema="sluice",
        postgresql_where=sa.text("state IN ('building', 'swapping', 'taking_back')"),
    )
