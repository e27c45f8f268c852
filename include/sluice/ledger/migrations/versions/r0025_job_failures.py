"""The last lines of failed jobs whose logs stay on a cluster."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "job_failures",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("last_lines", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_job_failures")),
        schema="sluice",
    )
