"""The lines of the streams page: every stream as it is now, from a few queries. Nothing is changed.

What is late or stalled is taken from the newest pass of the reconciler, which observes the sources; whether a driver
runs is judged here and now, by the rules of the supervisor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.failure_reasons import next_step
from sluice.ledger.all_streams import KnownStream, find_streams, lag_history
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import newest_runs
from sluice.pages.shown_health import ShownTone, judge_shown, tone_of
from sluice.processes.process_identity import ProcessIdentity, ProcessState
from sluice.supervision.restart_policy import runs_to_read
from sluice.supervision.stream_health import StreamHealth, StreamState
from sluice.supervision.stream_observation import StreamObservation
from sluice.supervision.undeclared_streams import OrphanedRun, find_orphaned_runs

HISTORY_HOURS, HISTORY_POINTS = 6, 24

_HEARD_A_MOMENT_AGO = timedelta(seconds=5)
"""A driver that was heard within this time needs no look at its process."""

ObserveProcess = Callable[[ProcessIdentity], ProcessState]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLine:
    """One stream of the page.

    since: since when it is unhealthy, as the reconciler saw it; unset for a healthy one.
    next_step: what to do about its newest failure; empty without one.
    lag_rows: rows or files that are known to be unread; unset when unknown. behind: how old the oldest is at least.
    lag_history: of the last hours, oldest first.
    published_at, watermark, batch, batch_duration: of the newest batch; unset before the first.
    """

    stream: str
    state: StreamState
    tone: ShownTone
    is_healthy: bool
    explanation: str
    mode: str
    now: datetime
    owner: str = ""
    tags: tuple[str, ...] = ()
    next_step: str = ""
    since: datetime | None = None
    lag_rows: int | None = None
    behind: timedelta | None = None
    lag_history: tuple[int | None, ...] = ()
    read_per_second: float = 0.0
    published_per_second: float = 0.0
    batch: int | None = None
    batch_duration: timedelta | None = None
    published_at: datetime | None = None
    watermark: datetime | None = None
    failed_runs: int = 0
    run_id: str | None = None
    has_live_run: bool = False
    is_declared: bool = True

    @property
    def likely_verb(self) -> str:
        """What a person most likely wants to do about it."""
        if not self.has_live_run:
            return "start" if self.mode == "continuous" or self.state is StreamState.STOPPED else ""
        return "stop" if self.is_healthy else "restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStreams:
    """All lines, and the time of the database's clock at which they were read."""

    observed_at: datetime
    lines: tuple[StreamLine, ...]

    @property
    def unhealthy(self) -> tuple[StreamLine, ...]:
        """The lines of unhealthy streams."""
        return tuple(line for line in self.lines if not line.is_healthy)


def observe_streams(
    ledger: Ledger,
    declarations: Declarations,
    *,
    observe_process: ObserveProcess,
    may_read: Callable[[Iterable[str]], frozenset[str]],
    with_history: bool = True,
    among: Collection[str] | None = None,
) -> ObservedStreams:
    """Observe the declared streams and the runs that fit no declaration.

    Parameters
    ----------
    observe_process: whether a driver of this host lives.
    may_read: of some streams those that the reader may see; nothing is read of the others.
    with_history: whether to read the lag of the last hours.
    among: the streams to observe; unset: all.
    """
    newest = [run for run in newest_runs(ledger) if among is None or run.stream in among]
    orphans = {orphan.stream: orphan for orphan in find_orphaned_runs(declarations, newest)}
    declared = {name: one for name, one in declarations.streams.items() if among is None or name in among}
    readable = may_read({*declared, *orphans})
    names = sorted(readable)
    history_runs = max((_runs_to_read(declared[name]) for name in names if name in declared), default=1)
    known = find_streams(ledger, names, runs_for_failures=history_runs)
    lags = _lag_histories(ledger, names) if with_history else {}
    lines = (
        _line(known.streams[name], declared.get(name), orphans.get(name), known.observed_at, observe_process)
        for name in names
    )
    return ObservedStreams(
        observed_at=known.observed_at,
        lines=tuple(replace(line, lag_history=lags.get(line.stream, ())) for line in lines if line is not None),
    )


def _runs_to_read(stream: LoadedStream) -> int:
    supervision = stream.declaration.supervision
    return runs_to_read(supervision.restart, supervision.breaker)


def _lag_histories(ledger: Ledger, names: Sequence[str]) -> Mapping[str, tuple[int | None, ...]]:
    return lag_history(ledger, names, within=timedelta(hours=HISTORY_HOURS), points=HISTORY_POINTS)


def _line(
    known: KnownStream,
    declared: LoadedStream | None,
    orphan: OrphanedRun | None,
    now: datetime,
    observe_process: ObserveProcess,
) -> StreamLine | None:
    """The line of a stream; none for an undeclared one that has ended as requested."""
    run = known.runs[0] if known.runs else None
    seen = _observation(known, now, observe_process)
    health = judge_shown(known, declared, orphan, seen)
    if health is None:
        return None
    batch, sample = known.newest_batch, known.sample
    return StreamLine(
        stream=known.desired.stream,
        state=health.state,
        tone=tone_of(health),
        is_healthy=health.is_healthy,
        explanation=health.explanation,
        mode=_mode(declared, run),
        now=now,
        owner="" if declared is None else declared.declaration.owner,
        tags=() if declared is None else declared.declaration.tags,
        next_step=_next_step(health, known.desired.stream),
        since=_since(known, health),
        lag_rows=None if sample is None else sample.known_undone,
        behind=known.behind,
        read_per_second=known.rates.read_per_second,
        published_per_second=known.rates.published_per_second,
        batch=None if batch is None else batch.key.batch,
        batch_duration=None if batch is None else timedelta(milliseconds=batch.duration_ms),
        published_at=None if batch is None else batch.recorded_at,
        watermark=None if batch is None else batch.watermark,
        failed_runs=known.failed_runs,
        run_id=None if run is None else run.run_id,
        has_live_run=run is not None and run.is_live,
        is_declared=declared is not None,
    )


def _mode(declared: LoadedStream | None, run: RunObservation | None) -> str:
    if declared is not None:
        return declared.declaration.mode
    return "" if run is None else run.mode


def _observation(known: KnownStream, now: datetime, observe_process: ObserveProcess) -> StreamObservation:
    run, batch = known.runs[0] if known.runs else None, known.newest_batch
    is_current = batch is not None and batch.key.generation == known.generation
    return StreamObservation(
        stream=known.desired.stream,
        observed_at=now,
        desired=known.desired,
        newest_run=run,
        process=None if run is None or not run.is_live else _process(run, now, observe_process),
        newest_batch=batch,
        current_batch=batch if is_current else None,
        lease=known.lease,
        fingerprint=known.fingerprint if is_current else {},
    )


def _process(run: RunObservation, now: datetime, observe_process: ObserveProcess) -> ProcessState | None:
    """Whether the driver of a live run lives. Clusters are not asked: a page of 200 streams would wait for them."""
    if run.heartbeat_at is not None and now - run.heartbeat_at < _HEARD_A_MOMENT_AGO:
        return ProcessState.ALIVE
    if run.process is None:
        return None if run.heartbeat_at is None else ProcessState.UNKNOWN
    return ProcessState.UNKNOWN if run.process.application is not None else observe_process(run.process)


def _next_step(health: StreamHealth, stream: str) -> str:
    return "" if health.failure is None else next_step(health.failure.reason, stream=stream)


def _since(known: KnownStream, health: StreamHealth) -> datetime | None:
    if health.is_healthy:
        return None
    if known.trouble is not None:
        return known.trouble.since
    return known.runs[0].ended_at if known.runs else None
