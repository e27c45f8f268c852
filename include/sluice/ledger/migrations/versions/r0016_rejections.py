"""Which batches a person rejected."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the column; of earlier batches it is unknown, and their marks have moved past them."""
    op.add_column(
        "batches", sa.Column("is_rejected", sa.Boolean(), nullable=False, server_default=sa.false()), schema="sluice"
    )
