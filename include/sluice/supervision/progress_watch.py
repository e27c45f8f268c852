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
from sluice.ledger.batches import BatchObservation, newest_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction
from sluice.ledger.progress_samples import ProgressSample, record_progress_sample
from sluice.ledger.run_values import DesiredState, RunObservation
from sluice.ledger.runs import ask_to_end
from sluice.ledger.stream_records import StreamRecords, read_streams
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.progress_decision import ProgressJudgement, judge_progress

_log = logging.getLogger(__name__)

BECAUSE_STALLED = "it is stalled"
"""Why a run was asked to end, as the ledger stores it; the next judgement finds by it that a restart was tried."""

_BECAUSE_LATE = "it is late"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedProgress:
    """The progress of a stream. is_new_trouble: whether the previous sample found the same run healthy."""

    judgement: ProgressJudgement
    is_new_trouble: bool


def watch_progress(
    ledger: Ledger, heads: SourceHeads, wanted: LoadedStream, known: StreamRecords
) -> WatchedProgress | None:
    """Observe the sources of a stream with a live run, judge its progress, and ask the run to end where that is due.

    Parameters
    ----------
    known: its records, read a moment ago.

    Returns
    -------
    The progress; none without a live run that is to continue.
    """
    run = known.newest_run
    if run is None or not _is_watched(run):
        return None
    # Read now: against an older one, what was read since would count as unread, and waiting as begun with the next one.
    newest = newest_batch(ledger, wanted.name, generation=run.generation)
    lag = heads.observe_lag(wanted.declaration, newest)
    sample = record_progress_sample(
        ledger, wanted.name, lag, generation=run.generation, newest_batch=newest, samples=known.samples
    )
    before, after = _evidence(wanted, run, known), _evidence(wanted, run, known, sample)
    judged = after.judge(now=sample.observed_at)
    log = _log.info if judged.is_healthy else _log.warning
    log("stream=%s progress=%s %s", wanted.name, judged.state, judged.explanation)
    if judged.restarts:
        because = BECAUSE_STALLED if judged.state == "stalled" else _BECAUSE_LATE
        ask_to_end(ledger, run.run_id, because=because, event=_event(wanted.name, judged))
    was_healthy = before.judge(now=_newest_look(before.samples) or sample.observed_at).is_healthy
    return WatchedProgress(judgement=judged, is_new_trouble=was_healthy and not judged.is_healthy)


def _newest_look(samples: Sequence[ProgressSample]) -> datetime | None:
    return samples[0].observed_at if samples else None


def _event(stream: str, judged: ProgressJudgement) -> Event:
    """The decision to end a run so that another one takes its place."""
    return Event(
        name=stream,
        actor=Actor.component("progress watch"),
        action=EventAction.END_RUN,
        reason=str(judged.state),
        explanation=judged.explanation,
    )


def judge_known(wanted: LoadedStream, known: StreamRecords) -> ProgressJudgement | None:
    """Judge a stream by its records; none without a live run that is to continue. Nothing is observed or changed."""
    run = known.newest_run
    if run is None or not _is_watched(run):
        return None
    return _evidence(wanted, run, known).judge(now=known.observed_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """What the progress of a run is judged by."""

    wanted: StreamDeclaration
    run: RunObservation
    previous_ended_because: str | None
    batches: Sequence[BatchObservation]
    samples: Sequence[ProgressSample]

    def judge(self, *, now: datetime) -> ProgressJudgement:
        """Judge the run as of a time."""
        return judge_progress(
            self.wanted,
            self.run,
            batches=self.batches,
            samples=self.samples,
            ended_for_stall=self.previous_ended_because == BECAUSE_STALLED,
            ended_for_lag=self.previous_ended_because == _BECAUSE_LATE,
            now=now,
        )


def _evidence(wanted: LoadedStream, run: RunObservation, known: StreamRecords, *newer: ProgressSample) -> _Evidence:
    """The evidence of the records. newer: samples that were taken since."""
    previous = next((one for one in known.runs if one.run_id != run.run_id), None)
    return _Evidence(
        wanted=wanted.declaration,
        run=run,
        previous_ended_because=None if previous is None else previous.end_asked_because,
        batches=known.batches,
        samples=(*newer, *known.samples),
    )


def writers_that_defer(ledger: Ledger, declarations: Declarations, table: str) -> tuple[str, ...]:
    """The streams that write a table, are late, and declare that its maintenance waits then."""
    deferring = {
        name: stream
        for name, stream in sorted(declarations.streams.items())
        if table in stream.declaration.tables_written and _defers(stream.declaration)
    }
    known = read_streams(ledger, list(deferring)) if deferring else {}
    judged = {name: judge_known(stream, known[name]) for name, stream in deferring.items()}
    return tuple(name for name, one in judged.items() if one is not None and one.defers_maintenance)


def _defers(wanted: StreamDeclaration) -> bool:
    allowed = wanted.supervision.max_lag
    return allowed is not None and allowed.action == "defer_maintenance"


def _is_watched(run: RunObservation) -> bool:
    """Whether a run is to make progress: it is live, has started, and was not asked to end."""
    return run.is_live and run.heartbeat_at is not None and run.desired_state is DesiredState.RUNNING
