"""The schema that each input of a stream was last seen with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "source_schemas"
down_revision = "separated_batches"

SCHEMA = "sluice"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "source_schemas",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("fields", postgresql.JSONB(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("source_before", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("changes", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("known", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.PrimaryKeyConstraint("stream", "input", name=op.f("pk_source_schemas")),
        schema=SCHEMA,
    )
