"""The rows of `sluice stream status` and of every other live table of streams: looked at and judged, not rendered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.launching.launcher_port import Launcher
from sluice.ledger.batches import batches_since, totals
from sluice.ledger.connection import Ledger
from sluice.ledger.records.lag import LAG_UNKNOWN, LagObservation
from sluice.ledger.records.stream_batch import StreamTotals
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.progress_watch import judge_seen
from sluice.supervision.stream_health import StreamHealth, health_of_continuous, health_of_increment
from sluice.supervision.stream_observation import StreamObservation
from sluice.supervision.stream_observer import observe_stream
from sluice.supervision.supervisor import judge

RATE_SECONDS = 30.0
"""Over how long a rate is told: some batches of a quick stream, and still about now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRow:
    """One stream as it is now.

    rows_per_second: what its batches read over the last `RATE_SECONDS`.
    """

    stream: str
    mode: str
    health: StreamHealth
    seen: StreamObservation
    totals: StreamTotals
    rows_per_second: float
    lag: LagObservation


def observe_rows(
    streams: Iterable[LoadedStream], *, ledger: Ledger, launcher: Launcher, heads: SourceHeads | None
) -> tuple[StreamRow, ...]:
    """Look at streams now. Nothing is changed.

    Parameters
    ----------
    streams: as they are declared.
    launcher: sees whether drivers live.
    heads: looks at the sources; without it the lag is not told.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    return tuple(observe_row(wanted, ledger=ledger, launcher=launcher, heads=heads) for wanted in streams)


def observe_row(wanted: LoadedStream, *, ledger: Ledger, launcher: Launcher, heads: SourceHeads | None) -> StreamRow:
    """Look at one stream now; see `observe_rows`."""
    if wanted.declaration.mode == "continuous":
        judged = judge(wanted, ledger=ledger, launcher=launcher)
        seen = judged.seen
        health = health_of_continuous(judged.decision, judge_seen(ledger, wanted, seen))
    else:
        seen = observe_stream(ledger, launcher, wanted.name)
        health = health_of_increment(seen, now=seen.observed_at)
    recent = batches_since(ledger, wanted.name, seen.observed_at - timedelta(seconds=RATE_SECONDS))
    return StreamRow(
        stream=wanted.name,
        mode=wanted.declaration.mode,
        health=health,
        seen=seen,
        totals=totals(ledger, wanted.name),
        rows_per_second=sum(batch.input_rows for batch in recent) / RATE_SECONDS,
        lag=LAG_UNKNOWN if heads is None else heads.observe_lag(wanted.declaration, seen.standing_batch),
    )
