"""The looks at the sources of running streams, by which their progress is judged."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the table. It holds a day of looks, one a minute for each stream that runs."""
    op.create_table(
        "progress_samples",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("observed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("batch", sa.BigInteger(), nullable=True),
        sa.Column("read_rows", sa.BigInteger(), nullable=False),
        sa.Column("unread_rows", sa.BigInteger(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("stream", "observed_at", name=op.f("pk_progress_samples")),
        schema="sluice",
    )
