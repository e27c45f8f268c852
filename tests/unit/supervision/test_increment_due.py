"""When an increment is overdue, and what that makes of its stream."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sluice.declarations.stream_declaration import ScheduleDeclaration
from sluice.ledger.airflow_owner import DagPause, PauseOrigin
from sluice.ledger.desired_states import DesiredStateObservation
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.stream_records import StreamRecords
from sluice.supervision.stream_verdict import TABLES_PATIENCE, StreamState, StreamVerdict, find_overdue, judge_increment
from sluice.supervision.supervision_values import StreamObservation

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
HOURLY = ScheduleDeclaration(cron="@hourly")
HALF_PAST = ScheduleDeclaration(cron="30 * * * *")
EACH_MINUTE = ScheduleDeclaration(cron="* * * * *")
BY_TABLES = ScheduleDeclaration(tables=("bronze.flights",))


def a_run(*, ended_ago: timedelta, state: RunState = RunState.FINISHED) -> RunObservation:
    """A run that has ended."""
    return RunObservation(
        token=1,
        run_id="run-1",
        stream="weather",
        generation=1,
        mode="incremental",
        state=state,
        desired_state=DesiredState.RUNNING,
        launched_at=NOON - ended_ago - MINUTE,
        launched_by="a test",
        declaration_digest="d",
        ended_at=NOON - ended_ago,
        reason="a reason",
    )


def paused(origin: PauseOrigin | None, *, since_ago: timedelta = 30 * DAY) -> DagPause:
    """A DAG that is paused for so long; unpaused without an origin."""
    return DagPause(
        stream="weather",
        airflow="ours",
        is_paused=origin is not None,
        observed_at=NOON,
        origin=origin,
        since=NOON - since_ago,
    )


def seen(
    *runs: RunObservation,
    pause: DagPause | None = None,
    increment_ago: timedelta | None = None,
    up_ago: timedelta | None = None,
) -> StreamObservation:
    """A stream at noon."""
    return StreamObservation(
        stream="weather",
        observed_at=NOON,
        desired=DesiredStateObservation(stream="weather", desired_state=DesiredState.RUNNING),
        runs=runs,
        dag_pause=pause,
        increment_at=None if increment_ago is None else NOON - increment_ago,
        up_since=None if up_ago is None else NOON - up_ago,
    )


def judged(
    schedule: ScheduleDeclaration, observed: StreamObservation, *, rows_ago: timedelta | None = None
) -> StreamVerdict:
    """The verdict at noon."""
    since = None if rows_ago is None else NOON - rows_ago
    return judge_increment(observed, schedule=schedule, rows_since=since)


@pytest.mark.parametrize(
    ("schedule", "ago", "is_overdue"),
    [
        pytest.param(HOURLY, 30 * DAY, True, id="a month ago"),
        pytest.param(HOURLY, 121 * MINUTE, True, id="its time, and the time after it, are over"),
        pytest.param(HOURLY, 61 * MINUTE, True, id="just so"),
        pytest.param(HOURLY, 59 * MINUTE, False, id="its time has just come"),
        pytest.param(HALF_PAST, 75 * MINUTE, False, id="half an interval"),
        pytest.param(HALF_PAST, 95 * MINUTE, True, id="an interval and a half"),
        pytest.param(EACH_MINUTE, 12 * MINUTE, True, id="an interval, and its patience"),
        pytest.param(EACH_MINUTE, 9 * MINUTE, False, id="a short interval waits for its patience"),
    ],
)
def test_an_increment_is_overdue_by_its_cron(schedule: ScheduleDeclaration, ago: timedelta, is_overdue: bool) -> None:
    for observed in (seen(a_run(ended_ago=ago)), seen(a_run(ended_ago=40 * DAY), increment_ago=ago)):
        assert (find_overdue(schedule, observed) is not None) is is_overdue
        assert judged(schedule, observed).state is (StreamState.LATE if is_overdue else StreamState.FINISHED)


def test_new_rows_that_wait_make_an_increment_overdue() -> None:
    observed = seen(a_run(ended_ago=DAY))
    assert judged(BY_TABLES, observed).state is StreamState.FINISHED
    assert judged(BY_TABLES, observed, rows_ago=TABLES_PATIENCE).state is StreamState.FINISHED
    late = judged(BY_TABLES, observed, rows_ago=TABLES_PATIENCE + MINUTE)
    assert (late.state, late.is_healthy) == (StreamState.LATE, False)
    assert "bronze.flights" in late.explanation


def test_one_that_was_never_run_is_due_since_its_dag_was_unpaused() -> None:
    assert judged(HOURLY, seen()).state is StreamState.NEVER_STARTED
    assert judged(HOURLY, seen(pause=paused(PauseOrigin.FIRST_SEEN))).state is StreamState.NEVER_STARTED
    assert judged(HOURLY, seen(pause=paused(None))).state is StreamState.LATE
    assert judged(HOURLY, seen(pause=paused(None, since_ago=MINUTE))).state is StreamState.NEVER_STARTED


@pytest.mark.parametrize("origin", PauseOrigin)
def test_only_the_pause_of_a_person_stops_it(origin: PauseOrigin) -> None:
    verdict = judged(HOURLY, seen(a_run(ended_ago=DAY), pause=paused(origin)))
    is_stopped = origin is PauseOrigin.PERSON
    assert verdict.is_healthy is is_stopped
    assert verdict.state is (StreamState.STOPPED if is_stopped else StreamState.LATE)
    assert is_stopped or "Its DAG is paused" in verdict.explanation


def test_a_failed_run_is_repaired_by_an_increment_that_found_nothing() -> None:
    failed = a_run(ended_ago=HOUR, state=RunState.FAILED)
    assert judged(HOURLY, seen(failed)).state is StreamState.FAILED
    assert judged(HOURLY, seen(failed, increment_ago=MINUTE)).state is StreamState.FINISHED


def test_each_overdue_increment_is_an_occasion_of_its_own() -> None:
    first, second = (judged(HOURLY, seen(a_run(ended_ago=ago))) for ago in (5 * HOUR, 3 * HOUR))
    assert first.occasion != second.occasion
    records: StreamRecords = seen(a_run(ended_ago=5 * HOUR))
    overdue = find_overdue(HOURLY, records)
    assert overdue is not None
    assert first.occasion == overdue.due_at.isoformat()


@pytest.mark.parametrize(("up_ago", "is_late"), [(MINUTE, False), (59 * MINUTE, False), (61 * MINUTE, True)])
def test_after_a_standstill_its_time_counts_from_when_the_reconciler_was_up_again(
    up_ago: timedelta, is_late: bool
) -> None:
    observed = seen(a_run(ended_ago=9 * HOUR), up_ago=up_ago)
    assert judged(HOURLY, observed).state is (StreamState.LATE if is_late else StreamState.FINISHED)


def test_rows_of_before_a_standstill_wait_from_when_the_reconciler_was_up_again() -> None:
    ended = a_run(ended_ago=9 * HOUR)
    assert judged(BY_TABLES, seen(ended, up_ago=MINUTE), rows_ago=8 * HOUR).state is StreamState.FINISHED
    late = judged(BY_TABLES, seen(ended, up_ago=TABLES_PATIENCE + MINUTE), rows_ago=8 * HOUR)
    assert late.state is StreamState.LATE
    assert "waited for 8 h" in late.explanation
