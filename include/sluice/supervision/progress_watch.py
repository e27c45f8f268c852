"""Watches how far running streams get: looks at their sources, remembers, judges, and ends what must be restarted.

The reconciler calls `watch_progress` each minute. A hung driver is no hindrance: its sources are asked, not it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.ledger.batches import newest_batch, recent_batches
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.progress_samples import recent_progress_samples, record_progress_sample
from sluice.ledger.records.run import DesiredState, RunObservation
from sluice.ledger.runs import ask_to_end, newest_run, recent_runs
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.progress_decision import ProgressJudgement, judge_progress
from sluice.supervision.stream_observation import StreamObservation

_log = logging.getLogger(__name__)

BECAUSE_STALLED = "it is stalled"
"""Why a run was asked to end, in the ledger; by this the next judgement knows that a restart was tried."""

_BECAUSE_LATE = "it is late"
_BATCHES = 20
"""From how many of the newest batches a stream's usual step is learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedProgress:
    """What a look told. is_new_trouble: whether the look before this one found the same run in order."""

    judgement: ProgressJudgement
    is_new_trouble: bool


def watch_progress(ledger: Ledger, heads: SourceHeads, wanted: LoadedStream) -> WatchedProgress | None:
    """Look at the sources of a stream whose run lives and is wanted, judge, and ask the run to end where that is due.

    Returns
    -------
    What it told; none when there is no such run.

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
    judged = judge_run(ledger, wanted, run)
    was_healthy = judge_run(ledger, wanted, run, looks_back=1).is_healthy
    tell = _log.info if judged.is_healthy else _log.warning
    tell("stream=%s progress=%s %s", wanted.name, judged.state, judged.explanation)
    if judged.restarts:
        because = BECAUSE_STALLED if judged.state == "stalled" else _BECAUSE_LATE
        ask_to_end(ledger, run.run_id, because=because)
    return WatchedProgress(judgement=judged, is_new_trouble=was_healthy and not judged.is_healthy)


def judge_run(ledger: Ledger, wanted: LoadedStream, run: RunObservation, *, looks_back: int = 0) -> ProgressJudgement:
    """Judge by the looks that the ledger has; nothing is looked at anew, and nothing is changed.

    Parameters
    ----------
    looks_back: judge as of the look so many before the newest one.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    looks = recent_progress_samples(ledger, wanted.name)[looks_back:]
    now = looks[0].observed_at if looks_back and looks else database_time(ledger)
    before = [one for one in recent_runs(ledger, wanted.name, limit=2) if one.run_id != run.run_id]
    return judge_progress(
        wanted.declaration,
        run,
        batches=recent_batches(ledger, wanted.name, limit=_BATCHES),
        samples=looks,
        ended_for_stall=bool(before) and before[0].end_asked_because == BECAUSE_STALLED,
        now=now,
    )


def judge_seen(ledger: Ledger, wanted: LoadedStream, seen: StreamObservation) -> ProgressJudgement | None:
    """The same for a stream as it was seen; none when it has no run whose progress counts."""
    run = seen.newest_run
    return judge_run(ledger, wanted, run) if run is not None and _is_watched(run) else None


def writers_that_defer(ledger: Ledger, declarations: Declarations, table: str) -> tuple[str, ...]:
    """The streams that write a table, are late, and want its maintenance to wait for that.

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
    """Whether a run is to make progress: it lives, works, and nobody has asked it to end."""
    return run.is_live and run.heartbeat_at is not None and run.desired_state is DesiredState.RUNNING
