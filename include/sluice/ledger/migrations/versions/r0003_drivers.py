"""What a driver may write, and how often a DAG had failed when it was last seen unpaused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "drivers_0_2_0"
down_revision = "rejected_files"
oldest_reader = "0.2.0"

SCHEMA = "sluice"

_OWN_STREAM = """
CREATE FUNCTION sluice.own_stream() RETURNS text LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
    SELECT stream FROM sluice.driver_passes
    WHERE digest = encode(sha256(convert_to(current_setting('sluice.driver_pass', true), 'UTF8')), 'hex')
$$
"""


def upgrade() -> None:
    """Add the passes of drivers with what reads them, and a column to the pauses."""
    op.create_table(
        "driver_passes",
        sa.Column("stream", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("given_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_driver_passes")),
        schema=SCHEMA,
    )
    op.create_index(op.f("ix_driver_passes_digest"), "driver_passes", ["digest"], schema=SCHEMA)
    op.execute(_OWN_STREAM)
    op.add_column("dag_pauses", sa.Column("failed_runs", sa.BigInteger(), nullable=True), schema=SCHEMA)
