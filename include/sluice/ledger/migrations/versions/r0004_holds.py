"""The suspension of a stream, the request to end one run, and the fingerprint of a checkpoint."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns. A desired state without `wished_at` is a row that only a suspension has made."""
    op.alter_column("wishes", "wished_at", nullable=True, schema="sluice")
    op.add_column("wishes", sa.Column("hold", sa.Text(), nullable=True), schema="sluice")
    op.add_column("wishes", sa.Column("held_at", sa.DateTime(timezone=True), nullable=True), schema="sluice")
    op.create_check_constraint(op.f("ck_wishes_hold"), "wishes", "hold IN ('marked', 'paused')", schema="sluice")
    op.add_column("runs", sa.Column("end_asked_at", sa.DateTime(timezone=True), nullable=True), schema="sluice")
    op.add_column("runs", sa.Column("end_asked_because", sa.Text(), nullable=True), schema="sluice")
    op.add_column("generations", sa.Column("fingerprint", postgresql.JSONB(), nullable=True), schema="sluice")
