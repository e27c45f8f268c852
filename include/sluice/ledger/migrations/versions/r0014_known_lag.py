"""What is known of a stream's unread input although one of its sources did not answer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the columns; earlier samples know their unread rows only."""
    op.add_column("progress_samples", sa.Column("undone", sa.BigInteger(), nullable=True), schema="sluice")
    failure: sa.Column[bool] = sa.Column("is_failure", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    op.add_column("progress_samples", failure, schema="sluice")
