"""The sums over all batches of a generation, kept by the database with each batch."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0019"
down_revision = "0018"

_ADD_BATCH = """
CREATE FUNCTION sluice.add_batch_to_totals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO sluice.batch_totals AS known (stream, generation, batches, input_rows, refused_rows, late_rows,
        duplicate_rows, published_rows)
    VALUES (NEW.stream, NEW.generation, 1, NEW.input_rows, NEW.refused_rows, NEW.late_rows, NEW.duplicate_rows,
        NEW.published_rows)
    ON CONFLICT (stream, generation) DO UPDATE SET
        batches = known.batches + 1,
        input_rows = known.input_rows + excluded.input_rows,
        refused_rows = known.refused_rows + excluded.refused_rows,
        late_rows = known.late_rows + excluded.late_rows,
        duplicate_rows = known.duplicate_rows + excluded.duplicate_rows,
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

_ADD_WHAT_IS_THERE = """
INSERT INTO sluice.batch_totals (stream, generation, batches, input_rows, refused_rows, late_rows, duplicate_rows,
    published_rows)
SELECT figures.*, coalesce(published.rows, '{}')
FROM (
    SELECT stream, generation, sum(batches)::bigint, sum(input_rows)::bigint, sum(refused_rows)::bigint,
        sum(late_rows)::bigint, sum(duplicate_rows)::bigint
    FROM (
        SELECT stream, generation, 1 AS batches, input_rows, refused_rows, late_rows, duplicate_rows FROM sluice.batches
        UNION ALL
        SELECT stream, generation, batches, input_rows, refused_rows, late_rows, duplicate_rows
        FROM sluice.forgotten_batches
    ) AS each_row GROUP BY stream, generation
) AS figures
LEFT JOIN (
    SELECT stream, generation, jsonb_object_agg(output, rows) AS rows
    FROM (
        SELECT stream, generation, key AS output, sum(value::bigint) AS rows
        FROM (
            SELECT stream, generation, published_rows FROM sluice.batches
            UNION ALL SELECT stream, generation, published_rows FROM sluice.forgotten_batches
        ) AS each_row, jsonb_each_text(each_row.published_rows)
        GROUP BY stream, generation, key
    ) AS by_output GROUP BY stream, generation
) AS published USING (stream, generation)
"""


def upgrade() -> None:
    """Create the table and the trigger, then add what was recorded before. The trigger's lock keeps drivers of any
    version from recording a batch in between; they go on with it afterwards."""
    op.create_table(
        "batch_totals",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("batches", sa.BigInteger(), nullable=False),
        sa.Column("input_rows", sa.BigInteger(), nullable=False),
        sa.Column("published_rows", postgresql.JSONB(), nullable=False),
        sa.Column("refused_rows", sa.BigInteger(), nullable=False),
        sa.Column("late_rows", sa.BigInteger(), nullable=False),
        sa.Column("duplicate_rows", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("stream", "generation", name=op.f("pk_batch_totals")),
        schema="sluice",
    )
    op.execute(_ADD_BATCH)
    op.execute(
        "CREATE TRIGGER totals_follow_batches AFTER INSERT ON sluice.batches "
        "FOR EACH ROW EXECUTE FUNCTION sluice.add_batch_to_totals()"
    )
    op.execute(_ADD_WHAT_IS_THERE)
