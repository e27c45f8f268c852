"""When a run last ran a batch again for the state of a copy: it makes progress without recording one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "replayed_batches"
down_revision = "hourly_rows"

SCHEMA = "sluice"


def upgrade() -> None:
    """Add the column; runs of earlier versions leave it unset."""
    op.add_column("runs", sa.Column("replayed_at", sa.DateTime(timezone=True), nullable=True), schema=SCHEMA)
