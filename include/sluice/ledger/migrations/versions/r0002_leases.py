"""Leases with fencing tokens; every run has the token under which it was admitted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the leases, and give earlier runs their tokens in the order of their admission."""
    op.create_table(
        "leases",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("renewed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_leases")),
        schema="sluice",
    )
    op.create_index(op.f("ix_leases_run_id"), "leases", ["run_id"], unique=False, schema="sluice")
    op.add_column("runs", sa.Column("token", sa.BigInteger(), nullable=True), schema="sluice")
    op.execute(
        "UPDATE sluice.runs SET token = ranked.token FROM "
        "(SELECT run_id, row_number() OVER (PARTITION BY stream ORDER BY number) AS token FROM sluice.runs) AS ranked "
        "WHERE runs.run_id = ranked.run_id"
    )
    op.alter_column("runs", "token", nullable=False, schema="sluice")
    # A run that is live while the ledger is upgraded holds its lease, and its next heartbeat renews it.
    op.execute(
        "INSERT INTO sluice.leases (stream, token, run_id, expires_at) "
        "SELECT DISTINCT ON (stream) stream, token, run_id, "
        "CASE WHEN state IN ('launching', 'running') THEN now() + interval '240 seconds' END "
        "FROM sluice.runs ORDER BY stream, number DESC"
    )
