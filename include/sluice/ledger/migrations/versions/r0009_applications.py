"""Drivers that are applications of a cluster."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the column; earlier drivers are processes."""
    op.add_column("runs", sa.Column("application", sa.Text(), nullable=True), schema="sluice")
