"""Which failures count, and how long to wait after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sluice.declarations.run_declaration import RestartDeclaration, SupervisionDeclaration
from sluice.failure_reasons import Failure, FailureReason
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.supervision.restart_policy import (
    MOST_CHANGES,
    MOST_RUNS_READ,
    RestartHistory,
    RestartVerdict,
    count_crashes,
    count_failures,
    judge_restart,
    runs_to_read,
)

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def ended_run(
    ended_ago: int,
    *,
    uptime: timedelta = timedelta(seconds=5),
    state: RunState = RunState.FAILED,
    asked: DesiredState = DesiredState.RUNNING,
    digest: str = "today's",
    failure: FailureReason | None = None,
) -> RunObservation:
    """A run that ended so many minutes before noon and was heard until its end."""
    ended_at = NOON - ended_ago * MINUTE
    return RunObservation(
        token=1,
        run_id=f"ended-{ended_ago}",
        stream="flights",
        generation=1,
        mode="continuous",
        state=state,
        desired_state=asked,
        launched_at=ended_at - uptime,
        launched_by="a test",
        declaration_digest=digest,
        heartbeat_at=ended_at,
        ended_at=ended_at,
        reason=f"reason {ended_ago}",
        failure=None if failure is None else Failure.of(failure),
    )


def live_run() -> RunObservation:
    """A run that has not ended."""
    return RunObservation(
        token=1,
        run_id="live",
        stream="flights",
        generation=1,
        mode="continuous",
        state=RunState.RUNNING,
        desired_state=DesiredState.RUNNING,
        launched_at=NOON,
        launched_by="a test",
        declaration_digest="today's",
    )


def history(runs: Sequence[RunObservation], *, reset_at: datetime | None = None) -> RestartHistory:
    """The history of these runs under the policy of these tests."""
    return count_failures(runs, digest="today's", stable_after=10 * MINUTE, reset_at=reset_at)


@pytest.mark.parametrize(
    ("runs", "failures"),
    [
        ([], 0),
        ([live_run()], 0),
        ([ended_run(1)], 1),
        ([ended_run(1), ended_run(2), ended_run(3)], 3),
        ([ended_run(1, state=RunState.LOST), ended_run(2)], 2),
        ([ended_run(1, state=RunState.FINISHED), ended_run(2)], 2),
        ([ended_run(1, asked=DesiredState.STOPPED), ended_run(2)], 0),
        ([ended_run(1), ended_run(2, asked=DesiredState.STOPPED), ended_run(3)], 1),
        ([ended_run(1), ended_run(2, uptime=10 * MINUTE), ended_run(30)], 2),
        ([ended_run(1, uptime=11 * MINUTE), ended_run(20)], 1),
        ([ended_run(1), ended_run(2, digest="yesterday's")], 1),
        ([ended_run(1, digest="yesterday's")], 0),
    ],
)
def test_failures_in_a_row(runs: list[RunObservation], failures: int) -> None:
    assert history(runs).failures == failures


def test_a_repeated_request_resets_the_count_of_failures_before_it() -> None:
    runs = [ended_run(1), ended_run(5), ended_run(6)]
    assert history(runs, reset_at=NOON - 3 * MINUTE).failures == 1
    assert history(runs, reset_at=NOON).failures == 0


def test_a_lost_run_ended_with_its_last_sign_of_life() -> None:
    lost = replace(ended_run(5, state=RunState.LOST), ended_at=NOON)
    assert history([lost]).newest_ended_at == NOON - 5 * MINUTE
    assert history([lost], reset_at=NOON - 3 * MINUTE).failures == 0


def test_the_newest_failure_says_when_and_why() -> None:
    assert history([ended_run(1), ended_run(2)]) == RestartHistory(
        failures=2,
        newest_run_id="ended-1",
        newest_ended_at=NOON - MINUTE,
        newest_reason="reason 1",
        newest_failure=Failure.of(FailureReason.UNEXPLAINED),
        of_class=2,
        ends=(NOON - MINUTE, NOON - 2 * MINUTE),
    )


def test_failures_are_counted_by_the_class_of_the_newest() -> None:
    lost, poison = ended_run(1, state=RunState.LOST), ended_run(2, failure=FailureReason.MALFORMED_RECORD)
    counted = history([lost, poison, ended_run(3, state=RunState.LOST)])
    assert (counted.failures, counted.failures_of_class) == (3, 2)
    assert counted.newest_failure == Failure.of(FailureReason.DRIVER_LOST)


def test_failures_of_two_classes_that_take_turns_spend_the_budget_of_one_of_them() -> None:
    """One timeout among 25 failures of Kafka: 51 runs never hold more than 50 of one class."""
    supervision = SupervisionDeclaration()
    failures = [FailureReason.TIMED_OUT if n % 25 == 0 else FailureReason.KAFKA_UNREACHABLE for n in range(1, 2_000)]
    most = runs_to_read(supervision.restart, None)
    for number in range(1, len(failures)):
        newest = [ended_run(ago, failure=failures[number - 1 - ago]) for ago in range(min(number, most))]
        if judge_restart(supervision, history(newest)) is not RestartVerdict.RESTART:
            break
    assert number == 53, "50 restarts after failures of Kafka, 2 after a timeout; the next failure gives up"


def test_a_row_of_failures_that_fills_what_is_read_is_given_up_whatever_is_declared() -> None:
    endless = SupervisionDeclaration(restart=RestartDeclaration(attempts=1000))
    last = RestartHistory(failures=MOST_RUNS_READ - 1, newest_failure=Failure.of(FailureReason.KAFKA_UNREACHABLE))
    assert judge_restart(endless, last) is RestartVerdict.RESTART
    assert judge_restart(endless, replace(last, failures=MOST_RUNS_READ)) is RestartVerdict.BUDGET_SPENT


def test_a_run_that_stayed_up_hides_no_failure_from_the_breaker() -> None:
    counted = history([ended_run(1, uptime=11 * MINUTE), ended_run(20), ended_run(30)])
    assert (counted.failures, len(counted.ends)) == (1, 3)


STABLE = 10 * MINUTE


def failures_in_a_row(runs: Sequence[RunObservation], digest: str) -> int:
    """How many count for this declaration."""
    return count_failures(runs, digest=digest, stable_after=STABLE, reset_at=None).failures


def test_the_count_goes_on_when_a_declaration_returns() -> None:
    """Two hosts with different files: each sees the failure of the other's declaration as the newest."""
    runs = [ended_run(1, digest="theirs"), ended_run(2, digest="ours"), ended_run(3, digest="theirs")]
    assert failures_in_a_row(runs, "ours") == 3
    assert failures_in_a_row(runs, "theirs") == 3


def test_a_repair_begins_a_new_count() -> None:
    runs = [ended_run(number, digest="broken") for number in range(1, 5)]
    assert failures_in_a_row(runs, "repaired") == 0
    assert failures_in_a_row([ended_run(0, digest="repaired"), *runs], "repaired") == 1
    assert failures_in_a_row(runs, "broken") == 4


def test_a_file_that_is_another_one_each_time_spends_the_budget_too() -> None:
    """A template that writes the time into the declaration."""
    runs = [ended_run(number, digest=f"of {number}") for number in range(1, MOST_CHANGES + 2)]
    assert failures_in_a_row(runs, "of now") == MOST_CHANGES + 1
    assert failures_in_a_row(runs[:MOST_CHANGES], "of now") == 0
    rarely = [ended_run(60 * number, digest=f"of {number}") for number in range(1, MOST_CHANGES + 2)]
    assert failures_in_a_row(rarely, "of now") == 0, "a person may edit a file once an hour"


def crashes(runs: Sequence[RunObservation], digest: str = "today's") -> int:
    """How many failures make the stream crash looping at noon."""
    return count_crashes(runs, digest=digest, stable_after=STABLE, reset_at=None, now=NOON)


def up_for(uptime: timedelta) -> RunObservation:
    """A live run that was heard at noon."""
    return replace(live_run(), declaration_digest="today's", launched_at=NOON - uptime, heartbeat_at=NOON)


def test_a_run_that_just_lives_ends_no_crash_loop() -> None:
    failed = [ended_run(number) for number in range(1, 4)]
    assert crashes(failed) == 3
    assert crashes([up_for(MINUTE), *failed]) == 3
    assert crashes([up_for(STABLE), *failed]) == 0
    assert crashes([up_for(MINUTE), *failed[:2]]) == 0, "one or two may be bad luck"
    assert crashes([up_for(MINUTE), *failed], "repaired") == 0


def test_a_stream_that_fails_each_time_after_it_was_stable_is_crash_looping() -> None:
    """Each run resets the count in a row; the launches within an hour count all the same."""
    failed = [ended_run(11 * number, uptime=11 * MINUTE) for number in range(1, 7)]
    assert count_failures(failed, digest="today's", stable_after=STABLE, reset_at=None).failures == 1
    assert crashes(failed) == 5
    assert crashes([up_for(11 * MINUTE), *failed]) == 5
    assert crashes([up_for(22 * MINUTE), *failed]) == 0
    assert crashes(failed[:4]) == 0


def test_failures_in_a_row_are_a_crash_loop_however_far_apart_they_are() -> None:
    assert crashes([ended_run(ago) for ago in (5, 50, 100)]) == 3
    assert crashes([ended_run(ago) for ago in (5, 50)]) == 0


def test_what_failed_just_an_hour_ago_is_not_of_this_hour() -> None:
    failed = [ended_run(12 * number, uptime=11 * MINUTE) for number in range(1, 6)]
    assert crashes(failed) == 0, "the fifth ended an hour ago"
    assert crashes([*failed[:4], ended_run(59, uptime=11 * MINUTE)]) == 5
