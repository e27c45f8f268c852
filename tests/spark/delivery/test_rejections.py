"""A rejected batch reaches no table and no sink, wherever the command was interrupted, and is counted once.

Every run interrupts the command without Spark (`tests/integration/publication/test_batch_commands.py`), and has a
stream that reads on behind a rejected batch (`test_repeated_values.py`).
"""

from __future__ import annotations

import pytest
from sqlalchemy import delete
from tests.fixtures.drill import sampled
from tests.fixtures.faulty_drivers import declare_lost
from tests.fixtures.streams_of_tables import COLUMNS, dying_at, reading
from tests.fixtures.workshop import Workshop

from sluice.ledger.batches import Batch, recent_batches, record_batch, totals
from sluice.publication.batch_rejection import reject
from sluice.publication.crash_points import CrashPoint
from sluice_spark.sinks import kept_rows

ROWS = [{"id": 1, "word": "one"}, {"id": 2, "word": "two"}]


@pytest.fixture
def stream_name(workshop: Workshop) -> str:
    """A stream that no other test has: the ledger is shared."""
    return f"s{workshop.namespace}"


@pytest.fixture
def staged(workshop: Workshop, stream_name: str) -> Workshop:
    """Two tables and a sink; the first batch is staged, and its driver died before it was published."""
    source = workshop.declare_table("source", COLUMNS)
    tables = {output: workshop.declare_table(output, COLUMNS) for output in ("first", "second")}
    workshop.declare_stream(
        stream_name,
        python="def transform(records):\n    return {name: records for name in ('first', 'second', 'sent')}\n",
        inputs=reading(source),
        outputs={output: {"iceberg": {"table": table}} for output, table in tables.items()} | {"sent": {"memory": {}}},
    )
    workshop.append("source", ROWS[:1])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream_name, reached=dying_at(CrashPoint.STAGED))
    return workshop


POINTS = (CrashPoint.RECORDED, CrashPoint.FIRST_OUTPUT_PUBLISHED, CrashPoint.PUBLISHED, None)
"""Every test run has each point without Spark (`tests/integration/publication`)."""

HARDEST = (CrashPoint.FIRST_OUTPUT_PUBLISHED,)


@pytest.mark.full
@pytest.mark.parametrize("point", POINTS)
def test_the_next_run_completes_a_rejection(staged: Workshop, stream_name: str, point: CrashPoint | None) -> None:
    declaration, catalog = staged.stream(stream_name).declaration, staged.catalog
    if point is None:
        reject(catalog, staged.ledger, declaration, number=0, requested_by="a test")
    else:
        with pytest.raises(OSError, match="dies here"):
            reject(catalog, staged.ledger, declaration, number=0, requested_by="a test", reached=dying_at(point))
        declare_lost(staged, stream_name)
    staged.append("source", ROWS[1:])

    for batch in staged.run(stream_name).batches:
        record_batch(staged.ledger, batch)

    assert staged.rows("first") == staged.rows("second") == ROWS[1:]
    assert {key.batch: rows for key, rows in kept_rows(stream_name, "sent").items()} == {1: ROWS[1:]}
    counted = totals(staged.ledger, stream_name)
    assert counted.published_rows == {"first": 1, "second": 1, "sent": 1}
    assert (counted.batches, counted.refused_rows) == (2, 2)


@pytest.mark.full
@pytest.mark.parametrize("point", sampled((*HARDEST, None), HARDEST, full=[None]))
def test_a_ledger_that_forgot_a_rejection_learns_it_from_the_tables(
    staged: Workshop, stream_name: str, point: CrashPoint | None
) -> None:
    """An older copy has replaced it. The batch is neither published in the other table nor counted as published."""
    declaration, catalog = staged.stream(stream_name).declaration, staged.catalog
    if point is None:
        reject(catalog, staged.ledger, declaration, number=0, requested_by="a test")
    else:
        with pytest.raises(OSError, match="dies here"):
            reject(catalog, staged.ledger, declaration, number=0, requested_by="a test", reached=dying_at(point))
        declare_lost(staged, stream_name)
    with staged.ledger.transaction() as connection:
        connection.execute(delete(Batch).where(Batch.stream == stream_name))
    staged.append("source", ROWS[1:])

    for batch in staged.run(stream_name).batches:
        record_batch(staged.ledger, batch)

    assert staged.rows("first") == staged.rows("second") == ROWS[1:]
    assert {key.batch: rows for key, rows in kept_rows(stream_name, "sent").items()} == {1: ROWS[1:]}
    recorded = {batch.key.batch: batch for batch in recent_batches(staged.ledger, stream_name, limit=10)}
    assert {number: batch.is_rejected for number, batch in recorded.items()} == {0: True, 1: False}
    assert set(recorded[0].published_rows.values()) == {0}
    counted = totals(staged.ledger, stream_name)
    assert counted.published_rows == {"first": 1, "second": 1, "sent": 1}
