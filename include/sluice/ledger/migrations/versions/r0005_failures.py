"""A run that failed says its class and its reason."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns. Earlier runs have neither; their ends are read from their exit codes and reasons."""
    op.add_column("runs", sa.Column("failure_class", sa.Text(), nullable=True), schema="sluice")
    op.add_column("runs", sa.Column("failure_reason", sa.Text(), nullable=True), schema="sluice")
