"""The continuous streams of the demo as they are now, and the questions that the demo asks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sluice.ledger.records.run import RunState
from sluice.supervision.stream_status import StreamRow, observe_rows

if TYPE_CHECKING:
    from sluice.declarations.loaded_declarations import LoadedStream
    from sluice.launching.launcher_port import Launcher
    from sluice.ledger.connection import Ledger
    from sluice.sources.source_heads import SourceHeads

BRONZE, SILVER, GOLD = "bronze_flights", "silver_flights", "gold_delays_by_carrier_hour"
STREAMS = (BRONZE, SILVER, GOLD)
"""In the order in which a flight passes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWatch:
    """Looks at the streams. heads: asks the sources how much there is to read."""

    streams: tuple[LoadedStream, ...]
    ledger: Ledger
    launcher: Launcher
    heads: SourceHeads

    def look(self) -> tuple[StreamRow, ...]:
        """Look now; a row for each stream."""
        return observe_rows(self.streams, ledger=self.ledger, launcher=self.launcher, heads=self.heads)


def are_under_way(rows: Sequence[StreamRow]) -> bool:
    """Whether the driver of every stream is up, and the first of them, `bronze_flights`, delivers.

    What is sent from then on arrives in several batches, as it does in life, and leaves several small files.
    """
    return all(_is_running(row) and (row.stream != BRONZE or _delivers(row)) for row in rows)


def have_read_everything(rows: Sequence[StreamRow]) -> bool:
    """Whether no stream has anything left to read. The offsets say it, so a batch that was not recorded is no matter.

    A stream that has read everything may still write what its reader then finds: rows are only ever looked at in the
    order in which flights pass them, so the next stream's source is looked at after this one's batch was recorded.
    """
    return all(row.lag.rows == 0 for row in rows)


def has_passed(rows: Sequence[StreamRow], event_time: datetime) -> bool:
    """Whether the watermark by which the newest batch of `silver_flights` was judged lies behind an event time."""
    for row in rows:
        if row.stream == SILVER and (batch := row.seen.newest_batch) is not None and batch.watermark is not None:
            return batch.watermark > event_time
    return False


def _is_running(row: StreamRow) -> bool:
    return row.seen.newest_run is not None and row.seen.newest_run.state is RunState.RUNNING


def _delivers(row: StreamRow) -> bool:
    """Whether the driver has delivered a batch, or has nothing to read."""
    run, batch = row.seen.newest_run, row.seen.newest_batch
    return row.lag.rows == 0 or (run is not None and batch is not None and batch.run_id == run.run_id)
