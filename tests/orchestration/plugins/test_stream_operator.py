"""Whether a try of the supervising task was caused by a person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from sluice_airflow.tasks.stream_task import (
    NOTICED_WITHIN,
    PreviousDagRun,
    follows_unpausing,
    is_first_try,
    made_at,
    requested_ago,
    was_asked_since,
)


@pytest.mark.parametrize(
    ("try_number", "max_tries", "is_first"),
    [
        pytest.param(1, 1000, True, id="a new DAG run"),
        pytest.param(2, 1000, False, id="a retry"),
        pytest.param(2, 1001, True, id="cleared after the first try"),
        pytest.param(3, 1001, False, id="a retry after that"),
        pytest.param(6, 1005, True, id="cleared again"),
    ],
)
def test_a_retry_is_not_taken_for_a_person(try_number: int, max_tries: int, is_first: bool) -> None:
    assert is_first_try(try_number=try_number, max_tries=max_tries, retries=1000) is is_first


ENDED_AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
EARLIER, LATER = ENDED_AT - timedelta(seconds=1), ENDED_AT + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("run_made_at", "before", "is_unpaused"),
    [
        pytest.param(LATER, None, True, id="the first run of all"),
        pytest.param(
            LATER, PreviousDagRun(is_failed=True, ended_at=ENDED_AT), True, id="the failed run had paused the DAG"
        ),
        pytest.param(
            EARLIER, PreviousDagRun(is_failed=True, ended_at=ENDED_AT), False, id="in the queue when it failed"
        ),
        pytest.param(LATER, PreviousDagRun(is_failed=False, ended_at=ENDED_AT), False, id="the next minute's run"),
        pytest.param(LATER, PreviousDagRun(is_failed=False, ended_at=None), False, id="the run before goes on"),
    ],
)
def test_a_run_that_was_merely_queued_is_not_taken_for_a_person(
    run_made_at: datetime, before: PreviousDagRun | None, is_unpaused: bool
) -> None:
    assert follows_unpausing(made_at=run_made_at, before=before) is is_unpaused


def test_the_id_of_a_task_contains_when_it_was_made() -> None:
    example = UUID("017F22E2-79B0-7CC3-98C4-DC0C0C07398F")  # RFC 9562, A.6: 2022-02-22 14:22:22.00 GMT-05:00
    assert made_at(example) == datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)


MADE_AT = datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)
EXAMPLE = UUID("017F22E2-79B0-7CC3-98C4-DC0C0C07398F")  # as above


def task_of(*, run_type: str, try_number: int = 1, before: Any = None) -> Any:
    """What a task's context holds of its try, made at MADE_AT."""
    attempt = SimpleNamespace(id=EXAMPLE, try_number=try_number, get_previous_dagrun=lambda: before)
    return {"ti": attempt, "dag_run": SimpleNamespace(run_type=run_type)}


def test_a_request_is_as_old_as_its_run_however_long_that_waited_in_the_queue() -> None:
    ago = requested_ago(task_of(run_type="manual"), now=MADE_AT + timedelta(hours=5))
    assert ago == timedelta(hours=5) - NOTICED_WITHIN
    cleared = requested_ago(task_of(run_type="scheduled", try_number=3), now=MADE_AT + timedelta(seconds=5))
    assert cleared == timedelta(0)


def test_a_scheduled_run_of_a_healthy_dag_is_not_a_person_s_request() -> None:
    healthy = SimpleNamespace(state="success", end_date=MADE_AT - timedelta(hours=1))
    assert requested_ago(task_of(run_type="scheduled", before=healthy), now=MADE_AT) is None


MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("asked_ago", "ended_ago", "is_since"),
    [
        pytest.param(None, 9 * MINUTE, False, id="nobody asked"),
        pytest.param(MINUTE, 9 * MINUTE, True, id="asked after the failure"),
        pytest.param(9 * MINUTE, MINUTE, False, id="asked before the failure: a click that is spent"),
        pytest.param(MINUTE, MINUTE, False, id="at the same moment: it is given up once more, and a click restarts it"),
        pytest.param(MINUTE, None, True, id="given up without an ended run: its checkpoint cannot follow"),
    ],
)
def test_a_click_that_is_older_than_the_failure_does_not_restart_a_given_up_stream(
    asked_ago: timedelta | None, ended_ago: timedelta | None, is_since: bool
) -> None:
    run = None if ended_ago is None else SimpleNamespace(ended_at=ENDED_AT - ended_ago)
    given_up: Any = SimpleNamespace(seen=SimpleNamespace(newest_run=run, observed_at=ENDED_AT))
    assert was_asked_since(asked_ago, given_up) is is_since
