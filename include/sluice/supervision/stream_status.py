"""Observes streams for `sluice stream status` and other live tables; the tables are rendered elsewhere."""

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
from sluice.supervision.supervisor import plan_supervision

RATE_SECONDS = 30.0
"""The time over which a rate is computed: some batches of a quick stream, and still recent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRow:
    """One stream as it is now: a row of a table.

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
    """Observe streams now. Nothing is changed.

    Parameters
    ----------
    streams: as they are declared.
    launcher: observes whether drivers are alive.
    heads: observes the sources; without it the lag is unknown.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    return tuple(observe_row(wanted, ledger=ledger, launcher=launcher, heads=heads) for wanted in streams)


def observe_row(wanted: LoadedStream, *, ledger: Ledger, launcher: Launcher, heads: SourceHeads | None) -> StreamRow:
    """Observe one stream now; see `observe_rows`."""
    if wanted.declaration.mode == "continuous":
        planned = plan_supervision(wanted, ledger=ledger, launcher=launcher)
        seen = planned.seen
        health = health_of_continuous(planned.decision, judge_seen(ledger, wanted, seen))
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
