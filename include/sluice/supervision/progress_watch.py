"""Watches the progress of running streams: observes their sources, records a sample, and ends runs to be restarted.

The reconciler calls `watch_progress` each minute. It works for a hung driver as well: it queries the sources, not the
driver.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.batches import newest_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction
from sluice.ledger.progress_samples import ProgressSample, record_progress_sample
from sluice.ledger.runs import ask_to_end
from sluice.ledger.stream_records import StreamRecords
from sluice.processes.deadline import Deadline, run_each
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.progress_decision import (
    BECAUSE_LATE,
    BECAUSE_STALLED,
    ProgressJudgement,
    ProgressState,
    is_watched,
    judge_known,
)
from sluice.supervision.supervisor import Supervisor, read_to_judge

_log = logging.getLogger(__name__)


def watch_progress(
    ledger: Ledger, heads: SourceHeads, wanted: LoadedStream, known: StreamRecords
) -> ProgressJudgement | None:
    """Observe the sources of a stream with a live run, judge its progress, and ask the run to end where that is due.

    Parameters
    ----------
    known: its records, read a moment ago with what is known of its progress.

    Returns
    -------
    The progress; none without a live run that is to continue.
    """
    run = known.newest_run
    if run is None or not is_watched(run):
        return None
    sample = _sample(ledger, heads, wanted, known, generation=run.generation)
    judged = judge_known(wanted, known, sample)
    assert judged is not None  # noqa: S101  # the run is watched
    log = _log.info if judged.is_healthy else _log.warning
    log("stream=%s progress=%s %s", wanted.name, judged.state, judged.explanation)
    if judged.restarts:
        because = BECAUSE_STALLED if judged.state is ProgressState.STALLED else BECAUSE_LATE
        ask_to_end(ledger, run.run_id, because=because, event=_event(wanted.name, judged))
    return judged


def sample_increments(
    supervisor: Supervisor,
    increments: Sequence[LoadedStream],
    known: Mapping[str, StreamRecords],
    *,
    at_once: int,
    deadline: Deadline,
    step_seconds: float,
) -> None:
    """Record how far incremental streams are behind, as far as the time suffices. A lag that was not observed is no
    alert: the next pass observes it, or the increment itself fails.

    Parameters
    ----------
    known: the records of each. at_once: how many streams are observed at a time.
    step_seconds: after which one that is slow no longer counts among them (`run_each`).
    """
    if supervisor.heads is None:
        return
    steps = {
        one.name: partial(_sample, supervisor.ledger, supervisor.heads, one, known[one.name], generation=generation)
        for one in increments
        if (generation := known[one.name].generation) is not None  # it has run
    }
    for name, result in run_each(steps, at_once=at_once, deadline=deadline, step_seconds=step_seconds).items():
        if isinstance(result, Exception):
            _log.warning("stream=%s its sources were not observed: %s", name, result)


def _sample(
    ledger: Ledger, heads: SourceHeads, wanted: LoadedStream, known: StreamRecords, *, generation: int
) -> ProgressSample:
    # Read now: against an older one, what was read since would count as unread, and waiting as begun with the next one.
    newest = newest_batch(ledger, wanted.name, generation=generation)
    lag = heads.observe_lag(wanted.declaration, newest, known=known.identities)
    return record_progress_sample(
        ledger, wanted.name, lag, generation=generation, newest_batch=newest, samples=known.samples
    )


def _event(stream: str, judged: ProgressJudgement) -> Event:
    """The decision to end a run so that another one takes its place."""
    return Event(
        name=stream,
        actor=Actor.component("progress watch"),
        action=EventAction.END_RUN,
        reason=str(judged.state),
        explanation=judged.explanation,
    )


def writers_that_defer(ledger: Ledger, declarations: Declarations, table: str) -> tuple[str, ...]:
    """The streams that write a table, are late, and declare that its maintenance waits then."""
    deferring = {
        name: stream
        for name, stream in sorted(declarations.streams.items())
        if table in stream.declaration.tables_written and _defers(stream.declaration)
    }
    known = read_to_judge(ledger, deferring.values(), with_progress=True)
    judged = {name: judge_known(stream, known[name]) for name, stream in deferring.items()}
    return tuple(name for name, one in judged.items() if one is not None and one.defers_maintenance)


def _defers(wanted: StreamDeclaration) -> bool:
    allowed = wanted.supervision.max_lag
    return allowed is not None and allowed.action == "defer_maintenance"
