"""Tables that have seen a higher token than the ledger gives: a run raises its own above them and goes on."""

from __future__ import annotations

import pytest
from tests.fixtures.streams_of_tables import COLUMNS, reading, writing
from tests.fixtures.workshop import Workshop

from sluice.ledger.runs import newest_run
from sluice.publication.direct_history import direct_batches
from sluice.publication.mark_moves import take_over
from sluice.publication.marks import read_mark
from sluice.publication.staged_batch import StagedOutput

ROWS = [{"id": 1, "word": "one"}, {"id": 2, "word": "two"}, {"id": 3, "word": "three"}]


@pytest.fixture
def stream_name(workshop: Workshop) -> str:
    """A stream that no other test has: the ledger is shared."""
    return f"s{workshop.namespace}"


def newest_token(workshop: Workshop, stream: str) -> int:
    """The token of the stream's newest run."""
    run = newest_run(workshop.ledger, stream)
    assert run is not None
    return run.token


def set_token(workshop: Workshop, stream: str, token: str) -> None:
    """Set the ledger's newest token, as an older copy or another clock of the database would leave it."""
    with workshop.ledger.transaction() as connection:
        connection.exec_driver_sql(f"UPDATE sluice.leases SET token = {token} WHERE stream = '{stream}'")  # noqa: S608


def test_a_mark_above_the_ledgers_token_does_not_keep_the_stream_out(workshop: Workshop, stream_name: str) -> None:
    source, target = workshop.declare_table("source", COLUMNS), workshop.declare_table("target", COLUMNS)
    workshop.declare_stream(
        stream_name, sql="SELECT id, word FROM records", inputs=reading(source), outputs=writing(target)
    )
    workshop.append("source", ROWS[:1])
    workshop.run(stream_name)
    seen = newest_token(workshop, stream_name) + 3_600_000
    output = StagedOutput(stream=stream_name, output="copies", target=target)
    take_over(workshop.catalog, output, token=seen)
    workshop.append("source", ROWS[1:2])

    workshop.run(stream_name)

    mark = read_mark(workshop.table("target"), stream=stream_name, output="copies")
    assert mark is not None
    assert mark.token == newest_token(workshop, stream_name) == seen + 1
    assert workshop.rows("target") == ROWS[:2]


@pytest.mark.full  # every run has a mark above it
def test_direct_snapshots_above_the_ledgers_token_do_not_keep_the_stream_out(
    workshop: Workshop, stream_name: str
) -> None:
    source, target = workshop.declare_table("source", COLUMNS), workshop.declare_table("target", COLUMNS)
    workshop.declare_stream(
        stream_name,
        sql="SELECT id, word FROM records",
        inputs=reading(source),
        outputs=writing(target, delivery="direct"),
    )
    workshop.append("source", ROWS[:1])
    workshop.run(stream_name)
    set_token(workshop, stream_name, "token + 3600000")
    workshop.append("source", ROWS[1:2])
    workshop.run(stream_name)
    seen = newest_token(workshop, stream_name)
    set_token(workshop, stream_name, "0")
    workshop.append("source", ROWS[2:])

    workshop.run(stream_name)

    batches = direct_batches(workshop.table("target"), stream=stream_name, output="copies")
    assert [batch.token - seen for batch in batches][:2] == [1, 0]
    assert workshop.rows("target") == ROWS
