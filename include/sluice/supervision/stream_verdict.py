"""The one judgement of a stream: its state, whether that is as it should be, and a sentence. Pure.

Whoever looks at a stream judges it by `judge_stream`: the command line, the pages and the alerts. Only the reconciler
looks at the sources and at Airflow, too, and records what it finds there as the trouble of the stream; a look of
another takes that from the ledger.

An increment is judged by when it is due:

| schedule | due                                         | overdue                                              |
|----------|---------------------------------------------|------------------------------------------------------|
| cron     | at its first time after the newest increment| at its time after that, `PATIENCE` later at least    |
| tables   | when each of them has rows since then       | `TABLES_PATIENCE` later                              |

The newest increment is the one that ended well last, also without anything to read; before the first one it counts from
when a person last asked something of the stream, or when its DAG was first seen unpaused. While one runs or has
failed, that is the state of the stream. Airflow starts increments, and nothing else says when it does not: a paused
DAG, a pool without a free slot, a scheduler that is down.

After a standstill of the reconciler it counts from when that was up again: Airflow was down with it, as a stack is
overnight, and starts what is due now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.stream_declaration import ScheduleDeclaration
from sluice.failure_reasons import describe_failure, next_step
from sluice.failures.classification import failure_of_run
from sluice.ledger.airflow_owner import DagObservation, PauseOrigin
from sluice.ledger.desired_states import SuspensionCause
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.stream_records import StreamRecords
from sluice.ledger.stream_troubles import StreamTrouble
from sluice.messages import in_words
from sluice.processes.process_identity import ProcessState
from sluice.supervision.decide_supervision import decide
from sluice.supervision.limits import AHEAD_AT_MOST, HEARD_WITHIN
from sluice.supervision.orphaned_runs import OrphanedRun
from sluice.supervision.progress_decision import ProgressJudgement, ProgressState, judge_known
from sluice.supervision.row_verdicts import with_rows
from sluice.supervision.supervision_values import (
    StreamObservation,
    StreamState,
    StreamVerdict,
    SupervisionDecision,
    SupervisionReason,
)

__all__ = [
    "PATIENCE",
    "TABLES_PATIENCE",
    "OverdueIncrement",
    "StreamState",
    "StreamVerdict",
    "find_overdue",
    "judge_increment",
    "judge_stream",
    "verdict_of",
    "waiting_from",
    "with_its_dag",
    "with_trouble",
    "with_unclear_pause",
]

_STATES = {
    SupervisionReason.NEVER_STARTED: StreamState.NEVER_STARTED,
    SupervisionReason.WANTED_AGAIN: StreamState.TO_BE_STARTED,
    SupervisionReason.BACKING_OFF: StreamState.RESTARTING,
    SupervisionReason.RESTART_DUE: StreamState.RESTARTING,
    SupervisionReason.HOST_BUSY: StreamState.RESTARTING,
    SupervisionReason.RESTART_BUDGET_SPENT: StreamState.GIVEN_UP,
    SupervisionReason.RESTART_WOULD_NOT_HELP: StreamState.GIVEN_UP,
    SupervisionReason.BREAKER_OPEN: StreamState.GIVEN_UP,
    SupervisionReason.STOPPED_AS_REQUESTED: StreamState.STOPPED,
    SupervisionReason.BEING_LAUNCHED: StreamState.STARTING,
    SupervisionReason.NEVER_LAUNCHED: StreamState.DRIVER_GONE,
    SupervisionReason.EXIT_LEFT_BEHIND: StreamState.DRIVER_GONE,
    SupervisionReason.DRIVER_GONE: StreamState.DRIVER_GONE,
    SupervisionReason.STOPPING: StreamState.STOPPING,
    SupervisionReason.STOP_OVERDUE: StreamState.STOPPING,
    SupervisionReason.STARTING: StreamState.STARTING,
    SupervisionReason.HEARTBEAT_FRESH: StreamState.RUNNING,
    SupervisionReason.HEARTBEAT_OVERDUE: StreamState.SILENT,
    SupervisionReason.AWAITS_CLUSTER: StreamState.QUEUED,
    SupervisionReason.DRIVER_UNKNOWN: StreamState.UNKNOWN,
    SupervisionReason.LEASE_OVER: StreamState.SILENT,
    SupervisionReason.DECLARATION_CHANGED: StreamState.RESTARTING,
    SupervisionReason.CHANGE_REFUSED: StreamState.CHANGE_REFUSED,
    SupervisionReason.FILES_DIFFER: StreamState.FILES_DIFFER,
}


_MAY_CRASH_AGAIN = frozenset({StreamState.RESTARTING, StreamState.STARTING, StreamState.RUNNING})
"""A run that is up for a moment does not end a crash loop."""

_BY_PROGRESS = {
    ProgressState.IDLE: StreamState.IDLE,
    ProgressState.LATE: StreamState.LATE,
    ProgressState.STALLED: StreamState.STALLED,
    ProgressState.UNOBSERVED: StreamState.SOURCES_UNOBSERVED,
}

_OF_THE_SOURCES = frozenset({StreamState.LATE, StreamState.STALLED, StreamState.SOURCES_UNOBSERVED})
"""States that only the reconciler can see: it asks the sources."""

_WAITS_FOR_ROWS = frozenset({StreamState.FINISHED, StreamState.NEVER_STARTED})
_RUNS = frozenset({StreamState.RUNNING, StreamState.IDLE})
_NOT_SEEN_FROM_HERE = frozenset({StreamState.UNKNOWN, StreamState.SILENT, StreamState.STARTING})
"""States that another host, or a cluster, may know better than this process."""

PATIENCE = timedelta(minutes=10)
"""How long an increment may wait for its start at least: for a retry, or a busy pool."""

TABLES_PATIENCE = timedelta(minutes=30)
"""How long new rows may wait for an increment that runs by them, and so has no interval of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueIncrement:
    """An increment that was not run in time. due_at: when it was due; it is the occasion of the alert."""

    due_at: datetime
    explanation: str


def judge_stream(
    wanted: LoadedStream | None, seen: StreamObservation, orphan: OrphanedRun | None = None
) -> StreamVerdict:
    """Judge a stream as it was observed.

    Parameters
    ----------
    wanted: the stream as it is declared; unset when no valid file declares it.
    orphan: why its newest run does not fit what is declared.
    """
    if orphan is not None:
        is_wanted = orphan.run.is_live or seen.desired.effective_state is DesiredState.RUNNING
        state = StreamState(orphan.reason)
        return StreamVerdict(state=state, is_healthy=not is_wanted, explanation=orphan.explanation)
    if wanted is None:
        text = f"No file declares {seen.stream}, and no run of it lives."
        return StreamVerdict(state=StreamState.UNDECLARED, is_healthy=True, explanation=text)
    if wanted.declaration.mode == "incremental":
        verdict = judge_increment(seen, schedule=wanted.declaration.schedule)
        verdict = _with_waiting_rows(verdict, wanted, seen.trouble)
    else:
        own = with_unclear_pause(verdict_of(decide(wanted, seen), judge_known(wanted, seen)), seen)
        verdict = with_trouble(own, seen.trouble, is_stop_confirmed=not _is_stopped_by_pause(seen))
    if verdict.failure is not None:
        return replace(verdict, next_step=next_step(verdict.failure.reason, stream=seen.stream))
    return with_rows(verdict, seen, wanted.declaration.supervision.max_rejected)


def _with_waiting_rows(verdict: StreamVerdict, wanted: LoadedStream, trouble: StreamTrouble | None) -> StreamVerdict:
    """The verdict on an increment by new rows of its tables, which only the reconciler looks for."""
    schedule = wanted.declaration.schedule
    may_wait = schedule is not None and bool(schedule.tables) and verdict.state in _WAITS_FOR_ROWS
    if not may_wait or trouble is None or trouble.reason != StreamState.LATE:
        return verdict
    return replace(verdict, state=StreamState.LATE, is_healthy=False, explanation=trouble.explanation)


def with_trouble(
    verdict: StreamVerdict, trouble: StreamTrouble | None, *, is_stop_confirmed: bool = False
) -> StreamVerdict:
    """The verdict, when the reconciler found a trouble in its newest pass.

    What is seen now is newer, so a trouble counts only where this look cannot see.

    Parameters
    ----------
    is_stop_confirmed: whether a person has asked for the stop itself, and not only paused the DAG.
    """
    if trouble is None:
        return verdict
    found = StreamState(trouble.reason) if trouble.reason in set(StreamState) else StreamState.UNKNOWN
    is_of_sources = verdict.state in _RUNS and found in _OF_THE_SOURCES
    is_seen_elsewhere = verdict.state in _NOT_SEEN_FROM_HERE and found not in _RUNS and not verdict.is_healthy
    is_queued = verdict.state is StreamState.STARTING and found is StreamState.QUEUED
    # The reconciler asks Airflow why its DAG is paused.
    is_doubtful = verdict.state is found is StreamState.STOPPED and not is_stop_confirmed
    if is_of_sources or is_seen_elsewhere or is_queued or is_doubtful:
        return StreamVerdict(state=found, is_healthy=False, explanation=trouble.explanation, failure=verdict.failure)
    return verdict


def verdict_of(decision: SupervisionDecision, progress: ProgressJudgement | None = None) -> StreamVerdict:
    """The verdict on a continuous stream, from the decision of its supervisor and, while it runs, from its progress.

    Parameters
    ----------
    progress: of its run; without one its heartbeat decides.
    """
    state = _STATES[decision.reason]
    explanation, is_healthy = decision.explanation, decision.is_healthy
    if state in _MAY_CRASH_AGAIN and decision.crashes:
        state, is_healthy = StreamState.CRASH_LOOPING, False
        explanation = f"{explanation} {decision.crashes} runs have failed one after the other, or within an hour."
    if state is StreamState.RUNNING and progress is not None:
        state = _BY_PROGRESS.get(progress.state, state)
        explanation, is_healthy = f"{explanation} {progress.explanation}", progress.is_healthy
    return StreamVerdict(
        state=state,
        is_healthy=is_healthy,
        explanation=explanation,
        failure=decision.failure,
        occasion=decision.occasion,
    )


def with_its_dag(verdict: StreamVerdict, seen: StreamObservation, dag: DagObservation | None) -> StreamVerdict:
    """The verdict on a continuous stream, when its DAG is looked at as well.

    A stream that a paused DAG stops is unhealthy while the newest run of that DAG has failed: a person may have
    unpaused the DAG while the ledger was away, and Airflow have paused it again for the failure.

    Parameters
    ----------
    dag: unset when Airflow does not know it.
    """
    verdict = with_unclear_pause(verdict, seen)
    is_doubtful = (
        verdict.state is StreamState.STOPPED
        and _is_stopped_by_pause(seen)
        and dag is not None
        and dag.is_paused
        and dag.has_failed
    )
    if not is_doubtful:
        return verdict
    text = (
        f"{verdict.explanation} The newest run of the DAG has failed since, for which Airflow pauses it, too. Unpause "
        f"the DAG, or confirm the stop: `sluice stream stop {seen.stream}`."
    )
    return replace(verdict, is_healthy=False, explanation=text)


def with_unclear_pause(verdict: StreamVerdict, seen: StreamObservation) -> StreamVerdict:
    """The verdict on a stream that runs on beside a DAG of which no person is known to have paused it.

    It is settled by unpausing the DAG, or by starting or stopping the stream.
    """
    pause, desired = seen.dag_pause, seen.desired
    if not verdict.is_healthy or pause is None or pause.origin is not PauseOrigin.UNCLEAR or pause.since is None:
        return verdict
    is_settled = desired.requested_at is not None and desired.requested_at > pause.since
    if is_settled or desired.effective_state is DesiredState.STOPPED:
        return verdict
    text = (
        f"{verdict.explanation} Its DAG is paused since {pause.since:%Y-%m-%d %H:%M:%S %Z}, and no person is known to "
        "have paused it: it was made again after it was deleted, or the DAGs of many streams turned paused at the same "
        f"time, as in a metadata database that is restored. Unpause it, or stop the stream: `sluice stream stop "
        f"{seen.stream}`; `sluice stream start {seen.stream}` lets it run beside its paused DAG."
    )
    return replace(
        verdict,
        state=StreamState.PAUSE_UNCLEAR,
        is_healthy=False,
        explanation=text,
        occasion=pause.since.isoformat(),
    )


def _is_stopped_by_pause(seen: StreamObservation) -> bool:
    """Whether only the pause of its DAG stops a stream."""
    is_paused = seen.desired.suspension is SuspensionCause.PAUSED
    return is_paused and seen.desired.desired_state is DesiredState.RUNNING


def judge_increment(
    seen: StreamObservation, *, schedule: ScheduleDeclaration | None = None, rows_since: datetime | None = None
) -> StreamVerdict:
    """The verdict on an incremental stream. Between two runs its newest run decides, and when the next one is due.

    Parameters
    ----------
    schedule, rows_since: by which one may be overdue (`find_overdue`).
    """
    run = seen.newest_run
    if run is not None and run.is_live:
        return _judge_live_increment(seen, run)
    if seen.desired.effective_state is DesiredState.STOPPED:
        text = f"It is stopped, as requested{seen.desired.why_stopped}."
        return StreamVerdict(state=StreamState.STOPPED, is_healthy=True, explanation=text)
    pause = seen.dag_pause
    if pause is not None and pause.is_paused and pause.origin is PauseOrigin.PERSON:
        text = "It is stopped while its DAG is paused."
        return StreamVerdict(state=StreamState.STOPPED, is_healthy=True, explanation=text)
    is_repaired = run is not None and run.ended_at is not None and (seen.increment_at or run.ended_at) > run.ended_at
    if run is None or run.state is RunState.FINISHED or is_repaired:
        overdue = None if schedule is None else find_overdue(schedule, seen, rows_since=rows_since)
        if overdue is not None:
            return _overdue(seen, overdue)
    if run is None:
        is_new = pause is not None and pause.is_paused
        text = (
            "its DAG is paused, as every new one is. Unpause it in Airflow." if is_new else "it runs by its schedule."
        )
        return StreamVerdict(state=StreamState.NEVER_STARTED, is_healthy=True, explanation=f"It has never run; {text}")
    reason = (run.reason or "without a reason").rstrip(".")
    if run.state is RunState.FINISHED or is_repaired:
        text = f"Its newest run ended: {reason}."
        return StreamVerdict(state=StreamState.FINISHED, is_healthy=True, explanation=text)
    failure = failure_of_run(run)
    step = next_step(failure.reason, stream=run.stream)
    text = (
        f"Its newest run ended: {reason}. That is {describe_failure(failure)}. {step} Then clear its task in Airflow."
    )
    return StreamVerdict(state=StreamState.FAILED, is_healthy=False, explanation=text, failure=failure)


def _overdue(seen: StreamObservation, overdue: OverdueIncrement) -> StreamVerdict:
    step = "See in Airflow what its task waits for: a slot of the pool `spark`, or the scheduler."
    if seen.dag_pause is not None and seen.dag_pause.is_paused:
        step = f"Its DAG is paused: unpause it, or stop the stream: `sluice stream stop {seen.stream}`."
    text, occasion = f"{overdue.explanation} {step}", overdue.due_at.isoformat()
    return StreamVerdict(state=StreamState.LATE, is_healthy=False, explanation=text, occasion=occasion)


def _judge_live_increment(seen: StreamObservation, run: RunObservation) -> StreamVerdict:
    if seen.process is ProcessState.GONE:
        text = f"The process of run {run.run_id} is gone; the next run takes its place."
        return StreamVerdict(state=StreamState.DRIVER_GONE, is_healthy=False, explanation=text)
    silence = seen.observed_at - (run.heartbeat_at or run.launched_at)
    if -AHEAD_AT_MOST <= silence <= HEARD_WITHIN:
        text = f"Run {run.run_id} was heard {silence.total_seconds():.0f} s ago."
        return StreamVerdict(state=StreamState.RUNNING, is_healthy=True, explanation=text)
    state = StreamState.SILENT if seen.process is ProcessState.ALIVE else StreamState.UNKNOWN
    text = f"Run {run.run_id} has been silent for {silence.total_seconds():.0f} s."
    return StreamVerdict(state=state, is_healthy=False, explanation=text)


def find_overdue(
    schedule: ScheduleDeclaration, seen: StreamRecords, *, rows_since: datetime | None = None
) -> OverdueIncrement | None:
    """Whether the next increment of a stream is overdue; none when it is not, or when that is unknown.

    Parameters
    ----------
    rows_since: since when each table of the schedule has had rows that no increment has read; unset: one has none, or
        that was not looked at.
    """
    known = waiting_from(seen)
    if known is None:
        return None
    up_since = seen.up_since
    counts_from = known if up_since is None else max(known, up_since)
    found = [_by_cron(schedule.cron, counts_from, seen.observed_at) if schedule.cron is not None else None]
    may_be_read_from = rows_since if rows_since is None or up_since is None else max(rows_since, up_since)
    if (
        rows_since is not None
        and may_be_read_from is not None
        and seen.observed_at - may_be_read_from > TABLES_PATIENCE
    ):
        waiting = in_words(seen.observed_at - rows_since)
        tables = ", ".join(schedule.tables)
        text = f"New rows in {tables} have waited for {waiting}, and no increment has begun since."
        found.append(OverdueIncrement(due_at=rows_since, explanation=text))
    overdue = [one for one in found if one is not None]
    return min(overdue, key=lambda one: one.due_at, default=None)


def waiting_from(seen: StreamRecords) -> datetime | None:
    """From when on the next increment of a stream is waited for; none before it was ever asked to run."""
    pause, run = seen.dag_pause, seen.newest_run
    unpaused_at = pause.since if pause is not None and not pause.is_paused else None
    ended_at = None if run is None else run.ended_at
    known = (seen.increment_at, ended_at, seen.desired.changed_at, unpaused_at)
    return max((at for at in known if at is not None), default=None)


def _by_cron(cron: str, known: datetime, now: datetime) -> OverdueIncrement | None:
    from croniter import croniter  # it takes a while to import, and most streams have no cron

    times = croniter(cron, known)
    due_at = times.get_next(datetime)
    following = times.get_next(datetime)
    if now < max(following, due_at + PATIENCE):
        return None
    text = f"Its increment of {due_at:%Y-%m-%d %H:%M %Z} is overdue for {in_words(now - due_at)}: none has ended since."
    return OverdueIncrement(due_at=due_at, explanation=text)
