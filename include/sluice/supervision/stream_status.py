"""Observes streams for `sluice stream status` and other live tables; the tables are rendered elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.launching.launcher_port import Launcher
from sluice.ledger.batches import StreamTotals, all_totals, rows_read_since
from sluice.ledger.connection import Ledger
from sluice.ledger.progress_samples import LAG_UNKNOWN, LagObservation
from sluice.ledger.run_values import DesiredState
from sluice.ledger.runs import newest_runs
from sluice.ledger.stream_records import StreamRecords, read_stream, read_streams
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.progress_watch import judge_known
from sluice.supervision.stream_health import StreamHealth, StreamState, health_of_continuous, health_of_increment
from sluice.supervision.stream_observation import StreamObservation
from sluice.supervision.stream_observer import observation_of
from sluice.supervision.supervisor import plan_from
from sluice.supervision.undeclared_streams import find_orphaned_runs

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
    """
    asked = tuple(streams)
    if not asked:
        return ()
    known = read_streams(ledger, [wanted.name for wanted in asked])
    figures = _figures(ledger, known.values())
    return tuple(
        _observe(wanted, known[wanted.name], figures[wanted.name], ledger=ledger, launcher=launcher, heads=heads)
        for wanted in asked
    )


def observe_row(wanted: LoadedStream, *, ledger: Ledger, launcher: Launcher, heads: SourceHeads | None) -> StreamRow:
    """Observe one stream now; see `observe_rows`."""
    return observe_rows([wanted], ledger=ledger, launcher=launcher, heads=heads)[0]


def _observe(
    wanted: LoadedStream,
    known: StreamRecords,
    figures: _Figures,
    *,
    ledger: Ledger,
    launcher: Launcher,
    heads: SourceHeads | None,
) -> StreamRow:
    if wanted.declaration.mode == "continuous":
        planned = plan_from(known, wanted, ledger=ledger, launcher=launcher)
        seen = planned.seen
        health = health_of_continuous(planned.decision, judge_known(wanted, known))
    else:
        seen = observation_of(known, launcher)
        health = health_of_increment(seen, now=seen.observed_at)
    lag = LAG_UNKNOWN if heads is None else heads.observe_lag(wanted.declaration, seen.current_batch)
    return _row(seen, figures, mode=wanted.declaration.mode, health=health, lag=lag)


def observe_orphaned_runs(
    declarations: Declarations, *, ledger: Ledger, launcher: Launcher, only: str | None = None
) -> tuple[StreamRow, ...]:
    """Observe the runs that fit no declaration; one that has ended as requested is left out, unless it is asked for.

    Parameters
    ----------
    only: the one stream to observe, also when its newest run has ended.
    """
    newest = [run for run in newest_runs(ledger) if only is None or run.stream == only]
    rows = []
    for orphan in find_orphaned_runs(declarations, newest):
        known = read_stream(ledger, orphan.stream)
        seen = observation_of(known, launcher)
        is_wanted = orphan.run.is_live or seen.desired.effective_state is DesiredState.RUNNING
        if is_wanted or only is not None:
            health = StreamHealth(
                state=StreamState(orphan.reason), is_healthy=not is_wanted, explanation=orphan.explanation
            )
            rows.append(_row(seen, _figures_of(ledger, known), mode=orphan.run.mode, health=health, lag=LAG_UNKNOWN))
    return tuple(rows)


def observe_known(ledger: Ledger, launcher: Launcher, declarations: Declarations, name: str) -> StreamRow:
    """Observe a stream that only the ledger knows."""
    if rows := observe_orphaned_runs(declarations, ledger=ledger, launcher=launcher, only=name):
        return rows[0]
    known = read_stream(ledger, name)
    seen = observation_of(known, launcher)
    mode = "" if seen.newest_run is None else seen.newest_run.mode
    text = f"No file in {declarations.folder} declares {name}, and no run of it lives."
    health = StreamHealth(state=StreamState.UNDECLARED, is_healthy=True, explanation=text)
    return _row(seen, _figures_of(ledger, known), mode=mode, health=health, lag=LAG_UNKNOWN)


@dataclass(frozen=True, slots=True)
class _Figures:
    totals: StreamTotals
    rows_per_second: float


def _figures(ledger: Ledger, known: Collection[StreamRecords]) -> Mapping[str, _Figures]:
    """What the batches of streams did, altogether and lately."""
    names = [one.stream for one in known]
    since = min(one.observed_at for one in known) - timedelta(seconds=RATE_SECONDS)
    read, sums = rows_read_since(ledger, names, since), all_totals(ledger, names)
    return {name: _Figures(sums[name], read[name] / RATE_SECONDS) for name in names}


def _figures_of(ledger: Ledger, known: StreamRecords) -> _Figures:
    return _figures(ledger, [known])[known.stream]


def _row(
    seen: StreamObservation, figures: _Figures, *, mode: str, health: StreamHealth, lag: LagObservation
) -> StreamRow:
    return StreamRow(
        stream=seen.stream,
        mode=mode,
        health=health,
        seen=seen,
        totals=figures.totals,
        rows_per_second=figures.rows_per_second,
        lag=lag,
    )
