"""Files of which no record was good, with the batch that read them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "rejected_files"
down_revision = "baseline_0_2_0"

SCHEMA = "sluice"


def upgrade() -> None:
    """Add the column, and an index of the few batches that have any. A default that is constant rewrites no row."""
    empty = sa.text("'[]'::jsonb")
    column = sa.Column("rejected_files", postgresql.JSONB(), server_default=empty, nullable=False)
    op.add_column("batches", column, schema=SCHEMA)
    op.create_index(
        "ix_batches_rejected_files",
        "batches",
        ["stream", "generation", "batch"],
        schema=SCHEMA,
        postgresql_where=sa.text("rejected_files <> '[]'::jsonb"),
    )
