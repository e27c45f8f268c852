"""A table for what the rules of each batch found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "rule_results"
down_revision = "drivers_0_2_0"

SCHEMA = "sluice"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "rule_results",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("table", sa.Text(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("rules", postgresql.JSONB(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_rule_results")),
        schema=SCHEMA,
    )
    for columns, is_unique in (
        (("stream", "generation", "batch", "output"), True),
        (("table", "number"), False),
        (("stream", "number"), False),
    ):
        name = op.f(f"ix_rule_results_{'_'.join(columns)}")
        op.create_index(name, "rule_results", list(columns), unique=is_unique, schema=SCHEMA)
