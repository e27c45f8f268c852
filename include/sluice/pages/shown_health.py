"""The health that a page shows: what is seen now, and what the newest pass of the reconciler found. Pure."""

from __future__ import annotations

from enum import StrEnum

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.all_streams import KnownStream
from sluice.ledger.run_values import DesiredState
from sluice.ledger.stream_troubles import StreamTrouble
from sluice.supervision.decide_supervision import decide_supervision
from sluice.supervision.progress_decision import ProgressJudgement, judge_progress
from sluice.supervision.restart_history import count_failures
from sluice.supervision.stream_health import StreamHealth, StreamState, health_of_continuous, health_of_increment
from sluice.supervision.stream_observation import StreamObservation
from sluice.supervision.undeclared_streams import OrphanedRun

_OF_THE_SOURCES = frozenset({StreamState.LATE, StreamState.STALLED, StreamState.SOURCES_UNOBSERVED})
"""States that only the reconciler can see: it asks the sources."""

_RUNS = frozenset({StreamState.RUNNING, StreamState.IDLE})

_NOT_SEEN_FROM_HERE = frozenset({StreamState.UNKNOWN, StreamState.SILENT, StreamState.STARTING})
"""States that another host, or a cluster, may know better than this process."""


class ShownTone(StrEnum):
    """How a state is marked: by a symbol, a word and a colour, of which each alone is enough."""

    GOOD = "good"
    CALM = "calm"
    ODD = "odd"
    BAD = "bad"


_BAD = frozenset(
    {
        StreamState.GIVEN_UP,
        StreamState.FAILED,
        StreamState.CRASH_LOOPING,
        StreamState.STALLED,
        StreamState.BROKEN,
        StreamState.DRIVER_GONE,
    }
)
_GOOD = frozenset({StreamState.RUNNING, StreamState.IDLE})


def tone_of(health: StreamHealth) -> ShownTone:
    """How the state of a stream is marked."""
    if not health.is_healthy:
        return ShownTone.BAD if health.state in _BAD else ShownTone.ODD
    return ShownTone.GOOD if health.state in _GOOD else ShownTone.CALM


def judge_shown(
    known: KnownStream, declared: LoadedStream | None, orphan: OrphanedRun | None, seen: StreamObservation
) -> StreamHealth | None:
    """The health of a stream; none for an undeclared one that has ended as requested.

    Parameters
    ----------
    declared: unset when no valid file declares it. orphan: why its newest run does not fit what is declared.
    seen: what the ledger and the process table show now.
    """
    if orphan is not None and (unfit := _orphan_health(orphan, seen)) is not None:
        return unfit
    if declared is None:
        return None
    if declared.declaration.mode == "incremental":
        return health_of_increment(seen, now=seen.observed_at)
    restart = declared.declaration.supervision.restart
    decision = decide_supervision(
        wanted=declared.declaration,
        digest=declared.digest,
        seen=seen,
        history=count_failures(
            known.runs, digest=declared.digest, stable_after=restart.stable_after, reset_at=seen.desired.changed_at
        ),
        now=seen.observed_at,
    )
    return with_trouble(health_of_continuous(decision, _progress(known, declared, seen)), known.trouble)


def with_trouble(health: StreamHealth, trouble: StreamTrouble | None) -> StreamHealth:
    """The health that is shown, when the reconciler found a trouble less than a minute or so ago.

    What a page sees itself is newer, so a trouble counts only where the page cannot see.
    """
    if trouble is None:
        return health
    found = StreamState(trouble.reason) if trouble.reason in set(StreamState) else StreamState.UNKNOWN
    is_of_sources = health.state in _RUNS and found in _OF_THE_SOURCES
    is_seen_elsewhere = health.state in _NOT_SEEN_FROM_HERE and found not in _RUNS and not health.is_healthy
    is_queued = health.state is StreamState.STARTING and found is StreamState.QUEUED
    is_doubtful = health.state is found is StreamState.STOPPED  # the reconciler asks Airflow why its DAG is paused
    if is_of_sources or is_seen_elsewhere or is_queued or is_doubtful:
        return StreamHealth(state=found, is_healthy=False, explanation=trouble.explanation, failure=health.failure)
    return health


def _orphan_health(orphan: OrphanedRun, seen: StreamObservation) -> StreamHealth | None:
    is_wanted = orphan.run.is_live or seen.desired.effective_state is DesiredState.RUNNING
    if not is_wanted:
        return None
    return StreamHealth(state=StreamState(orphan.reason), is_healthy=False, explanation=orphan.explanation)


def _progress(known: KnownStream, declared: LoadedStream, seen: StreamObservation) -> ProgressJudgement | None:
    """Whether the sources were observed, and whether anything is unread; how long it waits is the reconciler's."""
    run = seen.newest_run
    if run is None or not run.is_live or run.heartbeat_at is None or run.desired_state is not DesiredState.RUNNING:
        return None
    return judge_progress(
        declared.declaration,
        run,
        batches=[] if known.newest_batch is None else [known.newest_batch],
        samples=[] if known.sample is None else [known.sample],
        now=seen.observed_at,
    )
