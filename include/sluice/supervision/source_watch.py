"""Looks at the sources of streams: whether running ones make progress, and whether an increment would find nothing.

The reconciler calls `watch_progress` each minute. It works for a hung driver as well: it queries the sources, not the
driver.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.batches import BatchObservation, newest_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction
from sluice.ledger.generations import find_generation
from sluice.ledger.held_batches import find_held
from sluice.ledger.progress_samples import LagObservation, ProgressSample, record_progress_sample
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.runs import ask_to_end, newest_run
from sluice.ledger.stream_records import StreamRecords
from sluice.processes.deadline import Deadline, run_each
from sluice.sources.source_heads import SourceHeads
from sluice.sources.source_identities import NONE_KNOWN
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


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementObservation:
    """What was seen before an increment.

    generation: the open one; none before the first run. digest: of the declaration and the transformation as they are.
    lag: how far the newest batch is behind the heads of the sources.
    must_report: whether it would have something to report though no row is unread; see `SourceHeads.must_report`.
    has_decision: whether a person has decided about a held batch, which the next run carries out.
    """

    generation: int | None
    newest_run: RunObservation | None
    newest_batch: BatchObservation | None
    digest: str
    lag: LagObservation
    must_report: bool = False
    has_decision: bool = False


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


def observe_increment(ledger: Ledger, heads: SourceHeads, stream: LoadedStream) -> IncrementObservation:
    """Observe an incremental stream and its sources, without Spark.

    Raises
    ------
    LedgerError, LakehouseError: when the ledger or a table cannot be reached. Another source that cannot be reached
        makes the lag unknown.
    """
    generation = find_generation(ledger, stream.name)
    batch, held = newest_batch(ledger, stream.name), find_held(ledger, stream.name)
    return IncrementObservation(
        generation=generation.generation if generation is not None else None,
        newest_run=newest_run(ledger, stream.name),
        newest_batch=batch,
        digest=stream.digest,
        lag=heads.observe_lag(
            stream.declaration, batch, known=generation.identities if generation is not None else NONE_KNOWN
        ),
        must_report=heads.must_report(stream.declaration, batch),
        has_decision=held is not None and held.decision is not None,
    )


def has_nothing_to_do(seen: IncrementObservation) -> bool:
    """Whether an increment would read no row and repair nothing; unknown is never taken for nothing.

    A run that did not finish may have left a batch behind, a changed declaration has to be checked against the
    checkpoint, a new generation reads its input from where the reset says, and what a person has decided about a held
    batch is carried out by a run: Spark has committed that batch, so a folder has no unread file of it.
    """
    run, batch = seen.newest_run, seen.newest_batch
    if run is None or batch is None:
        return False
    goes_on = run.state is RunState.FINISHED and run.declaration_digest == seen.digest
    is_same_generation = run.generation == batch.key.generation == seen.generation
    is_read = not seen.lag.problem and seen.lag.undone == 0 and not seen.must_report
    return goes_on and is_same_generation and is_read and not seen.has_decision
