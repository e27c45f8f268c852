"""The events of streams and tables, which the database keeps from being changed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"

_REFUSE_CHANGES = """
CREATE FUNCTION sluice.refuse_change_of_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'UPDATE' AND current_setting('sluice.retention', true) = 'events' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'events are append-only: % is refused', TG_OP
        USING ERRCODE = 'restrict_violation', HINT = 'Old events are deleted by `sluice ledger tidy`.';
END $$
"""


def upgrade() -> None:
    """Create the table, its indexes, and the triggers that refuse to change or delete an event."""
    op.create_table(
        "events",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("actor_kind", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("explanation", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("evidence", postgresql.JSONB(), nullable=False),
        sa.Column("occasion", sa.Text(), nullable=True),
        sa.CheckConstraint("subject IN ('stream', 'table')", name=op.f("ck_events_subject")),
        sa.CheckConstraint("actor_kind IN ('component', 'person')", name=op.f("ck_events_actor_kind")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_events")),
        schema="sluice",
    )
    op.create_index(
        op.f("ix_events_subject_name_number"), "events", ["subject", "name", "number"], unique=False, schema="sluice"
    )
    op.create_index(op.f("ix_events_recorded_at"), "events", ["recorded_at"], unique=False, schema="sluice")
    op.create_index(
        "one_event_per_occasion",
        "events",
        ["subject", "name", "action", "occasion"],
        unique=True,
        schema="sluice",
        postgresql_where=sa.text("occasion IS NOT NULL"),
    )
    op.execute(_REFUSE_CHANGES)
    op.execute(
        "CREATE TRIGGER events_are_append_only BEFORE UPDATE OR DELETE ON sluice.events "
        "FOR EACH ROW EXECUTE FUNCTION sluice.refuse_change_of_events()"
    )
    op.execute(
        "CREATE TRIGGER events_are_not_truncated BEFORE TRUNCATE ON sluice.events "
        "FOR EACH STATEMENT EXECUTE FUNCTION sluice.refuse_change_of_events()"
    )
