"""Up to which batch the publications on each table were announced to Airflow."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "announcements",
        sa.Column("table", sa.Text(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("announced_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("table", "stream", name=op.f("pk_announcements")),
        schema="sluice",
    )
