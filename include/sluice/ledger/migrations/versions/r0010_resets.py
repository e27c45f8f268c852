"""Who opened a generation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the column; earlier generations were opened by the first run of their stream."""
    op.add_column("generations", sa.Column("opened_by", sa.Text(), nullable=True), schema="sluice")
