"""What the demo reads from the rows of its streams, and how it shows them where there is no terminal."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from sluice.demo.report import (
    BRONZE,
    GOLD,
    SILVER,
    JobProgress,
    LiveTable,
    are_under_way,
    has_passed,
    have_read_everything,
    stream_line,
)
from sluice.ledger.batches import BatchObservation, PublicationKey, StreamTotals
from sluice.ledger.desired_states import DesiredStateObservation
from sluice.ledger.progress_samples import LagObservation
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.supervision.stream_status import StreamRow
from sluice.supervision.stream_verdict import StreamState, StreamVerdict
from sluice.supervision.supervision_values import StreamObservation

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
WATERMARK = datetime(2013, 1, 5, tzinfo=UTC)


def _row(
    stream: str = SILVER,
    *,
    state: RunState | None = RunState.RUNNING,
    batch_of_run: str | None = "run",
    lag_rows: int | None = 0,
    watermark: datetime | None = WATERMARK,
) -> StreamRow:
    run = RunObservation(
        token=1,
        run_id="run",
        stream=stream,
        generation=1,
        mode="continuous",
        state=state or RunState.RUNNING,
        desired_state=DesiredState.RUNNING,
        launched_at=NOW,
        launched_by="test",
        declaration_digest="digest",
    )
    batch = BatchObservation(
        key=PublicationKey(stream=stream, generation=1, batch=3),
        run_id=batch_of_run or "",
        started_at=NOW,
        duration_ms=400,
        input_rows=10,
        published_rows={"flights": 10},
        watermark=watermark,
    )
    seen = StreamObservation(
        stream=stream,
        observed_at=NOW,
        desired=DesiredStateObservation(stream=stream, desired_state=DesiredState.RUNNING),
        runs=(run,) if state is not None else (),
        batches=(batch,) if batch_of_run is not None else (),
    )
    return StreamRow(
        declared=None,
        verdict=StreamVerdict(state=StreamState.RUNNING, is_healthy=True, explanation="It runs."),
        seen=seen,
        totals=StreamTotals(
            stream=stream,
            batches=4,
            input_rows=1_234,
            published_rows={"flights": 1_234},
            refused_rows=0,
            late_rows=0,
            duplicate_rows=0,
        ),
        rows_per_second=3.0,
        lag=LagObservation(rows=lag_rows),
    )


@pytest.mark.parametrize(
    ("bronze", "silver", "expected"),
    [
        (_row(BRONZE), _row(), True),
        (_row(BRONZE, state=None), _row(), False),
        (_row(BRONZE), _row(state=RunState.LAUNCHING), False),
        (_row(BRONZE), _row(state=RunState.FAILED), False),
        (_row(BRONZE), _row(batch_of_run=None, lag_rows=5), True),
        (_row(BRONZE, batch_of_run=None, lag_rows=5), _row(), False),
        (_row(BRONZE, batch_of_run="an earlier run", lag_rows=5), _row(), False),
        (_row(BRONZE, batch_of_run="an earlier run", lag_rows=0), _row(), True),
        (_row(BRONZE, batch_of_run=None, lag_rows=None), _row(), False),
    ],
)
def test_the_streams_are_under_way_when_all_drivers_are_up_and_bronze_delivers(
    bronze: StreamRow, silver: StreamRow, expected: bool
) -> None:
    assert are_under_way([bronze, silver]) is expected


@pytest.mark.parametrize(("lag_rows", "expected"), [(0, True), (1, False), (None, False)])
def test_a_lag_that_is_not_known_is_not_taken_for_none(lag_rows: int | None, expected: bool) -> None:
    assert have_read_everything([_row(BRONZE), _row(lag_rows=lag_rows)]) is expected


def test_the_watermark_of_silver_decides_what_is_late() -> None:
    assert has_passed([_row(BRONZE, watermark=None), _row(SILVER)], WATERMARK.replace(day=4))
    assert not has_passed([_row(SILVER)], WATERMARK)
    assert not has_passed([_row(SILVER, watermark=None)], WATERMARK.replace(day=4))
    assert not has_passed([_row(SILVER, batch_of_run=None)], WATERMARK.replace(day=4))
    assert not has_passed([_row(BRONZE)], WATERMARK.replace(day=4))


def test_the_watermarks_of_all_streams_decide_whether_an_interval_is_closed() -> None:
    both, earlier = (SILVER, GOLD), WATERMARK.replace(day=4)
    assert has_passed([_row(SILVER), _row(GOLD)], earlier, streams=both)
    assert not has_passed([_row(SILVER), _row(GOLD, watermark=earlier)], earlier, streams=both)
    assert not has_passed([_row(SILVER)], earlier, streams=both)


def test_a_line_shows_each_stream_and_what_it_has_left() -> None:
    line = stream_line("Flights flow", [_row(BRONZE, lag_rows=1_500), _row(SILVER)])
    assert line.split(" · ") == [
        "Flights flow",
        "bronze_flights running, 1,234 rows read, 1,500 behind",
        "silver_flights running, 1,234 rows read",
    ]


def test_without_a_terminal_a_line_is_written_now_and_then_and_never_twice() -> None:
    shown = [("a", 0.0), ("b", 5.0), ("c", 10.0), ("c", 20.0), ("d", 30.0)]
    now = {"seconds": 0.0}
    console = Console(file=StringIO(), width=200)
    with LiveTable(console, render=lambda rows, headline: headline, clock=lambda: now["seconds"]) as live:
        for headline, at_seconds in shown:
            now["seconds"] = at_seconds
            live.show(headline, [_row()])
    file = console.file
    assert isinstance(file, StringIO)
    assert [line[0] for line in file.getvalue().splitlines()] == ["a", "c", "d"]


def test_on_a_terminal_the_table_is_rendered_under_its_headline() -> None:
    console = Console(file=StringIO(), width=200, force_terminal=True)
    shown: list[str] = []

    def render(rows: object, headline: str) -> str:
        shown.append(headline)
        return headline

    with LiveTable(console, render=render) as live:
        live.show("Drivers start", [_row()])
    assert shown == ["Drivers start"]
    file = console.file
    assert isinstance(file, StringIO)
    assert "Drivers start" in file.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_job_beside_the_streams_is_shown_with_them(is_terminal: bool) -> None:
    now = {"seconds": 0.0}
    console = Console(file=StringIO(), width=200, force_terminal=is_terminal)
    with LiveTable(console, render=lambda rows, headline: headline, clock=lambda: now["seconds"]) as live:
        live.show_job(JobProgress(what="Backfill", done=1, total=3))
        live.show("Flights flow", [_row()])
    file = console.file
    assert isinstance(file, StringIO)
    assert "Backfill: 1 of 3" in Text.from_ansi(file.getvalue()).plain
    assert ("━" in file.getvalue()) is is_terminal


def test_nothing_is_shown_without_a_console() -> None:
    with LiveTable(None, render=lambda rows, headline: headline) as live:
        live.show("Drivers start", [replace(_row(), rows_per_second=0.0)])
