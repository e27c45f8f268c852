"""Which Airflow the ledger belongs to, and what it last said about the DAGs of the streams."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Create both tables, empty: the first Airflow that asks gets the ledger, and no DAG counts as observed."""
    op.create_table(
        "ledger_owner",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("airflow", sa.Text(), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_ledger_owner")),
        schema="sluice",
    )
    op.create_table(
        "dag_pauses",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("airflow", sa.Text(), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("observed_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_dag_pauses")),
        schema="sluice",
    )
