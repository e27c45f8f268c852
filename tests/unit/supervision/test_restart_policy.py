"""How each class of failures is restarted: tries, waits, the breaker; bounds for whatever is declared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.declarations.run_declaration import BreakerDeclaration, RestartDeclaration, SupervisionDeclaration
from sluice.failure_reasons import Failure, FailureClass, FailureReason
from sluice.supervision.limits import POLICIES, helps_to_restart, restart_wait, share_of, tries_of
from sluice.supervision.restart_policy import (
    MOST_RUNS_READ,
    RestartHistory,
    RestartVerdict,
    is_breaker_open,
    judge_restart,
    runs_to_read,
)

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DEFAULT = RestartDeclaration()
CLASSES = st.sampled_from(FailureClass)
DELAYS = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=2))


@st.composite
def restarts(draw: st.DrawFn) -> RestartDeclaration:
    """Any restart policy that may be declared."""
    first, longest = sorted((draw(DELAYS), draw(DELAYS)))
    attempts = draw(st.integers(min_value=0, max_value=1000))
    return RestartDeclaration(attempts=attempts, first_delay=first, longest_delay=longest)


def test_every_class_has_a_policy() -> None:
    assert set(POLICIES) == set(FailureClass)


@pytest.mark.parametrize(
    ("failure_class", "tries"),
    [
        (FailureClass.TRANSIENT, 5),
        (FailureClass.INFRASTRUCTURE, 50),
        (FailureClass.RESOURCE, 2),
        (FailureClass.SOURCE_DATA_LOST, 0),
        (FailureClass.POISON_DATA, 0),
        (FailureClass.SCHEMA, 0),
        (FailureClass.CHECKPOINT, 0),
        (FailureClass.COMMIT_CONFLICT, 5),
        (FailureClass.CODE, 0),
        (FailureClass.UNKNOWN, 5),
    ],
)
def test_the_tries_of_each_class_by_default(failure_class: FailureClass, tries: int) -> None:
    assert tries_of(DEFAULT, failure_class) == tries
    assert helps_to_restart(failure_class) is (tries > 0)


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 0), (2, 5), (3, 10), (4, 20), (7, 160), (8, 300), (9, 300), (500, 300)]
)
def test_the_first_restart_comes_at_once_and_then_the_wait_doubles_up_to_the_longest(
    failures: int, seconds: int
) -> None:
    assert restart_wait(DEFAULT, FailureClass.UNKNOWN, failures=failures) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("failures", "seconds"), [(1, 50), (2, 100), (3, 200), (4, 300)])
def test_what_lacks_memory_or_disk_waits_from_the_first_restart_on(failures: int, seconds: int) -> None:
    assert restart_wait(DEFAULT, FailureClass.RESOURCE, failures=failures) == timedelta(seconds=seconds)


def test_every_other_class_that_is_restarted_begins_at_once() -> None:
    waiting = {
        one for one in FailureClass if helps_to_restart(one) and restart_wait(DEFAULT, one, failures=1) > timedelta(0)
    }
    assert waiting == {FailureClass.RESOURCE}


@given(restarts(), CLASSES, st.integers(min_value=1, max_value=10_000), st.text(min_size=1))
def test_a_wait_is_within_its_bounds_whatever_is_declared(
    restart: RestartDeclaration, failure_class: FailureClass, failures: int, run_id: str
) -> None:
    wait = restart_wait(restart, failure_class, failures=failures, run_id=run_id)
    whole = restart_wait(restart, failure_class, failures=failures)
    shortest = timedelta(0) if failures == 1 and POLICIES[failure_class].is_first_at_once else restart.first_delay
    assert 0.74 * shortest <= 0.74 * whole <= wait <= whole <= restart.longest_delay
    assert wait == restart_wait(restart, failure_class, failures=failures, run_id=run_id), "each look tells the same"
    assert whole <= restart_wait(restart, failure_class, failures=failures + 1)


def test_runs_that_failed_together_do_not_come_back_together() -> None:
    waits = {restart_wait(DEFAULT, FailureClass.INFRASTRUCTURE, failures=8, run_id=f"run-{n}") for n in range(100)}
    assert len(waits) == 100
    assert max(waits) - min(waits) > timedelta(seconds=60)


@given(st.text())
def test_a_share_is_a_share(run_id: str) -> None:
    assert 0 <= share_of(run_id) < 1


@given(restarts(), CLASSES)
def test_only_so_many_runs_are_looked_at_and_they_suffice(
    restart: RestartDeclaration, failure_class: FailureClass
) -> None:
    looked_at = runs_to_read(restart, None)
    assert 1 <= looked_at <= MOST_RUNS_READ
    assert looked_at > min(tries_of(restart, failure_class), MOST_RUNS_READ - 1)


def test_the_breaker_counts_what_its_window_holds() -> None:
    breaker = BreakerDeclaration(failures=3, window=timedelta(hours=1))
    assert not is_breaker_open(None, [NOON] * 9)
    assert not is_breaker_open(breaker, [])
    assert not is_breaker_open(breaker, [NOON, NOON - 59 * MINUTE, NOON - 60 * MINUTE])
    assert is_breaker_open(breaker, [NOON, NOON - 58 * MINUTE, NOON - 59 * MINUTE])


@given(st.integers(min_value=1, max_value=20), st.lists(st.integers(min_value=0, max_value=10_000), max_size=60))
def test_the_breaker_opens_with_enough_failures_and_never_with_less(failures: int, ages: list[int]) -> None:
    breaker = BreakerDeclaration(failures=failures, window=timedelta(hours=1))
    ends = sorted((NOON - age * timedelta(seconds=1) for age in ages), reverse=True)
    if len(ends) < failures:
        assert not is_breaker_open(breaker, ends)
    if ends and all(ends[0] - end < breaker.window for end in ends):
        assert is_breaker_open(breaker, ends) is (len(ends) >= failures)


def failed(reason: FailureReason, *, failures: int, ends: tuple[datetime, ...] = ()) -> RestartHistory:
    """So many failures in a row of one reason."""
    return RestartHistory(failures=failures, newest_failure=Failure.of(reason), of_class=failures, ends=ends)


@pytest.mark.parametrize(
    ("history", "verdict"),
    [
        (failed(FailureReason.SERVICE_BUSY, failures=5), RestartVerdict.RESTART),
        (failed(FailureReason.SERVICE_BUSY, failures=6), RestartVerdict.BUDGET_SPENT),
        (failed(FailureReason.KAFKA_UNREACHABLE, failures=50), RestartVerdict.RESTART),
        (failed(FailureReason.KAFKA_UNREACHABLE, failures=51), RestartVerdict.BUDGET_SPENT),
        (failed(FailureReason.COLUMN_MISSING, failures=1), RestartVerdict.WOULD_NOT_HELP),
        (failed(FailureReason.SERVICE_BUSY, failures=1, ends=(NOON,) * 4), RestartVerdict.BREAKER_OPEN),
        (failed(FailureReason.COLUMN_MISSING, failures=1, ends=(NOON,) * 4), RestartVerdict.WOULD_NOT_HELP),
    ],
)
def test_the_verdict(history: RestartHistory, verdict: RestartVerdict) -> None:
    declared = SupervisionDeclaration(breaker=BreakerDeclaration(failures=4, window=timedelta(hours=1)))
    assert judge_restart(declared, history) is verdict
