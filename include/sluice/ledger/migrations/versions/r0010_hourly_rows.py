"""The rows of each stream by the hour, which a trigger adds up as batches are recorded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "hourly_rows"
down_revision = "source_schemas"

SCHEMA = "sluice"

_ADD_BATCH = """
CREATE FUNCTION sluice.add_batch_to_hour() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO sluice.hourly_rows AS known (stream, hour, batches, input_rows, rejected_rows, published_rows)
    VALUES (NEW.stream, date_trunc('hour', NEW.recorded_at, 'UTC'), 1, NEW.input_rows,
        CASE WHEN NEW.is_rejected THEN 0 ELSE NEW.refused_rows END, NEW.published_rows)
    ON CONFLICT (stream, hour) DO UPDATE SET
        batches = known.batches + 1,
        input_rows = known.input_rows + excluded.input_rows,
        rejected_rows = known.rejected_rows + excluded.rejected_rows,
        published_rows = (
            SELECT coalesce(jsonb_object_agg(output, rows), '{}') FROM (
                SELECT key AS output, sum(value::bigint) AS rows FROM (
                    SELECT * FROM jsonb_each_text(known.published_rows)
                    UNION ALL SELECT * FROM jsonb_each_text(excluded.published_rows)
                ) AS both_rows GROUP BY key
            ) AS summed
        );
    RETURN NULL;
END $$
"""


def upgrade() -> None:
    """Create the sums and their trigger, which needs no rights of the drivers that run meanwhile.

    The sums begin now: to add up a month of batches would keep drivers waiting.
    """
    op.create_table(
        "hourly_rows",
        sa.Column("stream", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("batches", sa.BigInteger(), nullable=False),
        sa.Column("input_rows", sa.BigInteger(), nullable=False),
        sa.Column("rejected_rows", sa.BigInteger(), nullable=False),
        sa.Column("published_rows", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("stream", "hour", name=op.f("pk_hourly_rows")),
        schema=SCHEMA,
    )
    op.execute(_ADD_BATCH)
    op.execute(
        "CREATE TRIGGER hours_follow_batches AFTER INSERT ON sluice.batches "
        "FOR EACH ROW EXECUTE FUNCTION sluice.add_batch_to_hour()"
    )
