"""The nulls and bounds of columns by the hour."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "hourly_columns"
down_revision = "broken_samples"

SCHEMA = "sluice"


def upgrade() -> None:
    """Create the figures, which begin now: those of earlier batches are not known any more."""
    op.create_table(
        "hourly_columns",
        sa.Column("stream", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("output", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("figures", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("stream", "output", "hour", name=op.f("pk_hourly_columns")),
        schema=SCHEMA,
    )
