"""Whether a running stream makes progress, judged by the unread input of its sources and not by its process. Pure.

| the newest sample                   | and                                            | state       |
|-------------------------------------|------------------------------------------------|-------------|
| none so far                         | the run is young                               | UNKNOWN     |
| of a socket, or of a stream that    |                                                | UNKNOWN     |
| begins at the newest and has not yet|                                                |             |
| none for long, or too old           | the reconciler takes none                      | UNOBSERVED  |
| a source is missing, or refuses     |                                                | UNOBSERVED  |
| a source did not answer             | for longer than `UNANSWERED_FOR`               | UNOBSERVED  |
| nothing unread                      |                                                | IDLE        |
| something unread                    | no new batch for longer than the window        | STALLED     |
| something unread                    | more rows, or older ones, than `max_lag` allows| LATE        |
| something unread                    | the run has no batch yet                       | STARTING    |
| something unread                    | else                                           | PROGRESSING |

The reconciler takes a sample each minute and the ledger keeps it. Waiting input is counted from the first sample that
has it without a new batch since, so input that arrives after a quiet night does not make a stream stalled. A batch that
is run again for the state of a copy counts as a new one: nothing of it is recorded. A sample
without a figure in between changes nothing. The window knows what a batch waits for by its declaration: `publish_every`
and Spark's delay of a batch that waits for enough offsets. Files count as well as rows. The age of
the oldest unread row follows from the samples, too: it arrived after the newest sample whose input has all been read by
now.

No run is ended on UNKNOWN or UNOBSERVED. A stalled run is restarted when `on_stall` says so and only once without a
batch in between: when a restart did not help, a person must look. A late run is restarted when its `max_lag` says so,
never before it has been up for `restart.stable_after`, nor a second time before it has been within its limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.run_declaration import LagDeclaration
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.batches import BatchObservation
from sluice.ledger.progress_samples import ProgressSample
from sluice.ledger.run_values import DesiredState, RunObservation
from sluice.ledger.stream_records import StreamRecords
from sluice.messages import in_words
from sluice.supervision.limits import AHEAD_AT_MOST

SHORTEST_WINDOW = timedelta(minutes=5)
"""The shortest derived window: a full machine or a long garbage collection is shorter."""

WINDOW_WITHOUT_BATCHES = timedelta(minutes=15)
"""For a run without a batch to learn from: its first batch may read everything in the source."""

WINDOW_FACTOR = 10
"""How many times its usual step (trigger and longest recent batch) a stream may take before it is stalled."""

SAMPLED_WITHIN = timedelta(minutes=5)
"""How old the newest sample may be; the reconciler takes one each minute."""


UNANSWERED_FOR = timedelta(seconds=90)
"""How long a source may leave the reconciler without an answer: one missing sample is no news, two are."""

TRIGGER_DELAY = timedelta(minutes=15)
"""How long Spark waits for `min_offsets_per_batch` at most: `maxTriggerDelay` of its Kafka source, not declarable."""

BECAUSE_STALLED = "it is stalled"
"""Why a run was asked to end, as the ledger stores it; the next judgement finds by it that a restart was tried."""

BECAUSE_LATE = "it is late"


class ProgressState(StrEnum):
    """The progress of a running stream. UNKNOWN: its sources cannot be observed, or were not yet. UNOBSERVED: they can,
    and were not for too long."""

    UNKNOWN = "unknown"
    UNOBSERVED = "unobserved"
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
        """Whether the stream is neither late, stalled nor unobserved. On UNKNOWN the run's state decides."""
        return self.state not in (ProgressState.LATE, ProgressState.STALLED, ProgressState.UNOBSERVED)


def judge_known(wanted: LoadedStream, known: StreamRecords, *newer: ProgressSample) -> ProgressJudgement | None:
    """Judge a stream by its records; none without a live run that is to continue.

    Of the newest sample alone follows whether anything is unread and whether the sources were observed; how long it
    waits, and so whether the run is stalled, follows of all that are kept (`read_streams(with_progress=True)`).

    Parameters
    ----------
    newer: a sample that was taken since; the judgement is as of its time.
    """
    run = known.newest_run
    if run is None or not is_watched(run):
        return None
    previous = next((one.end_asked_because for one in known.runs if one.run_id != run.run_id), None)
    judged = judge_progress(
        wanted.declaration,
        run,
        batches=known.batches,
        samples=(*newer, *known.samples),
        ended_for_stall=previous == BECAUSE_STALLED,
        ended_for_lag=previous == BECAUSE_LATE,
        now=newer[0].observed_at if newer else known.observed_at,
    )
    # A batch that waits for a person keeps those behind it, which no restart changes.
    return judged if known.held is None else replace(judged, restarts=False)


def is_watched(run: RunObservation) -> bool:
    """Whether a run is to make progress: it is live, has started, and was not asked to end."""
    return run.is_live and run.heartbeat_at is not None and run.desired_state is DesiredState.RUNNING


def judge_progress(
    wanted: StreamDeclaration,
    run: RunObservation,
    *,
    batches: Sequence[BatchObservation],
    samples: Sequence[ProgressSample],
    ended_for_stall: bool = False,
    ended_for_lag: bool = False,
    now: datetime,
) -> ProgressJudgement:
    """Judge the live run of a stream that is to run.

    Parameters
    ----------
    batches: the newest of the stream, newest first.
    samples: newest first, as far back as they are kept.
    ended_for_stall, ended_for_lag: whether the run before this one was ended because it was stalled, or late.
    now: the database's time.
    """
    if wanted.trigger is not None and wanted.trigger.continuous_processing is not None:
        text = "Spark reports no batches of continuous processing, so what it has read is unknown."
        return ProgressJudgement(state=ProgressState.UNKNOWN, explanation=text)
    samples = [sample for sample in samples if sample.observed_at <= now + AHEAD_AT_MOST]
    if (unseen := _unseen(run, samples, now)) is not None:
        return unseen
    known = [sample for sample in samples if sample.known_undone is not None]
    newest = known[0]
    behind = oldest_unread(known, now=now)
    if newest.known_undone == 0:
        text = "It has read all input of its sources."
        return ProgressJudgement(state=ProgressState.IDLE, explanation=text, behind=timedelta(0))
    own = [batch for batch in batches if batch.run_id == run.run_id]
    waiting = _waiting(known, run, own, now)
    if waiting > stall_window(wanted, own):
        return _stalled(wanted, run, newest, waiting, behind, may_restart=bool(own) or not ended_for_stall)
    late = _late(wanted, run, known, behind, now, ended_for_lag=ended_for_lag)
    if late is not None:
        return late
    state = ProgressState.PROGRESSING if own else ProgressState.STARTING
    text = f"{_amount(newest)} are unread, and the newest batch is no older than usual."
    return ProgressJudgement(state=state, explanation=text, behind=behind)


def _unseen(run: RunObservation, samples: Sequence[ProgressSample], now: datetime) -> ProgressJudgement | None:
    """The judgement when too little is known of the sources; none when they were observed well enough."""
    newest = samples[0] if samples else None
    unobserved = now - max(newest.observed_at if newest is not None else run.launched_at, run.launched_at)
    if unobserved > SAMPLED_WITHIN:
        text = f"Its sources were not observed for {in_words(unobserved)}: see that the DAG stream_reconciler runs."
        return ProgressJudgement(state=ProgressState.UNOBSERVED, explanation=text)
    if newest is None:
        return _unknown("Its sources were not observed yet.")
    if now - newest.observed_at > SAMPLED_WITHIN:
        return _unknown("Its sources were not observed since its start.")
    known_at = next((sample.observed_at for sample in samples if sample.known_undone is not None), None)
    answered_at = next((sample.observed_at for sample in samples if not sample.is_failure), None)
    problem = newest.problem or "its sources did not answer"
    if newest.is_refused:
        return ProgressJudgement(state=ProgressState.UNOBSERVED, explanation=f"Its sources cannot be read: {problem}.")
    silent_for = now - max(at for at in (answered_at, run.launched_at) if at is not None)
    if newest.is_failure and silent_for > UNANSWERED_FOR:
        text = f"Its unread input is unknown for {in_words(silent_for)}: {problem}."
        return ProgressJudgement(state=ProgressState.UNOBSERVED, explanation=text)
    if known_at is None or now - known_at > SAMPLED_WITHIN:
        return _unknown(f"Its unread input is unknown: {problem}.")
    return None


def _unknown(text: str) -> ProgressJudgement:
    return ProgressJudgement(state=ProgressState.UNKNOWN, explanation=text)


def _amount(sample: ProgressSample) -> str:
    """What is unread, for a person: rows, or rows, files and shards with records together."""
    words = "rows" if sample.unread_rows is not None else "rows, files or shards"
    return f"{sample.known_undone or 0:,} {words}"


def stall_window(wanted: StreamDeclaration, batches: Sequence[BatchObservation]) -> timedelta:
    """How long input may wait without a new batch: as declared, else derived from the stream's usual step.

    Parameters
    ----------
    batches: the newest of the run, from which its usual duration is learned.
    """
    declared = wanted.supervision.stall_after
    if declared is not None:
        return declared
    waits = (wanted.publish_every or timedelta(0)) + _trigger_delay(wanted)
    if not batches:
        return WINDOW_WITHOUT_BATCHES + waits
    trigger = wanted.trigger.processing_time or wanted.trigger.real_time if wanted.trigger is not None else None
    longest = timedelta(milliseconds=max(batch.duration_ms for batch in batches))
    return max(SHORTEST_WINDOW, WINDOW_FACTOR * ((trigger or timedelta(0)) + longest)) + waits


def _trigger_delay(wanted: StreamDeclaration) -> timedelta:
    """How long a batch waits for input that is there already."""
    sources = [declared.declared_source.kafka for declared in wanted.inputs.values() if declared.is_stream]
    waits = any(kafka is not None and kafka.min_offsets_per_batch is not None for kafka in sources)
    return TRIGGER_DELAY if waits else timedelta(0)


def oldest_unread(samples: Sequence[ProgressSample], *, now: datetime) -> timedelta | None:
    """How old the oldest unread row is at least; none when the samples do not reach back far enough.

    Parameters
    ----------
    samples: newest first. Those of another generation are left out: a generation reads its sources from the start.
    """
    newest = samples[0]
    if newest.known_undone == 0:
        return timedelta(0)
    if newest.unread_rows is None:
        return None
    known = [sample for sample in samples if sample.generation == newest.generation and sample.unread_rows is not None]
    for later, sample in pairwise(known):
        if sample.read_rows + (sample.unread_rows or 0) <= newest.read_rows:
            return now - later.observed_at
    return now - known[-1].observed_at if len(known) > 1 else timedelta(0)


def _waiting(
    samples: Sequence[ProgressSample], run: RunObservation, own: Sequence[BatchObservation], now: datetime
) -> timedelta:
    """How long input has waited for a batch of this run: since the first sample with it, the run's start, its newest
    batch or the newest that it ran again for its state, whichever is the latest."""
    newest = samples[0]
    since = newest.observed_at
    for sample in samples:
        is_same = (sample.generation, sample.batch) == (newest.generation, newest.batch)
        if not is_same or not sample.known_undone:
            break
        since = sample.observed_at
    began = run.delivers_since
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
        f"{_amount(newest)} have waited for {in_words(waiting)} and run {run.run_id} has recorded no batch "
        f"since. See `sluice stream logs {run.stream}`."
    )
    if restarts:
        text += " It is restarted."
    elif wanted.supervision.on_stall == "restart":
        text += " A restart has not helped before; a person must look."
    return ProgressJudgement(state=ProgressState.STALLED, explanation=text, behind=behind, restarts=restarts)


def _late(
    wanted: StreamDeclaration,
    run: RunObservation,
    known: Sequence[ProgressSample],
    behind: timedelta | None,
    now: datetime,
    *,
    ended_for_lag: bool,
) -> ProgressJudgement | None:
    allowed = wanted.supervision.max_lag
    beyond = _beyond(allowed, known[0], behind)
    if allowed is None or not beyond:
        return None
    own = [number for number, sample in enumerate(known) if sample.observed_at >= run.launched_at]
    was_within = any(
        not _beyond(allowed, known[number], oldest_unread(known[number:], now=known[number].observed_at))
        for number in own
    )
    # A young run is catching up: a restart would only make it later. One that a restart has not brought back either.
    is_young = now - run.delivers_since < wanted.supervision.restart.stable_after
    may_restart = not is_young and (was_within or not ended_for_lag)
    return ProgressJudgement(
        state=ProgressState.LATE,
        explanation=f"It is late: {'; '.join(beyond)}.",
        behind=behind,
        restarts=allowed.action == "restart" and may_restart,
        defers_maintenance=allowed.action == "defer_maintenance",
    )


def _beyond(allowed: LagDeclaration | None, sample: ProgressSample, behind: timedelta | None) -> list[str]:
    """Which limits a sample exceeds, in words."""
    beyond: list[str] = []
    if allowed is None or sample.unread_rows is None:
        return beyond
    if allowed.rows is not None and sample.unread_rows > allowed.rows:
        beyond.append(f"{sample.unread_rows:,} rows are unread, {allowed.rows:,} are allowed")
    if allowed.duration is not None and behind is not None and behind > allowed.duration:
        beyond.append(
            f"the oldest unread row has waited for {in_words(behind)}, {in_words(allowed.duration)} is allowed"
        )
    return beyond
