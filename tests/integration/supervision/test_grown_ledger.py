"""One look at a stream costs the same in a ledger that has grown for a month: number of queries, and indexes."""

from __future__ import annotations

import pytest
from tests.fixtures.grown_ledgers import AliveLauncher, WatchedQueries, let_grow, looked, named, watched_queries

from sluice.ledger.batches import totals
from sluice.ledger.connection import Ledger
from sluice.supervision.stream_status import observe_rows
from sluice.supervision.supervisor import Supervisor

GROWING = frozenset({"batches", "runs", "progress_samples", "events", "archived_runs"})
"""The tables that grow with time; a stream's own row is in all others."""

MOST_QUERIES_OF_A_LOOK = 26
STREAMS = 20


@pytest.fixture
def grown(ledger: Ledger) -> Ledger:
    """A ledger with a month of runs and an hour and a half of batches."""
    let_grow(ledger, streams=STREAMS, batches=2_500, runs=300, digest="d")
    return ledger


def sent(supervisor: Supervisor, ledger: Ledger, *, streams: int) -> WatchedQueries:
    """The queries of one pass over some streams."""
    with watched_queries(ledger) as watched:
        looked(supervisor, ledger, streams=streams, of=STREAMS)
    return watched


def test_a_look_has_a_bounded_number_of_queries_and_reads_no_growing_table_whole(
    supervisor: Supervisor, grown: Ledger
) -> None:
    one, three = (len(sent(supervisor, grown, streams=streams).sent) for streams in (1, 3))
    assert (three - one) / 2 <= MOST_QUERIES_OF_A_LOOK
    assert sent(supervisor, grown, streams=2).whole_scans(grown, GROWING) == []


def test_the_status_of_streams_reads_no_growing_table_whole(grown: Ledger) -> None:
    with watched_queries(grown) as watched:
        (row,) = observe_rows([named(0)], ledger=grown, launcher=AliveLauncher(grown), heads=None)
    assert (row.totals.batches, row.totals.published_rows) == (2_500, {"rows": 2_500 * 990})
    assert watched.whole_scans(grown, GROWING) == []
    assert totals(grown, "flights_1").input_rows == 2_500_000
