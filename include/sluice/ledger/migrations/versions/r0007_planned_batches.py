"""The batch up to which an attempt to backfill an interval has read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "planned_batches"
down_revision = "replays"

SCHEMA = "sluice"


def upgrade() -> None:
    """Add the columns; attempts of earlier versions have none."""
    for name in ("generation", "batch"):
        op.add_column("backfill_attempts", sa.Column(name, sa.BigInteger(), nullable=True), schema=SCHEMA)
