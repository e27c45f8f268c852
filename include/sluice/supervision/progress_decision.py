"""Whether a running stream makes progress, judged by the unread input of its sources and not by its process. Pure.

| the newest sample                   | and                                            | state       |
|-------------------------------------|------------------------------------------------|-------------|
| none, too old, or without a figure  |                                                | UNKNOWN     |
| nothing unread                      |                                                | IDLE        |
| something unread                    | no new batch for longer than the window        | STALLED     |
| something unread                    | more rows, or older ones, than `max_lag` allows| LATE        |
| something unread                    | the run has no batch yet                       | STARTING    |
| something unread                    | else                                           | PROGRESSING |

The reconciler takes a sample each minute and the ledger keeps it. Waiting input is counted from the first sample that
has it without a new batch since, so input that arrives after a quiet night does not make a stream stalled. The age of
the oldest unread row follows from the samples, too: it arrived after the newest sample whose input has all been read by
now.

No run is ended on UNKNOWN. A stalled run is restarted when `on_stall` says so and only once without a batch in between:
when a restart did not help, a person must look. A late run is restarted when its `max_lag` says so, and never before it
has been up for `restart.stable_after`.
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
"""The shortest derived window: a full machine or a long garbage collection is shorter."""

WINDOW_WITHOUT_BATCHES = timedelta(minutes=15)
"""For a run without a batch to learn from: its first batch may read everything in the source."""

WINDOW_FACTOR = 10
"""How many times its usual step (trigger and longest recent batch) a stream may take before it is stalled."""

SAMPLED_WITHIN = timedelta(minutes=5)
"""How old the newest sample may be; the reconciler takes one each minute."""


class ProgressState(StrEnum):
    """The progress of a running stream."""

    UNKNOWN = "unknown"
    STARTING = "starting"
    IDLE = "idle"
    PROGRESSING = "progressing"
    LATE = "late"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressJudgement:
    """The progress of a running stream, and what its declaration asks for in that case.

    behind: how old the oldest unread row is at least; zero when nothing is unread, unset when unknown.
    restarts: whether the run is to end so that a new one takes its place.
    defers_maintenance: whether the maintenance of its tables waits.
    """

    state: ProgressState
    explanation: str
    behind: timedelta | None = None
    restarts: bool = False
    defers_maintenance: bool = False

    @property
    def is_healthy(self) -> bool:
        """Whether the stream is neither late nor stalled. UNKNOWN counts as healthy: then the run's state decides."""
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
    """Judge the live run of a stream that is to run.

    Parameters
    ----------
    batches: the newest of the stream, newest first.
    samples: newest first, as far back as they are kept.
    ended_for_stall: whether the run before this one was ended because it was stalled.
    now: the database's time.
    """
    if wanted.trigger is not None and wanted.trigger.continuous_processing is not None:
        text = "Spark reports no batches of continuous processing, so what it has read is unknown."
        return ProgressJudgement(state=ProgressState.UNKNOWN, explanation=text)
    newest = samples[0] if samples else None
    if newest is None or now - newest.observed_at > SAMPLED_WITHIN:
        return ProgressJudgement(state=ProgressState.UNKNOWN, explanation="Its sources were not observed lately.")
    if newest.unread_rows is None:
        text = f"Its unread input is unknown: {newest.problem or 'its sources did not answer'}."
        return ProgressJudgement(state=ProgressState.UNKNOWN, explanation=text)
    if newest.unread_rows == 0:
        text = "It has read all input of its sources."
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
    """How long input may wait without a new batch: as declared, else derived from the stream's usual step.

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
    """How old the oldest unread row is at least; none when the samples do not reach back far enough.

    Parameters
    ----------
    samples: newest first. Those of another generation are left out: a generation reads its sources from the start.
    """
    newest = samples[0]
    if newest.unread_rows == 0:
        return timedelta(0)
    known = [sample for sample in samples if sample.generation == newest.generation and sample.unread_rows is not None]
    for later, sample in pairwise(known):
        if sample.read_rows + (sample.unread_rows or 0) <= newest.read_rows:
            return now - later.observed_at
    return now - known[-1].observed_at if len(known) > 1 else timedelta(0)


def _waiting(
    samples: Sequence[ProgressSample], run: RunObservation, own: Sequence[BatchObservation], now: datetime
) -> timedelta:
    """How long input has waited for a batch of this run: since the first sample with it, the run's start or its newest
    batch, whichever is the latest."""
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
        f"{newest.unread_rows:,} rows have waited for {_duration(waiting)} and run {run.run_id} has recorded no batch "
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
        beyond.append(
            f"the oldest unread row has waited for {_duration(behind)}, {_duration(allowed.duration)} is allowed"
        )
    if not beyond:
        return None
    return ProgressJudgement(
        state=ProgressState.LATE,
        explanation=f"It is late: {'; '.join(beyond)}.",
        behind=behind,
        # A young run is catching up: a restart would only make it later.
        restarts=allowed.action == "restart" and now - run.launched_at >= wanted.supervision.restart.stable_after,
        defers_maintenance=allowed.action == "defer_maintenance",
    )


def _duration(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
