"""Whether a source itself answered that it is not there, or may not be read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Add the column; earlier samples did not distinguish it."""
    op.add_column(
        "progress_samples",
        sa.Column("is_refused", sa.Boolean(), nullable=False, server_default=sa.false()),
        schema="sluice",
    )
