"""When the first run of a generation began to deliver, and behind which batch it continues another."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "begun_generations"
down_revision = "hourly_columns"

SCHEMA = "sluice"


def upgrade() -> None:
    """Add both. A generation whose query is known has had a run."""
    op.add_column("generations", sa.Column("begun_at", sa.DateTime(timezone=True)), schema=SCHEMA)
    op.add_column("generations", sa.Column("continues_behind", sa.BigInteger()), schema=SCHEMA)
    generations = sa.table("generations", *map(sa.column, ("begun_at", "opened_at", "query_id")), schema=SCHEMA)
    begun = sa.update(generations).values(begun_at=generations.c.opened_at)
    op.execute(begun.where(generations.c.query_id.is_not(None)))
