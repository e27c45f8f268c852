"""Work items that rehearse copies of state."""

from __future__ import annotations

from alembic import op

revision = "rehearsals"
down_revision = "replayed_batches"

SCHEMA = "sluice"


def upgrade() -> None:
    """Allow the kind."""
    name = op.f("ck_work_items_kind")
    op.drop_constraint(name, "work_items", schema=SCHEMA, type_="check")
    kinds = "'check_table', 'find_gaps', 'increment', 'interval', 'maintain_table', 'refresh', 'rehearse', 'replay'"
    op.create_check_constraint(name, "work_items", f"kind IN ({kinds})", schema=SCHEMA)
