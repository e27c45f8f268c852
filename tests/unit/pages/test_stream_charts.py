"""The charts of a stream: what is drawn of its state."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sluice.ledger.stream_figures import HistoryStep, StreamHistory
from sluice.pages.stream_page import charts_of

NOON = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
HISTORY = StreamHistory(
    since=NOON - timedelta(hours=1),
    until=NOON,
    step=timedelta(minutes=20),
    steps=(HistoryStep(), HistoryStep(batches=1), HistoryStep()),
    unread_rows=(None, 1, None),
)


def test_a_state_is_drawn_by_its_rows_and_its_memory() -> None:
    steps = (
        HistoryStep(state_rows=1200, state_bytes=3 * 1024**2),
        HistoryStep(),
        HistoryStep(state_rows=900, state_bytes=2 * 1024**2),
    )

    rows, memory = charts_of(replace(HISTORY, steps=steps), max_lag=None)[-2:]

    assert (rows.title, rows.figure, rows.top) == ("State, rows", "900", "1,200")
    assert (memory.title, memory.figure, memory.top) == ("State, memory", "2.0 MiB", "3.0 MiB")
    assert memory.summary == "State, memory: now 2.0 MiB, at most 3.0 MiB."
    assert not rows.is_empty


def test_a_stream_without_state_has_no_such_chart() -> None:
    assert [chart.title for chart in charts_of(HISTORY, max_lag=None) if "State" in chart.title] == []
