"""Rows of a held batch that break its rules."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "broken_samples"
down_revision = "rehearsals"

SCHEMA = "sluice"


def upgrade() -> None:
    """Add the rows, by output and rule."""
    samples = sa.Column("samples", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False)
    op.add_column("held_batches", samples, schema=SCHEMA)
