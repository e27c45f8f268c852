"""How large the state of a stream was after each batch."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Add the columns; they stay unset for batches of earlier versions, and for streams without state."""
    for name in ("state_rows", "state_bytes"):
        op.add_column("batches", sa.Column(name, sa.BigInteger(), nullable=True), schema="sluice")
