"""Observes the continuous streams of the demo, and decides how far they are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.launching.launcher_port import Launcher
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunState
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.stream_status import StreamRow, observe_rows

BRONZE, SILVER, GOLD = "bronze_flights", "silver_flights", "gold_delays_by_carrier_hour"
STREAMS = (BRONZE, SILVER, GOLD)
"""In the order in which a flight passes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWatch:
    """The observer of the streams. heads: reads the newest positions of the sources."""

    streams: tuple[LoadedStream, ...]
    ledger: Ledger
    launcher: Launcher
    heads: SourceHeads

    def observe(self) -> tuple[StreamRow, ...]:
        """Observe the streams now; a row for each."""
        return observe_rows(self.streams, ledger=self.ledger, launcher=self.launcher, heads=self.heads)


def are_under_way(rows: Sequence[StreamRow]) -> bool:
    """Whether the driver of every stream runs, and the first stream, `bronze_flights`, has delivered a batch.

    Records that are sent from then on arrive in several batches, as in production, and make several small files.
    """
    return all(_is_running(row) and (row.stream != BRONZE or _delivers(row)) for row in rows)


def have_read_everything(rows: Sequence[StreamRow]) -> bool:
    """Whether no stream has anything left to read, judged by offsets, so that an unrecorded batch does not matter.

    A stream that has read everything may still write rows for the next one. The streams are observed in the order in
    which flights pass them, so the source of the next stream is observed after the batch of this one was recorded.
    """
    return all(row.lag.rows == 0 for row in rows)


def has_passed(rows: Sequence[StreamRow], event_time: datetime, *, streams: Collection[str] = (SILVER,)) -> bool:
    """Whether the watermarks of the newest batches of streams, by default of `silver_flights`, are later than an event
    time."""
    newest = {row.stream: row.seen.newest_batch for row in rows}
    batches = [newest.get(stream) for stream in streams]
    return all(batch is not None and batch.watermark is not None and batch.watermark > event_time for batch in batches)


def _is_running(row: StreamRow) -> bool:
    return row.seen.newest_run is not None and row.seen.newest_run.state is RunState.RUNNING


def _delivers(row: StreamRow) -> bool:
    """Whether the driver has delivered a batch, or has nothing to read."""
    run, batch = row.seen.newest_run, row.seen.newest_batch
    return row.lag.rows == 0 or (run is not None and batch is not None and batch.run_id == run.run_id)
