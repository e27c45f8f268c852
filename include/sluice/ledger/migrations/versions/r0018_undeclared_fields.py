"""The fields that senders send and no column takes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Create the table, empty: fields are counted from the next batch on."""
    op.create_table(
        "undeclared_fields",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("field", sa.Text(), nullable=False),
        sa.Column("times", sa.BigInteger(), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("first_batch", sa.Text(), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("last_batch", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("stream", "input", "field", name=op.f("pk_undeclared_fields")),
        schema="sluice",
    )
