"""What a maintenance run sees of a table's debt: small files, sizes of files, and for whom snapshots are kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Add the columns; they stay unset in the records of earlier runs, which did not count these."""
    for column in (
        sa.Column("small_files_before", sa.BigInteger(), nullable=True),
        sa.Column("small_files_after", sa.BigInteger(), nullable=True),
        sa.Column("file_sizes", postgresql.JSONB(), nullable=True),
        sa.Column("oldest_snapshot_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("kept", postgresql.JSONB(), nullable=True),
    ):
        op.add_column("maintenance_runs", column, schema="sluice")
