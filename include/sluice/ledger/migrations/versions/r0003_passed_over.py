"""The input that batches skipped in their sources."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column; earlier batches skipped nothing, because their streams stopped instead."""
    empty = sa.text("'{}'::jsonb")
    column = sa.Column("passed_over", postgresql.JSONB(), server_default=empty, nullable=False)
    op.add_column("batches", column, schema="sluice")
