"""Releasing a held batch without the rows that break its rules."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "separated_batches"
down_revision = "planned_batches"

SCHEMA = "sluice"
_DECISION = "ck_held_batches_decision"


def upgrade() -> None:
    """Add the decision, and the rules that hold a batch; of a batch that is held now they are not known."""
    op.drop_constraint(op.f(_DECISION), "held_batches", schema=SCHEMA, type_="check")
    op.create_check_constraint(
        op.f(_DECISION), "held_batches", "decision IN ('rejected', 'released', 'separated')", schema=SCHEMA
    )
    failed = sa.Column("failed", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False)
    op.add_column("held_batches", failed, schema=SCHEMA)
