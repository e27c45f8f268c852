"""Watches the progress of running streams: observes their sources, records a sample, and ends runs to be restarted.

The reconciler calls `watch_progress` each minute. It works for a hung driver as well: it queries the sources, not the
driver.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.batches import newest_batch, recent_batches
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.progress_samples import recent_progress_samples, record_progress_sample
from sluice.ledger.records.event import Actor, Event, EventAction
from sluice.ledger.records.progress_sample import ProgressSample
from sluice.ledger.records.run import DesiredState, RunObservation
from sluice.ledger.records.stream_batch import BatchObservation
from sluice.ledger.runs import ask_to_end, newest_run, recent_runs
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.progress_decision import ProgressJudgement, judge_progress
from sluice.supervision.stream_observation import StreamObservation

_log = logging.getLogger(__name__)

BECAUSE_STALLED = "it is stalled"
"""Why a run was asked to end, as the ledger stores it; the next judgement finds by it that a restart was tried."""

_BECAUSE_LATE = "it is late"
_BATCHES = 20
"""How many of the newest batches determine a stream's usual step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedProgress:
    """The progress of a stream. is_new_trouble: whether the previous sample found the same run healthy."""

    judgement: ProgressJudgement
    is_new_trouble: bool


def watch_progress(ledger: Ledger, heads: SourceHeads, wanted: LoadedStream) -> WatchedProgress | None:
    """Observe the sources of a stream with a live run, judge its progress, and ask the run to end where that is due.

    Returns
    -------
    The progress; none without a live run that is to go on.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    run = newest_run(ledger, wanted.name)
    if run is None or not _is_watched(run):
        return None
    newest = newest_batch(ledger, wanted.name, generation=run.generation)
    lag = heads.observe_lag(wanted.declaration, newest)
    record_progress_sample(ledger, wanted.name, lag, generation=run.generation, newest_batch=newest)
    known = _known_of(ledger, wanted, run)
    judged = known.judge()
    was_healthy = known.judge(samples_back=1).is_healthy
    log = _log.info if judged.is_healthy else _log.warning
    log("stream=%s progress=%s %s", wanted.name, judged.state, judged.explanation)
    if judged.restarts:
        because = BECAUSE_STALLED if judged.state == "stalled" else _BECAUSE_LATE
        ask_to_end(ledger, run.run_id, because=because, event=_event(wanted.name, judged))
    return WatchedProgress(judgement=judged, is_new_trouble=was_healthy and not judged.is_healthy)


def _event(stream: str, judged: ProgressJudgement) -> Event:
    """The decision to end a run so that another one takes its place."""
    return Event(
        name=stream,
        actor=Actor.component("progress watch"),
        action=EventAction.END_RUN,
        reason=str(judged.state),
        explanation=judged.explanation,
    )


def judge_run(ledger: Ledger, wanted: LoadedStream, run: RunObservation) -> ProgressJudgement:
    """Judge by the samples in the ledger. Nothing is observed or changed.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    return _known_of(ledger, wanted, run).judge()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What the ledger knows of the progress of a run, read once."""

    wanted: StreamDeclaration
    run: RunObservation
    previous_ended_because: str | None
    batches: Sequence[BatchObservation]
    samples: Sequence[ProgressSample]
    now: datetime

    def judge(self, *, samples_back: int = 0) -> ProgressJudgement:
        """Judge as of the sample so many before the newest one."""
        samples = self.samples[samples_back:]
        return judge_progress(
            self.wanted,
            self.run,
            batches=self.batches,
            samples=samples,
            ended_for_stall=self.previous_ended_because == BECAUSE_STALLED,
            ended_for_lag=self.previous_ended_because == _BECAUSE_LATE,
            now=samples[0].observed_at if samples_back and samples else self.now,
        )


def _known_of(ledger: Ledger, wanted: LoadedStream, run: RunObservation) -> _Known:
    previous = [one for one in recent_runs(ledger, wanted.name, limit=2) if one.run_id != run.run_id]
    return _Known(
        wanted=wanted.declaration,
        run=run,
        previous_ended_because=previous[0].end_asked_because if previous else None,
        batches=recent_batches(ledger, wanted.name, limit=_BATCHES),
        samples=recent_progress_samples(ledger, wanted.name),
        now=database_time(ledger),
    )


def judge_seen(ledger: Ledger, wanted: LoadedStream, seen: StreamObservation) -> ProgressJudgement | None:
    """Judge an observed stream by the samples in the ledger; none without a live run that is to go on."""
    run = seen.newest_run
    return judge_run(ledger, wanted, run) if run is not None and _is_watched(run) else None


def writers_that_defer(ledger: Ledger, declarations: Declarations, table: str) -> tuple[str, ...]:
    """The streams that write a table, are late, and declare that its maintenance waits then.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    late = []
    for name, stream in sorted(declarations.streams.items()):
        allowed = stream.declaration.supervision.max_lag
        writes = table in stream.declaration.tables_written
        if not writes or allowed is None or allowed.action != "defer_maintenance":
            continue
        run = newest_run(ledger, name)
        if run is not None and _is_watched(run) and judge_run(ledger, stream, run).defers_maintenance:
            late.append(name)
    return tuple(late)


def _is_watched(run: RunObservation) -> bool:
    """Whether a run is to make progress: it is live, has started, and was not asked to end."""
    return run.is_live and run.heartbeat_at is not None and run.desired_state is DesiredState.RUNNING
