"""In which boot and pid namespace the process of a run counts, and its start in ticks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add the columns; the processes of earlier runs are judged by host name, process id and start time alone."""
    op.add_column("runs", sa.Column("boot_id", sa.Text(), nullable=True), schema="sluice")
    op.add_column("runs", sa.Column("pid_namespace", sa.BigInteger(), nullable=True), schema="sluice")
    op.add_column("runs", sa.Column("process_start_ticks", sa.BigInteger(), nullable=True), schema="sluice")
