"""Whether a running stream makes progress, judged by what lies unread in its sources and not by its process. Pure.

| the newest look at the sources      | and                                            | state       |
|-------------------------------------|------------------------------------------------|-------------|
| none, too old, or it could not tell |                                                | UNKNOWN     |
| nothing unread                      |                                                | IDLE        |
| something unread                    | no new batch for longer than the window        | STALLED     |
| something unread                    | more rows, or older ones, than `max_lag` allows| LATE        |
| something unread                    | the run has no batch yet                       | STARTING    |
| something unread                    | else                                           | PROGRESSING |

The looks are taken by the reconciler, each minute, and kept in the ledger. That input waits is counted from the first
look that saw it without a new batch since, so input that comes after a quiet night does not make a stream stalled.
How old the oldest unread row is follows from the looks, too: it came after the newest look at which everything that
there was by then has been read by now.

Nothing is ever ended on UNKNOWN. A stalled run is restarted when `on_stall` says so and only once without a batch in
between: where a restart did not help, a person must look. A late one is restarted when its `max_lag` says so, and never
before it has been up for `restart.stable_after`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.records.progress_sample import ProgressSample
from sluice.ledger.records.run import RunObservation
from sluice.ledger.records.stream_batch import BatchObservation

SHORTEST_WINDOW = timedelta(minutes=5)
"""No stream is called stalled earlier by itself: a full machine, a long collection of garbage are shorter."""

WINDOW_WITHOUT_BATCHES = timedelta(minutes=15)
"""For a run that has no batch to learn from: its first one may read all that the source holds."""

WINDOW_FACTOR = 10
"""How many times its usual step (trigger and longest recent batch) a stream may take before it is called stalled."""

LOOKED_AT_WITHIN = timedelta(minutes=5)
"""How old the newest look may be; the reconciler looks each minute."""


class ProgressState(StrEnum):
    """How far a running stream gets."""

    UNKNOWN = "unknown"
    STARTING = "starting"
    IDLE = "idle"
    PROGRESSING = "progressing"
    LATE = "late"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressJudgement:
    """How far a running stream gets, in a sentence, and what its declaration wants done about it.

    behind: how old the oldest unread row is at least; zero when nothing is unread, unset when it is not known.
    restarts: whether the run is to be ended so that a new one takes its place. defers_maintenance: of its tables.
    """

    state: ProgressState
    explanation: str
    behind: timedelta | None = None
    restarts: bool = False
    defers_maintenance: bool = False

    @property
    def is_healthy(self) -> bool:
        """Idle is healthy. What is not known is no reason to call a stream ill, nor well: its run speaks for it."""
        return self.state not in (ProgressState.LATE, ProgressState.STALLED)


def judge_progress(
    wanted: StreamDeclaration,
    run: RunObservation,
    *,
    batches: Sequence[BatchObservation],
    samples: Sequence[ProgressSample],
    ended_for_stall: bool = False,
    now: datetime,
) -> ProgressJudgement:
    """Judge the run of a stream that is wanted and lives.

    Parameters
    ----------
    batches: the newest of the stream, newest first.
    samples: the looks at its sources, newest first, as far back as they are kept.
    ended_for_stall: whether the run before this one was ended because it was stalled.
    now: the database's time.
    """
    if wanted.trigger is not None and wanted.trigger.continuous_processing is not None:
        text = "Spark reports no batches of continuous processing, so that nobody can tell what it has read."
        return ProgressJudgement(state=ProgressState.UNKNOWN, explanation=text)
    newest = samples[0] if samples else None
    if newest is None or now - newest.observed_at > LOOKED_AT_WITHIN:
        return ProgressJudgement(state=ProgressState.UNKNOWN, explanation="Nobody has looked at its sources lately.")
    if newest.unread_rows is None:
        text = f"How far its sources are is not known: {newest.problem or 'they did not answer'}."
        return ProgressJudgement(state=ProgressState.UNKNOWN, explanation=text)
    if newest.unread_rows == 0:
        text = "It has read everything that its sources hold."
        return ProgressJudgement(state=ProgressState.IDLE, explanation=text, behind=timedelta(0))
    own = [batch for batch in batches if batch.run_id == run.run_id]
    waiting = _waiting(samples, run, own, now)
    window = stall_window(wanted, own)
    behind = oldest_unread(samples, now=now)
    if waiting > window:
        return _stalled(wanted, run, newest, waiting, behind, may_restart=bool(own) or not ended_for_stall)
    late = _late(wanted, run, newest, behind, now)
    if late is not None:
        return late
    state = ProgressState.PROGRESSING if own else ProgressState.STARTING
    text = f"{newest.unread_rows:,} rows are unread, and the newest batch is no older than usual."
    return ProgressJudgement(state=state, explanation=text, behind=behind)


def stall_window(wanted: StreamDeclaration, batches: Sequence[BatchObservation]) -> timedelta:
    """How long input may wait without a new batch: as declared, else by the stream's own step.

    Parameters
    ----------
    batches: the newest of the run, from which its usual duration is learned.
    """
    declared = wanted.supervision.stall_after
    if declared is not None:
        return declared
    if not batches:
        return WINDOW_WITHOUT_BATCHES
    trigger = wanted.trigger.processing_time or wanted.trigger.real_time if wanted.trigger is not None else None
    longest = timedelta(milliseconds=max(batch.duration_ms for batch in batches))
    return max(SHORTEST_WINDOW, WINDOW_FACTOR * ((trigger or timedelta(0)) + longest))


def oldest_unread(samples: Sequence[ProgressSample], *, now: datetime) -> timedelta | None:
    """How old the oldest unread row is at least; none when the looks do not reach back far enough.

    Parameters
    ----------
    samples: newest first. Those of another generation are left out: it has read its source anew.
    """
    newest = samples[0]
    if newest.unread_rows == 0:
        return timedelta(0)
    told = [sample for sample in samples if sample.generation == newest.generation and sample.unread_rows is not None]
    for later, sample in pairwise(told):
        if sample.read_rows + (sample.unread_rows or 0) <= newest.read_rows:
            return now - later.observed_at
    return now - told[-1].observed_at if len(told) > 1 else timedelta(0)


def _waiting(
    samples: Sequence[ProgressSample], run: RunObservation, own: Sequence[BatchObservation], now: datetime
) -> timedelta:
    """How long input has waited for a batch of this run: since a look saw it, since the run or its newest batch."""
    newest = samples[0]
    since = newest.observed_at
    for sample in samples:
        is_same = (sample.generation, sample.batch) == (newest.generation, newest.batch)
        if not is_same or not sample.unread_rows:
            break
        since = sample.observed_at
    began = run.launched_at
    recorded = own[0].recorded_at if own else None
    return now - max(since, began, recorded or began)


def _stalled(
    wanted: StreamDeclaration,
    run: RunObservation,
    newest: ProgressSample,
    waiting: timedelta,
    behind: timedelta | None,
    *,
    may_restart: bool,
) -> ProgressJudgement:
    restarts = wanted.supervision.on_stall == "restart" and may_restart
    text = (
        f"{newest.unread_rows:,} rows have waited for {_spoken(waiting)} and run {run.run_id} has brought no batch "
        f"since. See `sluice stream logs {run.stream}`."
    )
    if restarts:
        text += " It is restarted."
    elif wanted.supervision.on_stall == "restart":
        text += " A restart has not helped before; a person must look."
    return ProgressJudgement(state=ProgressState.STALLED, explanation=text, behind=behind, restarts=restarts)


def _late(
    wanted: StreamDeclaration, run: RunObservation, newest: ProgressSample, behind: timedelta | None, now: datetime
) -> ProgressJudgement | None:
    allowed = wanted.supervision.max_lag
    if allowed is None or newest.unread_rows is None:
        return None
    beyond = []
    if allowed.rows is not None and newest.unread_rows > allowed.rows:
        beyond.append(f"{newest.unread_rows:,} rows are unread, {allowed.rows:,} are allowed")
    if allowed.duration is not None and behind is not None and behind > allowed.duration:
        beyond.append(f"the oldest unread row has waited for {_spoken(behind)}, {_spoken(allowed.duration)} is allowed")
    if not beyond:
        return None
    return ProgressJudgement(
        state=ProgressState.LATE,
        explanation=f"It is late: {'; '.join(beyond)}.",
        behind=behind,
        # A run that is young is catching up: to restart it would only make it later.
        restarts=allowed.action == "restart" and now - run.launched_at >= wanted.supervision.restart.stable_after,
        defers_maintenance=allowed.action == "defer_maintenance",
    )


def _spoken(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
